"""``knot-runner compare``: any runs side by side, from their records alone; no preset is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knot_runner.report.compare import best as compare_best
from knot_runner.report.compare import measures as compare_measures
from knot_runner.report.compare.axes import Keys, apart, searched
from knot_runner.report.compare.best import Choice, HalfSelection, Rule
from knot_runner.report.compare.filters import Filter, select_records
from knot_runner.report.compare.groups import group_runs
from knot_runner.report.compare.records import RunRecord, doubtful, read_all
from knot_runner.report.compare.settings import resolve_key, sort_key
from knot_runner.report.compare.sheet import MeanEstimate, Sheet, SheetCell
from knot_runner.report.compare.tables import of_choices, of_groups, of_runs
from knot_runner.util.errors import UserError, nearest


@dataclass(frozen=True)
class Question:
    """What the user asks. ``by``: None for the settings that tell the runs apart; ``measures``: () for those that all
    have; ``best``: a measure, ``min:KEY``, ``max:KEY`` or ""; ``over``: the settings searched; ``runs``: a row each;
    ``data``: runs that were made from other files than those below it are left out."""

    out: Path = Path("outputs")
    filters: tuple[Filter, ...] = ()
    by: Keys | None = None
    measures: Keys = ()
    best: str = ""
    over: Keys = ()
    select: HalfSelection = "test"
    sort: str = ""
    runs: bool = False
    data: str | None = None


def compare_runs(asked: Question) -> Sheet:
    """The answer, one row per group of runs (or per run). Raises :class:`UserError`."""
    archive = read_all(asked.out, asked.data)
    records, absent = select_records(archive.records, asked.filters)
    known = {key for record in records for key in record.names()}
    by = None if asked.by is None else tuple(dict.fromkeys(resolve_key(key, known) for key in asked.by))
    over = tuple(dict.fromkeys(resolve_key(key, known) for key in asked.over))
    sheet = _best(records, asked, by, over) if asked.best else _plain(records, asked, by)
    done = sum(record.state == "done" for record in records)
    filters = f", {' '.join(one.text for one in asked.filters)}" if asked.filters else ""
    title = f"{done} finished of {len(records)} runs below {asked.out}{filters}"
    lines = (*sheet.lines, *absent, *doubtful(records, asked.out), *archive.lines)
    return _sorted(replace(sheet, title=title, lines=lines), asked.sort)


def _plain(records: Sequence[RunRecord], asked: Question, by: Keys | None) -> Sheet:
    keys, measures = apart(records) if by is None else by, _measures(records, asked)
    return of_runs(records, keys, measures) if asked.runs else of_groups(group_runs(records, keys), keys, measures)


def _best(records: Sequence[RunRecord], asked: Question, by: Keys | None, over: Keys) -> Sheet:
    keys, over = searched(records, by, over)
    rule = compare_best.selection_rule(asked.best, over, asked.select, compare_measures.known_measures(records))
    choices = compare_best.choose(group_runs(records, keys), rule)
    return of_choices(choices, rule, keys, _best_measures(choices, rule, asked, records))


def _measures(records: Sequence[RunRecord], asked: Question) -> list[str]:
    if not asked.measures:
        return compare_measures.defaults(records)
    known = compare_measures.known_measures(records)
    return list(dict.fromkeys(compare_measures.resolve_measure(name, known) for name in asked.measures))


def _best_measures(choices: Sequence[Choice], rule: Rule, asked: Question, records: Sequence[RunRecord]) -> list[str]:
    """The measure selected by and those asked for; with halves, what predictions give: their numbers are of a half."""
    reported = [record for choice in choices for record in choice.reported] if rule.split == "half" else records
    return list(dict.fromkeys([rule.measure, *_measures(reported, asked)]))


# -------------------------------------------------------------------------------------------------------------- order


def _sorted(sheet: Sheet, by: str) -> Sheet:
    """Rows by a column: settings upwards; a measure with the better first, where that is not known the higher."""
    if not by:
        return sheet
    index = _column(sheet, by)
    column = sheet.columns[index]
    upwards = column.kind == "key" or compare_measures.direction(column.name) == "lower"

    def place(row: tuple[SheetCell, ...]) -> tuple[bool, tuple[int, float, str] | float]:
        cell = row[index]
        if column.kind == "key":
            return False, sort_key(None if cell is None else str(cell))
        value = cell.mean if isinstance(cell, MeanEstimate) else cell
        return value is None, 0.0 if value is None else float(value) * (1 if upwards else -1)

    return replace(sheet, rows=tuple(sorted(sheet.rows, key=place)))


def _column(sheet: Sheet, name: str) -> int:
    for i, column in enumerate(sheet.columns):
        if name in (column.name, column.head, column.name.removesuffix(".name")):
            return i
    raise UserError(f"--sort={name}: is not shown{nearest(name, [column.head for column in sheet.columns])}")
