"""Verdicts on claims as text for the terminal, Markdown, CSV and JSON, with footnotes."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group
from rich.text import Text

from knot_runner.report.claims.verdicts import Verdict
from knot_runner.report.render.markup import csv_text, table_markdown, write_forms
from knot_runner.report.render.table_model import ResultTable, TableRow
from knot_runner.report.render.terminal import DIM, TerminalColumn, dimmed, results_grid, text_line
from knot_runner.report.render.text import plain, signed
from knot_runner.report.statistics.effects import ALPHA, MAX_SEEDS, POWER
from knot_runner.report.statistics.intervals import RESAMPLES
from knot_runner.util.files import json_text

STYLES = {"holds": "green", "does not hold": "red", "undecided": "yellow", "refused": "red", "no runs": "dim"}
#: Column of the Markdown table -> whether the column contains numbers.
CLAIM_HEADS = {
    "": True, "claim": False, "verdict": False, "effect": True, "95% interval": False, "claimed": False, "paper": True,
    "seeds": True, "more seeds, about": True, "source": False,
}  # fmt: skip
TERMINAL_COLUMNS = (
    TerminalColumn(right=True, no_wrap=True, style=DIM),
    TerminalColumn("claim", ratio=1),
    TerminalColumn("effect, interval, paper", no_wrap=True),
    TerminalColumn("seeds", right=True, no_wrap=True),
    TerminalColumn("verdict", no_wrap=True),
)
HOW_TO_READ = (
    "Each effect compares runs that are otherwise equal, and is a mean over seeds. Intervals are 95% intervals for "
    f"each claim separately: Student's t over seeds, and {RESAMPLES:,} bootstrap resamples of the test items, the same "
    "resamples for all compared runs."
)
#: Basis of an interval that does not cover the variation over test items -> description of the interval.
OVER_SEEDS = {
    "seeds": "Intervals over seeds only",
    "seeds, not the test items that they share": "Intervals over seeds only, without the variation over test items, "
    "which all seeds share",
}


def verdict_texts(verdict: Verdict) -> tuple[str, str, str, str]:
    """Return four texts on a verdict: the effect, its interval, the paper's effect, and the number of additional seeds.

    - The effect has the form ``+2.18 points``. A missing effect is "-".
    - The interval has the form ``[+1.96, +2.40]``. For two seeds, the text is ``n=2: too few seeds`` if
      the interval includes a difference of 0 or a ratio of 1.
    - The approximate number of additional seeds has the form ``4`` or ``more than 100``.

    If the interval, the paper's effect or the number of seeds is missing, its text is "".
    """
    texts = []
    for value in (verdict.effect, verdict.low, verdict.high, verdict.paper):
        texts.append("" if value is None else signed(value, verdict.digits, verdict.signed))
    effect, low, high, paper = texts
    if effect:
        effect = f"{effect} {verdict.unit}".strip()
    interval = ""
    if verdict.low is not None and verdict.high is not None:
        interval = f"[{low}, {high}]"
        is_effect = verdict.ratio or verdict.signed
        if verdict.seeds == 2 and is_effect and verdict.low <= float(verdict.ratio) <= verdict.high:
            interval = "n=2: too few seeds"
    more = str(verdict.more_seeds or "")
    if (verdict.more_seeds or 0) > MAX_SEEDS:
        more = f"more than {MAX_SEEDS}"
    return effect or "-", interval, paper, more


def footnotes(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the footnotes of a list of verdicts. In the footnotes, claims are numbered from 1."""
    judged = []
    by_basis: defaultdict[str, list[int]] = defaultdict(list)
    by_note = defaultdict(list)
    for i, verdict in enumerate(verdicts, 1):
        by_note[verdict.note].append(i)
        if verdict.seeds:
            judged.append(verdict)
            by_basis[verdict.basis].append(i)
    by_note.pop("", None)
    if judged:
        yield HOW_TO_READ
    for basis, description in OVER_SEEDS.items():
        if by_basis[basis]:
            yield f"{description}: {_claims(by_basis[basis])}."
    if any(verdict.over for verdict in judged):
        yield "Accuracy over clients: each client's examples are resampled separately for the runs of a pair."
    if any(verdict.ratio for verdict in judged):
        yield (
            "Ratios are geometric means. Numbers of rounds count the rounds trained until the target is met; those of "
            "the paper are as printed."
        )
    if judged:
        planned = judged[0].planned
        yield (
            f"Verdicts use the first {planned}, {2 * planned}, {4 * planned}, ... seeds (from 0; the preset plans "
            f"{planned}), one analysis for each of these numbers. The analyses share an error probability of "
            f"{ALPHA:.0%}, in parts of 2/3, 2/9, 2/27, ... A verdict needs a p-value below the part of its analysis, "
            f"after Holm's correction over the {len(asked(verdicts))} claims of this command. "
            "Adding seeds therefore does not raise the probability of a false verdict."
        )
        yield f"More seeds: estimated for {POWER:.0%} power, if the true effect and spread are as measured."
    for note, numbers in by_note.items():
        yield f"{_claims(numbers)}: {note}."
    unasked = len(verdicts) - len(asked(verdicts))
    if unasked:
        yield f"{unasked} of the preset's claims are about runs that this command does not request."


def _claims(numbers: Sequence[int]) -> str:
    """Return ``claim 2``, ``claims 2, 5``."""
    return f"claim{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def claims_table(title: str, verdicts: Sequence[Verdict]) -> Group:
    """Return verdicts as a table for the terminal, with footnotes.

    A claim is left out if none of its runs was requested.
    """
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
    return Group(text_line(title, "bold"), text_line(""), grid, *dimmed(footnotes(verdicts)))


def claims_markdown(title: str, verdicts: Sequence[Verdict]) -> str:
    """Return verdicts as GitHub Markdown: a table, and the footnotes as a list.

    A claim is left out if none of its runs was requested.
    """
    rows = []
    for i, verdict in asked(verdicts):
        effect, interval, paper, more = verdict_texts(verdict)
        decided = (verdict.text, verdict.verdict, effect, interval, verdict.claimed, paper)
        cells = (str(i), *decided, str(verdict.seeds), more, verdict.source)
        rows.append(TableRow(cells, cells, {}))
    heads = list(CLAIM_HEADS)
    reading, *lines = list(footnotes(verdicts)) or ["No claim has a verdict."]
    return table_markdown(ResultTable(title, heads, [], rows, lines, heads, list(CLAIM_HEADS.values()), reading))


def claims_csv(verdicts: Sequence[Verdict]) -> str:
    """Return verdicts as CSV with one line per claim. Claims whose runs were not requested are included.

    The columns are the number of the claim and the fields of :class:`Verdict`. Missing values are empty.
    """
    rows = [(i, *vars(verdict).values()) for i, verdict in enumerate(verdicts, 1)]
    return csv_text(["claim", *Verdict.__dataclass_fields__], rows)


def asked(verdicts: Sequence[Verdict]) -> list[tuple[int, Verdict]]:
    """Return the number and the verdict of each claim of which at least one run was requested.

    Claims are numbered from 1 in the order of ``verdicts``.
    """
    return [(i, verdict) for i, verdict in enumerate(verdicts, 1) if verdict.runs]


def write_claims(title: str, verdicts: Sequence[Verdict], folder: Path, name: str) -> list[Path]:
    """Write verdicts as Markdown, CSV and JSON into ``folder``; return the paths of the files.

    Each file is named ``name`` plus the suffix of its format.

    Raises:
        UserError: ``name`` is not a valid file name, or a file cannot be written.
    """
    whole = {"title": title, "claims": list(map(dataclasses.asdict, verdicts)), "notes": list(footnotes(verdicts))}
    texts = {"md": claims_markdown(title, verdicts), "csv": claims_csv(verdicts), "json": json_text(whole)}
    return write_forms(texts, folder, name)
