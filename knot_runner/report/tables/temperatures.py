"""Tables of federated runs: results of training at each temperature, by case (FLex&Chill Tables 1 and 2), and accuracy
and loss by round beside a printed trace (FLex&Chill's public notebook)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.render.table_model import ColumnGroup, Parts, TableCell, TableRow
from knot_runner.report.run_rows import RowSetting, case_rows, hottest_first, measured_line, preset_cases, row_heads
from knot_runner.report.tables import chilling
from knot_runner.report.tables import paper_comparison as printed
from knot_runner.report.tables.footnotes import cited, comparable
from knot_runner.report.tables.kind import TableRequest, aggregate
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: The paper's rounds are indices from 0: one less than the rounds trained.
FROM_0 = 1


def temperatures_table(request: TableRequest) -> Parts:
    """A row per temperature (and rate control), a block of columns per case.

    ``options``: target (best_of_T4, or an accuracy), cases (name -> settings of its runs).
    Raises :class:`UserError` for invalid options.
    """
    options, table = request.options, request.printed
    target = chilling.check_target(options.get("target", "best_of_T4"))
    runs, curves = chilling.with_learning_curves(request.runs, request.command)
    frame = chilling.chilling_frame(case_rows(runs, preset_cases(options, table)), curves, target)
    groups = tuple(_group(case, name) for case in frame["case"].unique() for name in request.metrics)
    keys = hottest_first(frame["key"])
    made = []
    for key in keys:
        own = frame[frame["key"] == key]
        made.append(_row(key, keys, {g.key: (_cell(own[own["case"] == g.block], key, g, table),) for g in groups}))
    columns = [chilling.CHILLING_COLUMNS[name] for name in request.metrics]
    lines = ["; ".join(f"{column.head}: {column.title}" for column in columns) + "."]
    lines += ["Shown: the last round.", *measured_line(runs)]
    if chilling.OF_TARGET & set(request.metrics):
        best = "the best accuracy of the T=4 run of the same seed"
        goal = best if target == "best_of_T4" else f"accuracy {100 * float(target):g}%"
        lines.append(f"Target: {goal}.")
        for case, own in frame.groupby("case", sort=False):
            lines += printed.unreached(case, own, curves)
    lines += [*printed.paper_lines(frame, runs, table), *cited(table)]
    return made, row_heads(keys), groups, lines


def _row(key: RowSetting, keys: Sequence[RowSetting], cells: dict[str, tuple[TableCell, ...]]) -> TableRow:
    """The row of ``key`` in a table of the rows ``keys``."""
    names = (key.head, key.settings)[: len(row_heads(keys))]
    return TableRow(names, names, cells)


def _group(case: str, name: str) -> ColumnGroup:
    m = chilling.CHILLING_COLUMNS[name]
    metric = f"{name}_{m.unit}" if m.unit else name
    return ColumnGroup(f"{case}: {name}", m.title, (case,), m.digits, metric, case, m.head, m.signed, m.paper)


def _cell(own: pd.DataFrame, key: RowSetting, group: ColumnGroup, table: PrintedTable | None) -> TableCell:
    """The cell of ``own``, the runs of one case and row."""
    case, name = group.block, group.key.removeprefix(f"{group.block}: ")
    paper = printed.paper_number(table, case, key, name)
    like = comparable(own["run"]) and printed.same_data(own["run"], table, case)
    cell = aggregate(own[name].dropna(), own, paper, like, chilling.CHILLING_COLUMNS[name].top)
    if name != "rounds":
        return cell
    if len(chilling.short_of_goal(own)):
        return dataclasses.replace(cell, text=_beyond(own), gap=None)
    return cell if cell.gap is None else dataclasses.replace(cell, gap=cell.gap - FROM_0)


def _beyond(own: pd.DataFrame) -> str:
    """``>300`` if no seed meets the target within 300 rounds; ``>300 (2 of 3)`` if two of three do not."""
    short, with_goal = chilling.short_of_goal(own), (own["finished"] & own["goal"].notna()).sum()
    some = f" ({len(short)} of {with_goal})" if len(short) < with_goal else ""
    return f">{short['ran'].min()}{some}"


def trace(request: TableRequest) -> Parts:
    """A row per temperature; columns: accuracy and loss at T after the rounds that the printed table has, from 1.

    Raises :class:`UserError` for runs of several cases.
    """
    table = request.printed
    assert table is not None  # TABLE_KINDS
    runs, curves = chilling.with_learning_curves(request.runs, request.command)
    rows = case_rows(runs, preset_cases({}, table))
    cases = rows["case"].unique()
    if len(cases) > 1:
        raise UserError(f"a table of rounds is of one task and model; these runs are of {'; '.join(cases)}")
    keys, split = hottest_first(rows["key"]), len(table.accuracy_rounds)
    made = []
    for key, own in rows.groupby("key", sort=False):
        cells = _trace_cells(own, curves, table, key)
        made.append(_row(key, keys, {"accuracy": cells[:split], "loss": cells[split:]}))
    lines = [*measured_line(runs), *printed.paper_lines(rows, runs, table), *cited(table)]
    return made, row_heads(keys), _trace_groups(table), lines


def _trace_groups(table: PrintedTable) -> tuple[ColumnGroup, ...]:
    acc = tuple(f"acc r{number}" for number in table.accuracy_rounds)
    loss = tuple(f"loss r{number}" for number in table.loss_rounds)
    title = "accuracy (%) after round r, from 1"
    return (
        ColumnGroup("accuracy", title, acc, 2, "accuracy_percent"),
        ColumnGroup("loss", "test loss of logits / T", loss, 4, paper_digits=4),
    )


def _trace_cells(
    own: pd.DataFrame, curves: dict[str, chilling.LearningCurve], table: PrintedTable, key: RowSetting
) -> tuple[TableCell, ...]:
    case = own["case"].iloc[0]
    wanted = [("accuracy", number, 100.0) for number in table.accuracy_rounds]
    wanted += [("tempered_loss", number, 1.0) for number in table.loss_rounds]
    theirs: Sequence[float | None] = printed.printed_row(table, case, key) or [None] * len(wanted)
    like = comparable(own["run"]) and printed.same_data(own["run"], table, case)
    cells = []
    for (measure, number, scale), paper in zip(wanted, theirs, strict=True):
        ours = [_at(curves.get(run_id), measure, number, scale) for run_id in own["run_id"]]
        cells.append(aggregate(ours, own, paper, like, top=100.0 if measure == "accuracy" else None))
    return tuple(cells)


def _at(own: chilling.LearningCurve | None, measure: str, number: int, scale: float) -> float | None:
    """``measure`` after round ``number``, from 1; None if that round was not run or not evaluated."""
    rows = own.rows if own else ()
    return next((row[measure] * scale for row in rows if row["round"] == number), None)
