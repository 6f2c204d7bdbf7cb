"""Terminal view of a generalization bound's record."""

from __future__ import annotations

from rich.console import Group

from knot_runner.report.render.terminal import DIM, TerminalColumn, results_grid, text_line
from knot_runner.util.files import Facts

#: Form of a bound -> its heading and description.
FORM_NAMES = {
    "printed": (
        "printed",
        "Theorem 5.2 as printed; first: the student's training loss, no less than the least of its class",
    ),
    "derived": ("derived", "what the paper's lemmas give (Frogner et al. 2015); first: its held-out loss, an estimate"),
    "sharp": ("sharp", "ours, with the loss's own Lipschitz constant; first: the training loss, of any student"),
    "sharp_empirical": ("sharp, R^", "the same, with the complexity of these very texts"),
    "hoeffding": ("Hoeffding", "on held-out texts; needs no class"),
    "bernstein": ("Bernstein", "the same, with the variance of the loss"),
}
#: Function class -> note on it.
CLASS_NOTES = {
    "last_layer": "last_layer: as if the encoder had been fixed before, and B chosen before (a union over values of B "
    "adds the logarithm of their number to log(1/delta)), so no guarantee for KNOT.",
    "norms": "norms: networks with layers no larger than the student's (Golowich et al. 2018).",
}
#: Number columns.
NUMBER_HEADS = ("first", "second", "third", "sum")
VACUOUS_WORDS = {"C_M": "no loss is larger", "constant": "a constant is as good"}


def bound_table(title: str, record: Facts) -> Group:
    """The table of ``record``, the content of ``bound.json``, below ``title``, the run, with footnotes."""
    columns = [TerminalColumn(head, no_wrap=True) for head in ("bound", "class")]
    columns += [TerminalColumn(head, right=True, no_wrap=True) for head in NUMBER_HEADS]
    rows = []
    for row in record["rows"]:
        numbers = (f"{row[name]:.4g}" for name in NUMBER_HEADS)
        vacuous = "; ".join(VACUOUS_WORDS[why] for why in row["vacuous"]) or "no"
        rows.append((FORM_NAMES[row["form"]][0], row["class"], *numbers, vacuous))
    grid = results_grid([*columns, TerminalColumn("vacuous?")], rows)
    return Group(text_line(title, "bold"), grid, *(text_line(text, DIM) for text in bound_lines(record)))


def bound_lines(record: Facts) -> list[str]:
    """Footnotes to a bound's table."""
    loss = record["loss"]
    texts = record["texts"]
    dropped = record["dropped"]
    return [
        f"Loss of the student (1-Wasserstein to its teachers): {loss['train']:.4g} on {texts['train']} training "
        f"texts, {loss['valid']:.4g} on {texts['valid']} held out, gap {loss['gap']:.4g}, less that of the "
        f"model it started from {loss['gap_less_start']:.4g}; of the best constant prediction "
        f"{loss['constant']:.4g}.",
        f"Duplicates left out: {dropped['train']} training texts, {dropped['valid']} held-out ones (those that are "
        "training texts, too, among them).",
        f"C_M = {record['diameter']:.4g}, {record['classes']} labels, delta = {record['delta']:g}; held-out "
        f"bounds over {record['checkpoints']} checkpoints.",
        *(f"{head}: {about}." for head, about in dict.fromkeys(FORM_NAMES[row["form"]] for row in record["rows"])),
        *(f"{note} {_complexity_text(record['complexity'][name])}" for name, note in CLASS_NOTES.items()
          if name in record["complexity"]),
        *(f"{name}: no number: {why}." for name, why in record["undeclared"].items()),
        *(f"{note}." for note in record["notes"]),
    ]  # fmt: skip


def _complexity_text(facts: dict[str, float]) -> str:
    if "upper" not in facts:
        return f"R <= {facts['value']:.4g}."
    return (
        f"R^ = {facts['value']:.4g} +- {facts['error']:.4g} (Monte Carlo), at most "
        f"{facts['upper']:.4g}; B = {facts['norm']:.4g}."
    )
