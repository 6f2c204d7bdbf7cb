"""Accuracy and loss of federated runs by round, beside a printed trace (FLex&Chill's public notebook)."""

from __future__ import annotations

from typing import Any

from knot_runner.report.render.table_model import ColumnGroup, Parts, TableCell, TableRow
from knot_runner.report.row_keys import RowSetting, ordered, preset_cases, row_heads, runs_by_case
from knot_runner.report.run_folders import Run
from knot_runner.report.tables.aggregate import aggregate
from knot_runner.report.tables.chilling import LearningCurve, with_learning_curves
from knot_runner.report.tables.footnotes import cited, comparable
from knot_runner.report.tables.paper_comparison import paper_lines, printed_row, same_data
from knot_runner.util.errors import UserError


def trace(runs: list[Run], table: dict[str, Any], command: str) -> Parts:
    """A row per temperature; columns: accuracy and loss at T after the rounds that ``table`` prints, from 1.

    Raises :class:`UserError` for runs of several cases.
    """
    runs, courses = with_learning_curves(runs, "final", command)
    found = runs_by_case(runs, preset_cases({}, table))
    if len(found) > 1:
        raise UserError(f"a table of rounds is of one task and model; these runs are of {'; '.join(found)}")
    ((case, rows),) = found.items()
    keys, made, split = ordered(found), [], len(table["accuracy_rounds"])
    for key in keys:
        cells = _cells(list(rows[key].values()), courses, table, case, key)
        names = (key.head, key.settings)[: len(row_heads(keys))]
        made.append(TableRow(names, names, {"accuracy": cells[:split], "loss": cells[split:]}))
    return made, row_heads(keys), _groups(table), paper_lines(runs, found, table) + cited(table)


def _groups(table: dict[str, Any]) -> tuple[ColumnGroup, ...]:
    acc = tuple(f"acc r{number}" for number in table["accuracy_rounds"])
    loss = tuple(f"loss r{number}" for number in table["loss_rounds"])
    title = "accuracy (%) of the global model after round r, from 1"
    return (
        ColumnGroup("accuracy", title, acc, 2, "accuracy_percent"),
        ColumnGroup("loss", "test loss of logits / T", loss, 4, paper_digits=4),
    )


def _cells(
    members: list[Run], courses: dict[str, LearningCurve], table: dict[str, Any], case: str, key: RowSetting
) -> tuple[TableCell, ...]:
    wanted = [("accuracy", number, 100.0) for number in table["accuracy_rounds"]]
    wanted += [("tempered_loss", number, 1.0) for number in table["loss_rounds"]]
    theirs = printed_row(table, case, key) or [None] * len(wanted)
    like = comparable(members) and same_data(members, table, case)
    return tuple(
        aggregate(
            [_at(courses.get(run.job.run_id), *one) for run in members],
            members,
            paper,
            like,
            top=100.0 if one[0] == "accuracy" else None,
        )
        for one, paper in zip(wanted, theirs, strict=True)
    )


def _at(own: LearningCurve | None, measure: str, number: int, scale: float) -> float | None:
    """``measure`` after round ``number``, from 1; None where that round was not run or not measured."""
    rows = own.rows if own else ()
    return next((row[measure] * scale for row in rows if row["round"] == number - 1), None)
