"""Verdicts on claims as text for the terminal, Markdown, CSV and JSON, with footnotes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group
from rich.text import Text

from knot_runner.config.strict import by_key
from knot_runner.report.claims.verdicts import Verdict
from knot_runner.report.render.markup import csv_text, table_markdown, write_forms
from knot_runner.report.render.table_model import ResultTable, TableRow
from knot_runner.report.render.terminal import DIM, TerminalColumn, results_grid, text_line
from knot_runner.report.render.text import plain, signed
from knot_runner.report.statistics.effects import ALPHA, MAX_SEEDS, POWER
from knot_runner.report.statistics.intervals import RESAMPLES
from knot_runner.util.files import json_text

STYLES = {"holds": "green", "does not hold": "red", "undecided": "yellow", "refused": "red", "no runs": "dim"}
CLAIM_HEADS = (
    "", "claim", "verdict", "effect", "95% interval", "claimed", "paper", "seeds", "more seeds, about", "source",
)  # fmt: skip
TERMINAL_COLUMNS = (
    TerminalColumn(right=True, no_wrap=True, style=DIM),
    TerminalColumn("claim", ratio=1),
    TerminalColumn("effect, interval, paper", no_wrap=True),
    TerminalColumn("seeds", right=True, no_wrap=True),
    TerminalColumn("verdict", no_wrap=True),
)
#: Columns of CLAIM_HEADS that contain numbers.
RIGHT_HEADS = ("", "effect", "paper", "seeds", "more seeds, about")
HOW_TO_READ = (
    "Effects are means over seeds, of pairs of runs that are otherwise equal. Intervals are individual 95% intervals: "
    f"Student's t over seeds, and {RESAMPLES:,} bootstrap resamples of the test items, the same for both runs."
)
#: Description of intervals that do not include test items.
OVER_SEEDS = {
    "seeds": "Over seeds only",
    "seeds, not the test items that they share": "Over seeds only, for these test items: other items would move all "
    "seeds at once, which the interval does not count",
}


def effect_text(verdict: Verdict) -> str:
    """Return the effect, such as ``+2.18 points``; "-" if the effect is missing."""
    value = _signed(verdict, verdict.effect)
    return f"{value} {verdict.unit}".strip() if value else "-"


def interval_text(verdict: Verdict) -> str:
    """Return the interval, such as ``[+1.96, +2.40]``, or "".

    With two seeds, an interval that contains the value of no effect is uninformative, and a note replaces it.
    """
    if verdict.low is None or verdict.high is None:
        return ""
    nothing = float(verdict.ratio)
    if verdict.seeds == 2 and (verdict.ratio or verdict.signed) and verdict.low <= nothing <= verdict.high:
        return "n=2: too few seeds"
    return f"[{_signed(verdict, verdict.low)}, {_signed(verdict, verdict.high)}]"


def verdict_texts(verdict: Verdict) -> tuple[str, str, str, str]:
    """Return the effect, the interval, the paper's effect, and the number of additional seeds as texts.

    The number of additional seeds that would decide the claim is approximate: ``4``, ``more than 100``, or "".
    """
    more = ""
    if verdict.more_seeds is not None:
        more = f"more than {MAX_SEEDS}" if verdict.more_seeds > MAX_SEEDS else str(verdict.more_seeds)
    return effect_text(verdict), interval_text(verdict), _signed(verdict, verdict.paper), more


def _signed(verdict: Verdict, value: float | None) -> str:
    return "" if value is None else signed(value, verdict.digits, verdict.signed)


def footnotes(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield footnotes to ``verdicts``. Claims are numbered from 1.

    Verdicts with the same note share a line. The last line lists the claims for which the command requests no runs.
    """
    judged = [verdict for verdict in verdicts if verdict.seeds]
    if judged:
        yield HOW_TO_READ
    for basis, description in OVER_SEEDS.items():
        alone = [i for i, verdict in enumerate(verdicts, 1) if verdict.basis == basis and verdict.seeds]
        if alone:
            yield f"{description}: {_claims(alone)}."
    if any(verdict.over for verdict in judged):
        yield "Accuracy over clients: each client's examples are resampled separately for the runs of a pair."
    if any(verdict.ratio for verdict in judged):
        yield (
            "Ratios are geometric means. Rounds are those trained until the target is met; the paper's are as printed."
        )
    if judged:
        planned = judged[0].planned
        yield (
            f"Verdicts use the first {planned}, {2 * planned}, {4 * planned}, ... seeds (from 0; the preset plans "
            f"{planned}). The analyses share an error probability of {ALPHA:.0%} in parts of 2/3, 2/9, 2/27, ...; a "
            f"verdict needs p below the part of its analysis after Holm's correction over the {len(asked(verdicts))} "
            "claims of this command. Adding seeds therefore does not raise the probability of a false verdict."
        )
        yield f"More seeds: an estimate for {POWER:.0%} power, if the true effect and spread are as measured."
    noted = by_key((verdict.note, i) for i, verdict in enumerate(verdicts, 1) if verdict.note)
    for note, numbers in noted.items():
        yield f"{_claims(numbers)}: {note}."
    unasked = sum(not verdict.runs for verdict in verdicts)
    if unasked:
        yield f"{unasked} of the preset's claims are about runs that this command does not request."


def _claims(numbers: Sequence[int]) -> str:
    """Return ``claim 2``, ``claims 2, 5``."""
    return f"claim{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def claims_table(title: str, verdicts: Sequence[Verdict]) -> Group:
    """Return a table with footnotes, at most 80 columns wide, of the claims whose runs the command requests."""
    rows = []
    for i, verdict in asked(verdicts):
        claim = text_line(verdict.text).append(f"\n{plain(verdict.source)}", style=DIM)
        effect, interval, paper, more = verdict_texts(verdict)
        numbers = Text(effect)
        decision = Text(verdict.verdict, style=STYLES[verdict.verdict])
        if interval:
            numbers.append(f"\n{interval}", style=DIM)
        if paper:
            numbers.append(f"\npaper {paper}", style=DIM)
        if more:
            decision.append(f"\n~ {more.replace('more than', '>')} more", style="not bold dim")
        rows.append((str(i), claim, numbers, str(verdict.seeds), decision))
    grid = results_grid(TERMINAL_COLUMNS, rows, padding=(0, 1, 1, 0))
    return Group(text_line(title, "bold"), text_line(""), grid, *(text_line(text, DIM) for text in footnotes(verdicts)))


def claims_markdown(title: str, verdicts: Sequence[Verdict]) -> str:
    """Return GitHub Markdown: a table of the claims whose runs are requested, and the footnotes as a list."""
    rows = []
    for i, verdict in asked(verdicts):
        effect, interval, paper, more = verdict_texts(verdict)
        decided = (verdict.text, verdict.verdict, effect, interval, verdict.claimed, paper)
        cells = (str(i), *decided, str(verdict.seeds), more, verdict.source)
        rows.append(TableRow(cells, cells, {}))
    right = [head in RIGHT_HEADS for head in CLAIM_HEADS]
    reading, *lines = list(footnotes(verdicts)) or ["No claim has a verdict."]
    return table_markdown(ResultTable(title, CLAIM_HEADS, [], rows, lines, CLAIM_HEADS, right, reading))


def claims_csv(verdicts: Sequence[Verdict]) -> str:
    """Return CSV with one line per claim and a column per field of :class:`Verdict`, also for claims without runs.

    Missing numbers are empty.
    """
    names = [field.name for field in dataclasses.fields(Verdict)]
    return csv_text(["claim", *names], [[i, *vars(verdict).values()] for i, verdict in enumerate(verdicts, 1)])


def asked(verdicts: Sequence[Verdict]) -> list[tuple[int, Verdict]]:
    """Return (number of the claim from 1, verdict) for each claim whose runs the command requests."""
    return [(i, verdict) for i, verdict in enumerate(verdicts, 1) if verdict.runs]


def write_claims(title: str, verdicts: Sequence[Verdict], folder: Path, name: str) -> list[Path]:
    """Write ``name``.md, .csv and .json into ``folder``; return the paths. Raises the errors of :func:`write_forms`."""
    claims = [dataclasses.asdict(verdict) for verdict in verdicts]
    whole = {"title": title, "claims": claims, "notes": list(footnotes(verdicts))}
    texts = {"md": claims_markdown(title, verdicts), "csv": claims_csv(verdicts), "json": json_text(whole)}
    return write_forms(texts, folder, name)
