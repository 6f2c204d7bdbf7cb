"""Tables of federated runs at several temperatures.

- ``temperatures``: results for each case, such as a task and model (FLex&Chill Tables 1 and 2)
- ``trace``: accuracy and loss after each round, next to the values printed in FLex&Chill's public notebook

Runs at different temperatures are compared at the same seed. "Rounds to target" is the number of trained rounds until
the target accuracy is reached. The speed-up of temperature T is this number at T=1, divided by this number at T. The
paper counts rounds from 0, so its values are one less.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from knot_runner.papers.chill.probe_figures import boundary_figure, gradient_figure, softmax_figure
from knot_runner.papers.chill.rows import RowSetting, case_rows, hottest_first
from knot_runner.report.claims.measures import TARGETS, LearningCurve, check_target, with_learning_curves
from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.frame import RunSet
from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.render.table_model import ColumnGroup, Parts, TableCell, TableLayout, TableRow
from knot_runner.report.run_folders import Run
from knot_runner.report.run_rows import measured_line, preset_cases
from knot_runner.report.tables.build import TABLE_KINDS
from knot_runner.report.tables.footnotes import absences, cited, comparable, other_data, sources
from knot_runner.report.tables.kind import TableKind, TableRequest, aggregate
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: The paper counts rounds from 0, so its numbers are one less than the rounds trained.
FROM_0 = 1
#: Temperature of the runs whose best accuracy is the target, and the message if the target is unknown.
WARM = 4.0
NO_TARGET = "no target, since its T=4 run is missing"


def temperatures_table(request: TableRequest) -> Parts:
    """Return a table with a row per temperature and a block of columns per case.

    Each learning rate control has a separate row. A control trains at T=1, with the learning rate divided by a
    temperature.

    ``request.options`` has two entries. ``target`` is the target accuracy or ``best_of_T4``. ``cases`` maps the name of
    each case to the settings of its runs.

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
    for case, (name, column) in itertools.product(frame.case.unique(), columns.items()):
        group = dataclasses.replace(column, key=f"{case}: {name}", columns=(case,), block=case)
        groups[group] = [(case, name)]
    lines = ["; ".join(f"{column.head}: {column.title}" for column in columns.values()) + "."]
    lines += ["Shown: the last round.", *measured_line(runs)]
    if OF_TARGET & set(columns):
        goal = "the best accuracy of the T=4 run of the same seed"
        if target != "best_of_T4":
            goal = f"accuracy {100 * float(target):g}%"
        lines.append(f"Target: {goal}.")
        for case, of_case in frame.groupby("case", sort=False):
            lines += unreached(case, of_case, curves)
    lines += paper_lines(frame, runs, table)
    return *_rows(frame, groups, table, table.columns if table else ()), list(groups), lines


def _rows(
    frame: pd.DataFrame,
    groups: Mapping[ColumnGroup, Sequence[tuple[str, str]]],
    table: PrintedTable | None,
    printed: Sequence[str],
) -> tuple[list[TableRow], tuple[str, ...]]:
    """Return a table row per key in ``frame``, and the heads of the rows.

    ``groups``: group of columns -> (case, column of ``frame``) of each cell. ``printed``: the column names of
    ``table``, in order.
    """
    keys = hottest_first(frame.key)
    heads = ("T", "settings") if any(key.heads[1] for key in keys) else ("T",)
    rows = []
    for key in keys:
        cells: dict[str, list[TableCell]] = {}
        for group, places in groups.items():
            cells[group.key] = []
            for case, name in places:
                of_cell = frame[(frame.key == key) & (frame.case == case)]
                theirs: list[float] = []
                if table and key == RowSetting(key.temperature):  # the paper has no other rows
                    theirs = table.values.get(case, {}).get(key.temperature, [])
                paper = dict(zip(printed, theirs, strict=False)).get(name)
                has_gap = comparable(of_cell.run) and not other_data(case, of_cell.run, table)
                cells[group.key].append(_cell(of_cell, name, paper, has_gap))
        names = key.heads[: len(heads)]
        rows.append(TableRow(names, names, cells))
    return rows, heads


def _cell(rows: pd.DataFrame, name: str, paper: float | None, has_gap: bool) -> TableCell:
    """Return the cell with the mean of column ``name`` over ``rows``, next to the published value ``paper``.

    If some seeds do not reach the target, the cell of the rounds to the target is a text such as ``>300 (2 of 3)``.
    """
    cell = aggregate(rows[name].dropna(), rows, paper, has_gap, TOPS.get(name.partition(" ")[0]))
    if name != "rounds":
        return cell
    short = rows.ran[rows.finished & rows.goal.notna() & rows.rounds.isna()]
    if len(short):
        some = f" ({len(short)} of {len(short) + cell.n})" if cell.n else ""
        return dataclasses.replace(cell, text=f">{short.min():.0f}{some}", gap=None)
    return cell if cell.gap is None else dataclasses.replace(cell, gap=cell.gap - FROM_0)


def trace(request: TableRequest) -> Parts:
    """Return a table of accuracy and loss by temperature, in the rounds that the published table shows.

    The loss is the test loss with the logits divided by T. Rounds are counted from 1.

    Raises:
        UserError: The runs belong to several cases.
    """
    table = request.printed
    assert table is not None  # TABLE_KINDS
    runs, curves = with_learning_curves(request.runs)
    frame = case_rows(runs, preset_cases({}, table))
    cases = frame.case.unique()
    if len(cases) > 1:
        raise UserError(f"a table of rounds shows one task and model, but these runs have several: {'; '.join(cases)}")
    logged = {(run_id, row["round"]): row for run_id, curve in curves.items() for row in curve.rows}

    accuracies = {f"acc r{number}": ("accuracy", number, 100.0) for number in table.accuracy_rounds}
    losses = {f"loss r{number}": ("tempered_loss", number, 1.0) for number in table.loss_rounds}
    for name, (measure, number, scale) in {**accuracies, **losses}.items():
        logs = [logged.get((run_id, number), {}) for run_id in frame.run_id]
        frame[name] = [scale * log.get(measure, math.nan) for log in logs]
    title = "accuracy (%) after round r, from 1"
    groups = {}
    for group in (
        ColumnGroup("accuracy", title, tuple(accuracies), 2, "accuracy_percent"),
        ColumnGroup("loss", "test loss of logits / T", tuple(losses), 4, paper_digits=4),
    ):
        groups[group] = list(itertools.product(cases, group.columns))
    lines = [*measured_line(runs), *paper_lines(frame, runs, table)]
    return *_rows(frame, groups, table, [*accuracies, *losses]), list(groups), lines


def unreached(case: str, rows: pd.DataFrame, curves: Mapping[str, LearningCurve]) -> Iterator[str]:
    """Yield lines about the finished runs whose target is unknown or not reached.

    The mean number of rounds to target and the mean speed-up do not include these runs.

    ``rows``: the rows of ``case`` in the result of :func:`chilling_frame`.
    """
    trained = rows[rows.finished]
    excluded = trained[trained.rounds.isna()]
    missed = "target not reached within " + excluded.ran.astype(int).astype(str) + " rounds"
    for reason, members in excluded.groupby(missed.where(excluded.goal.notna(), NO_TARGET), sort=False):
        seeds = members.sort_values("seed").seed.astype(str).groupby(members.key, sort=False).agg(", ".join)
        names = [f"{key.name}, seed {seeds[key]}" for key in members.key.unique()]
        yield f"{case}: {reason}: {'; '.join(names)}."
    if any(len(curves[run_id].rows) < curves[run_id].rounds for run_id in trained.run_id):
        yield f"{case}: not every round was evaluated, so the numbers of rounds are upper bounds."


def paper_lines(rows: pd.DataFrame, runs: Iterable[Run], table: PrintedTable | None) -> Iterator[str]:
    """Yield lines on missing runs, on differences from the paper's data, and on the source of the published values.

    ``rows``: the result of :func:`case_rows` for ``runs``.
    """
    yield from absences(rows, rows.case + " " + rows.key.map(lambda key: key.name))
    yield from sources(runs)
    for case, of_case in rows.groupby("case", sort=False):
        yield from other_data(case, of_case.run, table)
    yield from cited(table)


def chilling_frame(rows: pd.DataFrame, curves: Mapping[str, LearningCurve], target: float | str) -> pd.DataFrame:
    """Return the frame ``rows`` with added columns for the tables.

    Args:
        rows: Result of :func:`case_rows`.
        curves: Learning curve of each finished run, by run id.
        target: Target accuracy of all runs, or "best_of_T4". With "best_of_T4", the target of a run is the best
            accuracy of the T=4 run that has the same case, the same seed and otherwise equal settings.

    Returns:
        ``rows`` with the columns of :data:`CHILLING_COLUMNS` and these columns:

        - ``other``: the field ``other`` of the row's :class:`RowSetting`
        - ``finished``: whether the run is finished
        - ``ran``: number of rounds of the run
        - ``goal``: target accuracy of the run

        Unknown values are NaN. If the target is not reached, ``rounds`` and ``speedup`` are NaN.
    """
    import pandas as pd

    measured = {}
    for run_id, curve in curves.items():
        last = {name: curve.rows[-1].get(measure) for name, measure in SHOWN_MEASURES.items()}
        measured[run_id] = {"ran": curve.rounds, "best": curve.best, **last}
    names = ["ran", "best", *SHOWN_MEASURES]
    frame = rows.assign(other=[key.other for key in rows.key]).reset_index(drop=True)
    frame = frame.join(pd.DataFrame.from_dict(measured, "index", "float64", names), on="run_id")
    frame = frame.assign(finished=frame.ran.notna(), goal=target)
    if target == "best_of_T4":
        frame["goal"] = _of_twin(frame, WARM, ["best"])
    frame["rounds"] = math.nan
    for row in frame[frame.finished].itertuples():
        frame.loc[row.Index, "rounds"] = curves[row.run_id].reaches(row.goal)
    plain = _of_twin(frame, 1.0, ["accuracy", "rounds"])
    return frame.assign(
        accuracy=100 * frame.accuracy,
        delta=100 * (frame.accuracy - plain.accuracy),
        speedup=plain.rounds / frame.rounds,
    )


def _of_twin(frame: pd.DataFrame, temperature: float, values: list[str]) -> pd.DataFrame:
    """Return each row's ``values`` from the run at ``temperature`` with equal case, other settings and seed."""
    keys = ["case", "other", "seed"]
    twins = frame[frame.key == frame.other.map(lambda other: RowSetting(temperature, other=other))]
    return frame[keys].merge(twins, "left", keys)[values]


#: Column -> its measure in the last row of ``rounds.jsonl``.
SHOWN_MEASURES = {"accuracy": "accuracy", "f1": "f1", "loss": "tempered_loss", "plain_loss": "loss"}


def _column(metric: str, head: str, title: str, digits: int = 2, **more: Any) -> ColumnGroup:
    """Return a group of one column, whose case is set later."""
    return ColumnGroup("", title, (), digits, metric, head=head, **{"paper_digits": digits, **more})


#: Column -> its description. A loss at T depends on T, so losses at different temperatures are not comparable.
CHILLING_COLUMNS = {
    "accuracy": _column("accuracy_percent", "accuracy", "in percent"),
    "delta": _column("delta_points", "vs T=1", "accuracy less that of T=1 at the same seed, in points", signed=True),
    "f1": _column("f1", "macro F1", "unweighted mean over classes", 3),
    "loss": _column("loss", "loss at T", "test loss of logits / T, not comparable over T", 3),
    "plain_loss": _column("plain_loss", "loss", "of the logits as they are", 3),
    "rounds": _column("rounds", "rounds", "rounds trained until the target is met", 1, paper_digits=0),
    "speedup": _column("speedup", "speed-up", "rounds of T=1 / rounds at the same seed"),
}
#: First word of the name of a column that contains shares -> largest possible value of the share.
TOPS = {"accuracy": 100.0, "acc": 100.0, "f1": 1.0}
#: Columns that need a target.
OF_TARGET = {"rounds", "speedup"}


def best_of_t4(runs: RunSet, curves: Mapping[str, LearningCurve]) -> dict[str, float | str]:
    """Return each run's target: the best accuracy of the corresponding T=4 run.

    The T=4 run has the same seed and the same settings, except for ``method.temperature`` and ``method.lr_control``.
    The result is a dict from run id to target. If a target is unknown, the value is a text with the reason.
    """
    frame = chilling_frame(case_rows(list(runs.runs.run), {}), curves, "best_of_T4")
    goals = frame.goal.astype(object)
    goals[frame.goal.isna()] = NO_TARGET
    return dict(zip(frame.run_id, goals, strict=True))


TARGETS.update(best_of_T4=best_of_t4)
FIGURES.update(gradients=gradient_figure, boundary=boundary_figure, softmax=softmax_figure)
TABLE_KINDS.update(
    temperatures=TableKind(
        temperatures_table, CHILLING_COLUMNS.keys, printed="temperatures", layout=TableLayout(uniform=True)
    ),
    trace=TableKind(trace, printed="trace", needs="chill/mnist_notebook"),
)
