"""A terminal table of a run's generalization bound, and a figure that compares bounds with the measured gap.

The gap is the held-out loss minus the training loss.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group

from knot_runner.records import BOUND_FILE
from knot_runner.report.figures.style import (
    BAND_HEADS,
    GRAY,
    Drawing,
    figure_of,
    log_scale,
    nth_color,
    panels,
    seed_list,
    side_legend,
)
from knot_runner.report.render.markup import csv_text
from knot_runner.report.render.terminal import DIM, TerminalColumn, results_grid, text_line
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import Run, kept_file, lookup
from knot_runner.report.series import estimates
from knot_runner.report.statistics.intervals import Estimate, mean_estimate
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts

if TYPE_CHECKING:
    import pandas as pd

#: Columns of the plotted frame: the name of the series, the seed, the number of texts N, and the value.
POINT = ["name", "seed", "texts", "value"]
#: Name of a measured series -> its key in the record.
GAPS = {"gap": "gap", "gap, less the start's": "gap_less_start"}
#: Slope of every bound in a log-log plot.
SLOPE = -0.5
GAP_NOTE = (
    "Gap: mean loss on the transfer set's held-out texts minus that on the N training texts. Points: means over seeds; "
    "bars: 95% t intervals over seeds, which share the held-out texts. The axis begins where a gap is above 0. "
    "Less the start's: minus the gap of the student's initial model, which was trained on neither part. "
    "Bounds: without their first term. last_layer assumes an encoder that was fixed in advance."
)


@figure_of
def bound_figure(runs: list[Run]) -> Drawing:
    """The student's gap (held-out loss minus training loss) against the number N of training texts.

    The gap has 95% intervals over seeds. The figure also shows the sum of the second and the third term of each
    bound. The returned text compares the log-log slope of the gap with -1/2, the slope of the bounds.
    """
    points = gap_points(runs)
    bands = estimates(points, ["name"], "texts")
    figure, (axes,) = panels(1, 8.6, 5.0)
    for i, (name, curve) in enumerate(bands.groupby("name", sort=False)):
        look: dict[str, Any] = {"marker": ".", "lw": 1.2, "ls": "--"}
        if name in GAPS:
            look = {"marker": "o", "lw": 2.2, "yerr": curve.high - curve.value}
        axes.errorbar(curve.texts, curve.value, color=nth_color(i), capsize=3, label=plain(name), **look)
    diameter = float(_record(runs[0])["diameter"])  # a bound above C_M is vacuous
    axes.axhline(diameter, color=GRAY, lw=0.8, ls=":", label="C_M: no loss is larger")
    axes.set(xlabel="training texts N", ylabel="loss (label distance)")
    log_scale(axes, "xy", powers_from=100.0)
    sizes = bands.texts.unique()
    axes.set_xticks(sizes, list(map(str, sizes)))
    side_legend(figure, [axes], loc="outside right center")
    title = f"{runs[0].task}: gap and generalization bounds by the number of texts"
    lines = [slope_line(name, points[points.name == name]) for name in GAPS]
    numbers = csv_text(("series", "texts", *BAND_HEADS), bands.itertuples(index=False), digits=6)
    return Drawing(figure, title, [GAP_NOTE, f"Seeds {seed_list(runs)}."], lines, numbers)


def gap_points(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a frame with the measured gaps, and with the sum of the second and the third term of each bound.

    A series is a gap (:data:`GAPS`) or a bound. The frame has one row per series, seed and number of texts. Its columns
    are :data:`POINT`.

    Raises:
        UserError: A run has no bound, or the record of a bound is damaged.
    """
    import pandas as pd

    points = []
    for run in runs:
        record = _record(run)
        texts = sum(record[part]["train"] for part in ("texts", "dropped"))  # the same for all seeds
        for name, key in GAPS.items():
            points.append((name, run.seed, texts, record["loss"][key]))
        for row in record["rows"]:
            name = f"{FORM_NAMES[row['form']][0]}, {row['class']}".replace("held-out", "held out")
            points.append((name, run.seed, texts, row["second"] + row["third"]))
    return pd.DataFrame(points, columns=POINT)


def slope_of(gap: pd.DataFrame) -> Estimate | None:
    """Return the slope of log(gap) against log(N), as a mean over seeds.

    ``gap`` holds the rows of one series of :func:`gap_points`. Seeds with a gap of 0 or less are left out. The result
    is None if no seed remains, or if there are fewer than two values of N.
    """
    by_size = gap.pivot_table("value", "texts", "seed").dropna()  # rows: values of N that all seeds have
    rows = by_size.to_numpy().T
    rows = rows[(rows > 0).all(1)]
    if len(by_size) < 2 or not len(rows):
        return None
    return mean_estimate(np.polyfit(np.log(by_size.index), np.log(rows).T, 1)[0].tolist())


def slope_line(name: str, gap: pd.DataFrame) -> str:
    """Return a line of text that reports the fitted slope of the series ``name``."""
    slope = slope_of(gap)
    seeds = gap.seed.nunique()
    head = f"slope of log {name} on log N"
    if slope is None:
        return f"{head}: none; no seed of {seeds} has gaps above 0 at every number of texts"
    line = f"{head}: {slope.mean:+.3f}"
    if slope.half is not None:
        low, high = slope.band
        line += f" [{low:+.3f}, {high:+.3f}]"
    line += f" over {slope.n} seeds; the bounds have {SLOPE:+g}"
    if slope.n < seeds:
        line += f"; {seeds - slope.n} of {seeds} seeds left out, with a gap of 0 or less"
    return line


def _record(run: Run) -> Facts:
    if lookup(run.result, "bound") is None:
        raise UserError(f"task={run.task} method={run.method}: has no bound. Rerun it with method.bound=true")
    record: Facts = json.loads(kept_file(run, BOUND_FILE))
    return record


# ------------------------------------------------------------------------------------------------------- terminal view


#: Form of a bound -> its heading and description.
FORM_NAMES = {
    "printed": (
        "printed",
        "Theorem 5.2 as printed; first: the student's training loss, at least the smallest one of its class",
    ),
    "derived": ("derived", "from the paper's lemmas (Frogner et al. 2015); first: its held-out loss, an estimate"),
    "sharp": ("sharp", "ours, with the loss's Lipschitz constant; first: the training loss; for any student"),
    "sharp_empirical": ("sharp, R^", "the same, with the empirical complexity of these texts"),
    "hoeffding": ("Hoeffding", "on held-out texts; requires no function class"),
    "bernstein": ("Bernstein", "the same, with the variance of the loss"),
}
CLASS_NOTE = (
    "last_layer: assumes that the encoder and B were fixed in advance (a union over values of B "
    "adds the logarithm of their number to log(1/delta)), so this is no guarantee for KNOT."
)
#: Footnotes. In braces: keys of a record and of the record's complexity.
RECORD_NOTES = (
    "Loss of the student (1-Wasserstein to its teachers): {loss[train]:.4g} on {texts[train]} training texts, "
    "{loss[valid]:.4g} on {texts[valid]} held out, gap {loss[gap]:.4g}. Gap minus that of the initial model: "
    "{loss[gap_less_start]:.4g}. Loss of the best constant prediction: {loss[constant]:.4g}.",
    "Duplicates left out: {dropped[train]} training texts, {dropped[valid]} held-out texts (including those that are "
    "also training texts).",
    "C_M = {diameter:.4g}, {classes} labels, delta = {delta:g}; held-out bounds over {checkpoints} checkpoints.",
)
COMPLEXITY_NOTE = "R^ = {value:.4g} +- {error:.4g} (Monte Carlo), at most {upper:.4g}; B = {norm:.4g}."
#: Keys of a row that are columns of numbers.
NUMBER_HEADS = ("first", "second", "third", "sum")
VACUOUS_WORDS = {"C_M": "no loss is larger", "constant": "not better than a constant"}


def bound_table(title: str, record: Facts) -> Group:
    """Return a terminal table of the bound, and its footnotes. ``record`` is the content of ``bound.json``."""
    columns = []
    for head in ("bound", "class", *NUMBER_HEADS):
        columns.append(TerminalColumn(head, right=head in NUMBER_HEADS, no_wrap=True))
    rows = []
    lines = [note.format(**record) for note in RECORD_NOTES]
    for row in record["rows"]:
        head, about = FORM_NAMES[row["form"]]
        numbers = (f"{row[name]:.4g}" for name in NUMBER_HEADS)
        vacuous = "; ".join(map(VACUOUS_WORDS.__getitem__, row["vacuous"])) or "no"
        rows.append((head, row["class"], *numbers, vacuous))
        lines.append(f"{head}: {about}.")
    lines += [f"{CLASS_NOTE} {COMPLEXITY_NOTE.format(**facts)}" for facts in record["complexity"].values()]
    lines += [f"{name}: no number: {why}." for name, why in record["undeclared"].items()]
    lines += [f"{note}." for note in record["notes"]]
    grid = results_grid([*columns, TerminalColumn("vacuous?")], rows)
    return Group(text_line(title, "bold"), grid, *(text_line(text, DIM) for text in dict.fromkeys(lines)))
