"""Tables of federated runs at several temperatures.

They show results by case (FLex&Chill Tables 1 and 2), and accuracy and loss by round next to a printed trace
(FLex&Chill's public notebook).

Runs are paired over seeds. Speed-up = rounds(T=1) / rounds(T). Rounds to target count the rounds until it is reached.
The paper's Table 1 prints the index of the last of these rounds, counted from 0, which is one less.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from knot_runner.papers.chill.probe_figures import boundary_figure, gradient_figure, softmax_figure
from knot_runner.report.claims.measures import WARM, LearningCurve, check_target, with_learning_curves
from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.render.table_model import Cells, ColumnGroup, Parts, TableCell, TableRow
from knot_runner.report.run_folders import Run
from knot_runner.report.run_rows import RowSetting, case_rows, hottest_first, measured_line, preset_cases, row_heads
from knot_runner.report.tables.build import TABLE_KINDS
from knot_runner.report.tables.footnotes import absences, cited, comparable, other_data, same_data, sources
from knot_runner.report.tables.kind import TableKind, TableRequest, aggregate
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts

if TYPE_CHECKING:
    import pandas as pd

#: The paper's rounds are indices from 0: one less than the rounds trained.
FROM_0 = 1


def temperatures_table(request: TableRequest) -> Parts:
    """Return a row per temperature (and rate control), and a block of columns per case.

    ``options``: target (best_of_T4, or an accuracy), cases (name -> settings of its runs).

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
        own = frame[frame["key"] == key]
        cells = {}
        for (case, name), group in groups.items():
            cells[group.key] = (_cell(own[own["case"] == case], key, case, name, table),)
        rows.append(_row(key, keys, cells))
    lines = ["; ".join(f"{column.head}: {column.title}" for column in columns.values()) + "."]
    lines += ["Shown: the last round.", *measured_line(runs)]
    if OF_TARGET & set(columns):
        best = "the best accuracy of the T=4 run of the same seed"
        goal = best if target == "best_of_T4" else f"accuracy {100 * float(target):g}%"
        lines.append(f"Target: {goal}.")
        for case, own in frame.groupby("case", sort=False):
            lines += unreached(case, own, curves)
    lines += paper_lines(frame, runs, table)
    return rows, row_heads(keys), list(groups.values()), lines


def _row(key: RowSetting, keys: Sequence[RowSetting], cells: Cells) -> TableRow:
    """Return the row of ``key`` in a table of the rows ``keys``."""
    names = (key.head, key.settings)[: len(row_heads(keys))]
    return TableRow(names, names, cells)


def _cell(own: pd.DataFrame, key: RowSetting, case: str, name: str, table: PrintedTable | None) -> TableCell:
    """Return the cell of column ``name`` for ``own``, the runs of one case and row."""
    row = printed_row(table, case, key)
    paper = row[table.columns.index(name)] if table and row and name in table.columns else None
    like = comparable(own["run"]) and same_data(own["run"], table, case)
    cell = aggregate(own[name].dropna(), own, paper, like, TOPS.get(name))
    if name != "rounds":
        return cell
    short = short_of_goal(own)
    with_goal = (own["finished"] & own["goal"].notna()).sum()
    if len(short):  # ">300 (2 of 3)": so many seeds do not meet the target within 300 rounds
        some = f" ({len(short)} of {with_goal})" if len(short) < with_goal else ""
        return dataclasses.replace(cell, text=f">{short['ran'].min()}{some}", gap=None)
    return cell if cell.gap is None else dataclasses.replace(cell, gap=cell.gap - FROM_0)


def trace(request: TableRequest) -> Parts:
    """Return a row per temperature, with accuracy and loss at T after the rounds in the printed table, counted from 1.

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
    keys = hottest_first(frame["key"])
    split = len(table.accuracy_rounds)
    rows = []
    for key, own in frame.groupby("key", sort=False):
        cells = _trace_cells(own, curves, table, key)
        rows.append(_row(key, keys, {"accuracy": cells[:split], "loss": cells[split:]}))
    accuracies = tuple(f"acc r{number}" for number in table.accuracy_rounds)
    losses = tuple(f"loss r{number}" for number in table.loss_rounds)
    groups = (
        ColumnGroup("accuracy", "accuracy (%) after round r, from 1", accuracies, 2, "accuracy_percent"),
        ColumnGroup("loss", "test loss of logits / T", losses, 4, paper_digits=4),
    )
    lines = measured_line(runs) + paper_lines(frame, runs, table)
    return rows, row_heads(keys), groups, lines


def _trace_cells(
    own: pd.DataFrame, curves: dict[str, LearningCurve], table: PrintedTable, key: RowSetting
) -> list[TableCell]:
    case = own["case"].iloc[0]
    wanted = [("accuracy", number, 100.0) for number in table.accuracy_rounds]
    wanted += [("tempered_loss", number, 1.0) for number in table.loss_rounds]
    theirs: Sequence[float | None] = printed_row(table, case, key) or [None] * len(wanted)
    like = comparable(own["run"]) and same_data(own["run"], table, case)
    logs = [{row["round"]: row for row in curves[run_id].rows} for run_id in own["run_id"] if run_id in curves]
    cells = []
    for (measure, number, scale), paper in zip(wanted, theirs, strict=True):
        ours = [log[number][measure] * scale for log in logs if number in log]
        cells.append(aggregate(ours, own, paper, like, top=100.0 if measure == "accuracy" else None))
    return cells


def printed_row(table: PrintedTable | None, case: str, key: RowSetting) -> list[float] | None:
    """Return the printed row; None if the paper has none, as for rate controls."""
    if table is None or key.control or key.other:
        return None
    row: list[float] | None = table.values.get(case, {}).get(key.temperature)
    return row


def unreached(case: str, rows: pd.DataFrame, curves: Mapping[str, LearningCurve]) -> list[str]:
    """Return lines on seeds that are excluded from the means of rounds and speed-up, with reasons.

    ``rows``: those of a case, from :func:`chilling_frame`.
    """
    reasons: dict[str, list[str]] = {}
    for key, own in rows[rows["finished"]].groupby("key", sort=False):
        short = short_of_goal(own)
        open_ended = own[own["goal"].isna()]
        missed = f"target not reached within {short['ran'].min()} rounds"
        for reason, seeds in ((missed, short["seed"]), ("no target, since its T=4 run is missing", open_ended["seed"])):
            if len(seeds):
                named = f"{key.name}, seed {', '.join(map(str, sorted(seeds)))}"
                reasons.setdefault(reason, []).append(named)
    there = [curves[run.run_id] for run in rows.loc[rows["finished"], "run"]]
    lines = [f"{case}: {reason}: {'; '.join(named)}." for reason, named in reasons.items()]
    if any(len(curve.rows) < curve.rounds for curve in there):
        lines.append(f"{case}: not every round was evaluated, so the numbers of rounds are upper bounds.")
    return lines


def paper_lines(rows: pd.DataFrame, runs: Iterable[Run], table: PrintedTable | None) -> list[str]:
    """Return lines on missing runs, on data that differ from the paper's, and on the source of its numbers.

    ``rows``: :func:`case_rows` of ``runs``.
    """
    names = rows["case"] + " " + rows["key"].map(lambda key: key.name)
    lines = absences(rows, names) + sources(runs)
    for case, own in rows.groupby("case", sort=False):
        lines += other_data(case, own["run"], table)
    return lines + cited(table)


def chilling_frame(
    rows: pd.DataFrame, curves: dict[str, LearningCurve], target: float | Literal["best_of_T4"]
) -> pd.DataFrame:
    """Return ``rows`` of :func:`case_rows` with the numbers in tables.

    The additional columns are ``other`` (settings of their key), ``finished``, ``ran`` (rounds), ``goal`` (accuracy to
    reach: ``target``, or the best of the T=4 run with the same seed and other settings), and each of
    :data:`CHILLING_COLUMNS`. NaN: unknown, or the goal is not reached.
    """
    import pandas as pd

    frame = rows.assign(other=[key.other for key in rows["key"]]).reset_index(drop=True)
    own = [curves.get(run_id) for run_id in frame["run_id"]]
    frame["finished"] = [curve is not None for curve in own]
    frame["goal"] = target
    if target == "best_of_T4":
        best = pd.Series([curve.best if curve else None for curve in own], dtype="float64")
        frame["goal"] = _of_twin(frame, WARM, best.to_frame("goal"))["goal"]
    found = []
    for curve, goal in zip(own, frame["goal"], strict=True):
        facts: Facts = {"ran": 0}  # of a run that is not finished
        if curve is not None:
            shown = {name: curve.rows[-1].get(measure) for name, measure in SHOWN_MEASURES.items()}
            facts = {"ran": curve.rounds, "rounds": curve.reaches(goal), **shown}
        found.append(facts)
    measures = ["rounds", *SHOWN_MEASURES]
    numbers = pd.DataFrame(found, columns=["ran", *measures])
    frame = frame.join(numbers.astype(dict.fromkeys(measures, "float64")))
    plain = _of_twin(frame, 1.0, frame[["accuracy", "rounds"]])
    return frame.assign(
        accuracy=100 * frame["accuracy"],
        delta=100 * (frame["accuracy"] - plain["accuracy"]),
        speedup=plain["rounds"] / frame["rounds"],
    )


def _of_twin(frame: pd.DataFrame, temperature: float, values: pd.DataFrame) -> pd.DataFrame:
    """Return for each row the ``values`` of the run at ``temperature`` with the same case, other settings and seed."""
    import pandas as pd

    place = ["case", "other", "seed"]
    twins = frame["key"] == frame["other"].map(lambda other: RowSetting(temperature, other=other))
    known = frame[place].join(values)[twins].set_index(place)
    return known.reindex(pd.MultiIndex.from_frame(frame[place])).set_index(frame.index)


def short_of_goal(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the ``rows`` (of :func:`chilling_frame`) whose finished run does not reach its goal."""
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


FIGURES.update(gradients=gradient_figure, boundary=boundary_figure, softmax=softmax_figure)
TABLE_KINDS.update(
    temperatures=TableKind(temperatures_table, CHILLING_COLUMNS.keys, printed="temperatures"),
    trace=TableKind(trace, printed="trace", needs="chill/mnist_notebook"),
)
