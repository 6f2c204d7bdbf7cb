"""Tables of federated runs at several temperatures.

The first table shows results by case (FLex&Chill Tables 1 and 2). The second compares accuracy and loss by round with
the output printed in FLex&Chill's public notebook.

Runs are paired over seeds. Speed-up = rounds(T=1) / rounds(T). "Rounds to target" is the number of rounds trained until
the target is reached. The paper's Table 1 prints the 0-based index of the last of these rounds, which is one less.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from knot_runner.config.strict import by_key
from knot_runner.papers.chill.probe_figures import boundary_figure, gradient_figure, softmax_figure
from knot_runner.papers.chill.rows import RowSetting, case_rows, hottest_first, row_heads
from knot_runner.papers.chill.target import WARM, best_of_t4
from knot_runner.report.claims.measures import TARGETS, LearningCurve, check_target, with_learning_curves
from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.render.table_model import Cells, ColumnGroup, Parts, TableCell, TableLayout, TableRow
from knot_runner.report.run_folders import Run
from knot_runner.report.run_rows import measured_line, preset_cases
from knot_runner.report.tables.build import TABLE_KINDS
from knot_runner.report.tables.footnotes import absences, cited, comparable, other_data, same_data, sources
from knot_runner.report.tables.kind import TableKind, TableRequest, aggregate
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: The paper's rounds are indices from 0: one less than the rounds trained.
FROM_0 = 1


def temperatures_table(request: TableRequest) -> Parts:
    """Return a row per temperature (and learning rate control), and a block of columns per case.

    ``options``: ``target`` (best_of_T4 or an accuracy) and ``cases`` (name -> settings of the case's runs).

    Raises:
        UserError: An option is invalid.
    """
    options = request.options
    table = request.printed
    target = check_target(options.get("target", "best_of_T4"))
    runs, curves = with_learning_curves(request.runs)
    frame = chilling_frame(case_rows(runs, preset_cases(options, table)), curves, target)
    columns = {name: CHILLING_COLUMNS[name] for name in request.metrics}
    groups = {}
    for case, (name, column) in itertools.product(frame["case"].unique(), columns.items()):
        groups[case, name] = dataclasses.replace(column, key=f"{case}: {name}", columns=(case,), block=case)
    keys = hottest_first(frame["key"])
    rows = []
    for key in keys:
        of_key = frame[frame["key"] == key]
        cells = {}
        for (case, name), group in groups.items():
            cells[group.key] = (_cell(of_key[of_key["case"] == case], key, case, name, table),)
        rows.append(_row(key, keys, cells))
    lines = ["; ".join(f"{column.head}: {column.title}" for column in columns.values()) + "."]
    lines += ["Shown: the last round.", *measured_line(runs)]
    if OF_TARGET & set(columns):
        best = "the best accuracy of the T=4 run of the same seed"
        goal = best if target == "best_of_T4" else f"accuracy {100 * float(target):g}%"
        lines.append(f"Target: {goal}.")
        for case, of_case in frame.groupby("case", sort=False):
            lines += unreached(case, of_case, curves)
    lines += paper_lines(frame, runs, table)
    return rows, row_heads(keys), list(groups.values()), lines


def _row(key: RowSetting, keys: Sequence[RowSetting], cells: Cells) -> TableRow:
    """Return the table row for ``key``. ``keys`` are the keys of all rows."""
    names = (key.head, key.settings)[: len(row_heads(keys))]
    return TableRow(names, names, cells)


def _cell(rows: pd.DataFrame, key: RowSetting, case: str, name: str, table: PrintedTable | None) -> TableCell:
    """Return the cell of column ``name``. ``rows``: the runs of one case and one table row."""
    printed = dict(zip(table.columns, printed_row(table, case, key), strict=False)) if table else {}
    cell = _mean(rows, name, printed.get(name), table, case, TOPS.get(name))
    if name != "rounds":
        return cell
    short = short_of_goal(rows)
    with_goal = (rows["finished"] & rows["goal"].notna()).sum()
    if len(short):  # ">300 (2 of 3)": so many seeds do not meet the target within 300 rounds
        some = f" ({len(short)} of {with_goal})" if len(short) < with_goal else ""
        return dataclasses.replace(cell, text=f">{short['ran'].min()}{some}", gap=None)
    return cell if cell.gap is None else dataclasses.replace(cell, gap=cell.gap - FROM_0)


def _mean(
    rows: pd.DataFrame, name: str, paper: float | None, table: PrintedTable | None, case: str, top: float | None
) -> TableCell:
    """Return the cell with the mean of column ``name`` over ``rows``, next to the ``paper``'s value."""
    has_gap = comparable(rows["run"]) and same_data(rows["run"], table, case)
    return aggregate(rows[name].dropna(), rows, paper, has_gap, top)


def trace(request: TableRequest) -> Parts:
    """Return a row per temperature with accuracy and loss at T, after each round that the printed table shows.

    Rounds are counted from 1.

    Raises:
        UserError: The runs have several cases.
    """
    table = request.printed
    assert table is not None  # TABLE_KINDS
    runs, curves = with_learning_curves(request.runs)
    frame = case_rows(runs, preset_cases({}, table))
    cases = frame["case"].unique()
    if len(cases) > 1:
        raise UserError(f"a table of rounds shows one task and model, but these runs have several: {'; '.join(cases)}")
    accuracies = {f"acc r{number}": ("accuracy", number, 100.0) for number in table.accuracy_rounds}
    losses = {f"loss r{number}": ("tempered_loss", number, 1.0) for number in table.loss_rounds}
    logged = {(run_id, row["round"]): row for run_id, curve in curves.items() for row in curve.rows}
    for name, (measure, number, scale) in {**accuracies, **losses}.items():
        logs = [logged.get((run_id, number), {}) for run_id in frame["run_id"]]
        frame = frame.assign(**{name: [scale * log.get(measure, math.nan) for log in logs]})
    keys = hottest_first(frame["key"])
    rows = []
    for key, of_key in frame.groupby("key", sort=False):
        printed = dict(zip([*accuracies, *losses], printed_row(table, cases[0], key), strict=False))
        of_accuracy = [_mean(of_key, name, printed.get(name), table, cases[0], 100.0) for name in accuracies]
        of_loss = [_mean(of_key, name, printed.get(name), table, cases[0], None) for name in losses]
        rows.append(_row(key, keys, {"accuracy": of_accuracy, "loss": of_loss}))
    groups = (
        ColumnGroup("accuracy", "accuracy (%) after round r, from 1", tuple(accuracies), 2, "accuracy_percent"),
        ColumnGroup("loss", "test loss of logits / T", tuple(losses), 4, paper_digits=4),
    )
    lines = measured_line(runs) + paper_lines(frame, runs, table)
    return rows, row_heads(keys), groups, lines


def printed_row(table: PrintedTable, case: str, key: RowSetting) -> list[float]:
    """Return the printed row; [] if the paper does not print this row, as for learning rate controls."""
    if key.control or key.other:
        return []
    row: list[float] = table.values.get(case, {}).get(key.temperature, [])
    return row


def unreached(case: str, rows: pd.DataFrame, curves: Mapping[str, LearningCurve]) -> list[str]:
    """Return lines that list the seeds excluded from the mean rounds and speed-up, with reasons.

    ``rows``: the rows of one case in :func:`chilling_frame`.
    """
    reasons = []
    trained = rows[rows["finished"]]
    for key, of_key in trained.groupby("key", sort=False):
        short = short_of_goal(of_key)
        open_ended = of_key[of_key["goal"].isna()]
        missed = f"target not reached within {short['ran'].min()} rounds"
        for reason, seeds in ((missed, short["seed"]), ("no target, since its T=4 run is missing", open_ended["seed"])):
            if len(seeds):
                named = f"{key.name}, seed {', '.join(map(str, sorted(seeds)))}"
                reasons.append((reason, named))
    lines = [f"{case}: {reason}: {'; '.join(names)}." for reason, names in by_key(reasons).items()]
    if any(len(curves[run_id].rows) < curves[run_id].rounds for run_id in trained["run_id"]):
        lines.append(f"{case}: not every round was evaluated, so the numbers of rounds are upper bounds.")
    return lines


def paper_lines(rows: pd.DataFrame, runs: Iterable[Run], table: PrintedTable | None) -> list[str]:
    """Return lines that report missing runs, data other than the paper's, and the source of the paper's values.

    ``rows``: :func:`case_rows` of ``runs``.
    """
    names = rows["case"] + " " + rows["key"].map(lambda key: key.name)
    lines = absences(rows, names) + sources(runs)
    for case, of_case in rows.groupby("case", sort=False):
        lines += other_data(case, of_case["run"], table)
    return lines + cited(table)


def chilling_frame(rows: pd.DataFrame, curves: dict[str, LearningCurve], target: float | str) -> pd.DataFrame:
    """Return ``rows`` of :func:`case_rows` with additional columns for the tables.

    Args:
        rows: Result of :func:`case_rows`.
        curves: Learning curve of each finished run, by run id.
        target: Accuracy to reach, or "best_of_T4": the best accuracy of the T=4 run with the same case, seed
            and other settings.

    Returns:
        The frame with ``other`` (further settings), ``finished``, ``ran`` (number of rounds), ``goal`` (accuracy to
        reach) and each of :data:`CHILLING_COLUMNS`. Values are NaN if unknown or if the goal is not reached.
    """
    import pandas as pd

    frame = rows.assign(other=[key.other for key in rows["key"]]).reset_index(drop=True)
    curve_of = [curves.get(run_id) for run_id in frame["run_id"]]
    frame["finished"] = frame["run_id"].isin(curves)
    frame["goal"] = target
    if target == "best_of_T4":
        best = frame["run_id"].map({run_id: curve.best for run_id, curve in curves.items()}).astype("float64")
        frame["goal"] = _of_twin(frame, WARM, best.to_frame("goal"))["goal"]
    frame["ran"] = [curve.rounds if curve else 0 for curve in curve_of]
    reached = [curve.reaches(goal) if curve else None for curve, goal in zip(curve_of, frame["goal"], strict=True)]
    frame["rounds"] = pd.Series(reached, dtype="float64")
    for name, measure in SHOWN_MEASURES.items():
        last = [curve.rows[-1].get(measure) if curve else None for curve in curve_of]
        frame[name] = pd.Series(last, dtype="float64")
    plain = _of_twin(frame, 1.0, frame[["accuracy", "rounds"]])
    return frame.assign(
        accuracy=100 * frame["accuracy"],
        delta=100 * (frame["accuracy"] - plain["accuracy"]),
        speedup=plain["rounds"] / frame["rounds"],
    )


def _of_twin(frame: pd.DataFrame, temperature: float, values: pd.DataFrame) -> pd.DataFrame:
    """Return for each row the ``values`` of the run at ``temperature`` with the same case, other settings and seed."""
    import pandas as pd

    keys = ["case", "other", "seed"]
    twins = frame["key"] == frame["other"].map(lambda other: RowSetting(temperature, other=other))
    known = frame[keys].join(values)[twins].set_index(keys)
    return known.reindex(pd.MultiIndex.from_frame(frame[keys])).set_index(frame.index)


def short_of_goal(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the ``rows`` of :func:`chilling_frame` whose run is finished but did not reach its goal."""
    return rows[rows["finished"] & rows["goal"].notna() & rows["rounds"].isna()]


#: Column -> its measure in the last row of ``rounds.jsonl``.
SHOWN_MEASURES = {"accuracy": "accuracy", "f1": "f1", "loss": "tempered_loss", "plain_loss": "loss"}


def _column(metric: str, head: str, title: str, digits: int = 2, **more: Any) -> ColumnGroup:
    """Return a column without its case."""
    return ColumnGroup("", title, (), digits, metric, head=head, **{"paper_digits": digits, **more})


#: Column -> its description. Losses at T cannot be ranked over temperatures: each T has a different loss.
CHILLING_COLUMNS = {
    "accuracy": _column("accuracy_percent", "accuracy", "in percent"),
    "delta": _column("delta_points", "vs T=1", "accuracy less that of T=1 at the same seed, in points", signed=True),
    "f1": _column("f1", "macro F1", "unweighted mean over classes", 3),
    "loss": _column("loss", "loss at T", "test loss of logits / T, not comparable over T", 3),
    "plain_loss": _column("plain_loss", "loss", "of the logits as they are", 3),
    "rounds": _column("rounds", "rounds", "rounds trained until the target is met", 1, paper_digits=0),
    "speedup": _column("speedup", "speed-up", "rounds of T=1 / rounds at the same seed"),
}
#: Column of a share -> its largest value.
TOPS = {"accuracy": 100.0, "f1": 1.0}
#: Columns that need a target.
OF_TARGET = {"rounds", "speedup"}


TARGETS["best_of_T4"] = best_of_t4
FIGURES.update(gradients=gradient_figure, boundary=boundary_figure, softmax=softmax_figure)
TABLE_KINDS.update(
    temperatures=TableKind(
        temperatures_table, CHILLING_COLUMNS.keys, printed="temperatures", layout=TableLayout(uniform=True)
    ),
    trace=TableKind(trace, printed="trace", needs="chill/mnist_notebook"),
)
