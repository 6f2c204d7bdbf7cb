"""The table of clustered federated learning: accuracy with and without clusters (FedWaD Tables 1-5).

Each row is a combination of data set, algorithm and number of clients. Each column is a combination of these settings:

- structure: the type of partition
- similarity graph
- support size S: the number of points of FedWaD's interpolating measure

Runs without clusters are called vanilla and have no support size.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from knot_runner.config.strict import by_key
from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.render.table_model import ColumnGroup, Parts, TableCell, TableRow
from knot_runner.report.run_folders import Run
from knot_runner.report.run_rows import Cases, case_of, one_per_seed, others, preset_cases, ranks, run_rows
from knot_runner.report.tables.footnotes import absences, cited, comparable, other_data, sources
from knot_runner.report.tables.kind import TableRequest, aggregate
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: ``partition.kind`` -> the paper's name of the structure; other partitions keep their name.
STRUCTURES = {"pairs": "strong", "shards": "none"}
#: Weighting of the clients' accuracies in the mean -> its description in the table.
ACCURACY_WEIGHTINGS = {
    "clusters": "mean over clusters; within a cluster, clients weighted by test {examples}",
    "weighted": "mean over clients, weighted by test {examples}",
    "unweighted": "mean over clients, unweighted",
}
#: Weighting in the published tables, and a weighting whose mean does not depend on the clusters.
PRINTED = "clusters"
BY_IMAGES = "weighted"
GRAPH = "method.clustering.graph"
SUPPORT = "method.clustering.otdd.fedwad.support"
#: Settings that rows and columns already describe.
GRID_KEYS = ("task.name", "method.algorithm", "partition", "partition.kind", "partition.num_clients", GRAPH, SUPPORT)
VANILLA = "vanilla"


@dataclass(frozen=True)
class GridColumn:
    """A table column: a combination of partition structure, similarity graph and support size S.

    For runs without clusters, ``graph`` is "none" and ``support`` is None.
    """

    structure: str
    graph: str
    support: int | None

    @property
    def head(self) -> str:
        """Return the column's head without the structure, such as ``affinity 10``."""
        return VANILLA if self.graph == "none" else f"{self.graph} {self.support}"

    @property
    def key(self) -> str:
        """Return the column's key in CSV files, such as ``strong_affinity_S10``."""
        return f"{self.structure}_{self.head.replace(' ', '_S')}"


#: Name of the row with the mean gain of clustering over all algorithms.
UPLIFT = "mean uplift"
CLUSTERED_HEADS: tuple[str, ...] = ("data set", "algorithm", "clients")
#: The paper's mean and standard deviation of a cell; None if not printed.
PrintedPair = tuple[float | None, float | None]
#: One :data:`PrintedPair` per column of the paper's table.
PrintedRow = list[PrintedPair] | None


def clustered(request: TableRequest) -> Parts:
    """Return the table of accuracies. Each combination of data set, algorithm and number of clients has a row.

    Each data set has one more row, with mean gains. A gain is the accuracy with clustering minus the accuracy without
    clustering.

    ``request.metrics`` holds keys of :data:`ACCURACY_WEIGHTINGS`. Each key selects a weighting of the clients. Each
    combination of structure, weighting and support size has a block of columns. The published values are shown only for
    the paper's weighting.

    Raises:
        UserError: A run has no federated results, or its setting ``partition.num_clients`` is missing.
    """
    table = request.printed
    published = table or PrintedTable("", "", "", "", "")
    metrics = request.metrics
    frame = clustered_frame(request.runs, preset_cases({}, table), published.algorithms)
    blocks = _blocks(frame, metrics)
    heads = (*CLUSTERED_HEADS, "settings") if any(frame.other) else CLUSTERED_HEADS
    rows = []

    def add(
        names: tuple[str, ...], printed: PrintedRow, make: Callable[[GridColumn, str, PrintedPair], TableCell]
    ) -> None:
        cells: dict[str, list[TableCell]] = {}
        for group, columns, weighting in blocks:
            cells[group.key] = []
            for column in columns:
                place = [column.structure, column.graph, column.support]
                pair = None
                if printed and weighting == PRINTED and not names[3] and place in published.columns:
                    pair = printed[published.columns.index(place)]  # vanilla has no uplift
                cells[group.key].append(make(column, weighting, pair or (None, None)))
        rows.append(TableRow(names[: len(heads)], names[: len(heads)], cells))

    for (data, other), members in frame.groupby(["data", "other"], sort=False):
        printed_rows = published.values.get(data, {})
        for (algorithm, clients), of_row in members.groupby(["algorithm", "clients"], sort=False):
            has_gap = comparable(of_row.run) and not other_data(data, of_row.run, table)
            printed = printed_rows.get(algorithm, {}).get(clients)
            add((data, algorithm, str(clients), other), printed, partial(_cell, of_row, has_gap))
        needed = []
        for algorithm, by_clients in printed_rows.items():
            needed += [row_name(data, algorithm, clients, other) for clients in by_clients]
        needed = needed or list(members.row.unique())  # where the paper has no rows of this data set
        add((data, UPLIFT, "", other), published.uplift.get(data), partial(_uplift, members, needed))
    legend = (
        "The number after a graph is S, the number of points of the interpolating measures. The paper's ± is the "
        f"standard deviation over trials. {UPLIFT}: points above vanilla, as mean ± standard deviation over rows, as "
        "in the paper; empty if a row is missing."
    )
    if PRINTED in metrics:
        legend += " The unweighted mean over clusters is the paper's; it favors small clusters."
    lines = [legend, *absences(frame, frame.row), *sources(frame.run)]
    for data, members in frame.groupby("data", sort=False):
        lines += other_data(data, members.run, table)
    return rows, heads, [group for group, _, _ in blocks], [*lines, *cited(table)]


def row_name(data: str, algorithm: str, clients: int, other: str) -> str:
    """Return the name of a table row for use in a sentence. ``other``: all other settings, as text."""
    return f"{data} {algorithm} N={clients} ({other})".removesuffix(" ()")


def _blocks(frame: pd.DataFrame, metrics: Sequence[str]) -> list[tuple[ColumnGroup, list[GridColumn], str]]:
    """Return (column group, its grid columns, weighting) for each structure, weighting and support size.

    The vanilla column is part of the group with the smallest support.
    """
    examples = "texts" if all(run.setting("task.datasets") for run in frame.run) else "images"
    words = {"none": "no structure", "strong": "strong structure"}
    blocks = []
    for structure, columns in by_key((column.structure, column) for column in grid_columns(frame)).items():
        supports = sorted({column.support for column in columns} - {None}) or [None]
        for metric, support in itertools.product(metrics, supports):
            shown = [column for column in columns if (column.support or supports[0]) == support]
            names = tuple(column.key for column in shown)
            averaged = ACCURACY_WEIGHTINGS[metric].format(examples=examples)
            title = f"{words.get(structure, f'partition {structure}')}: accuracy in percent, {averaged}"
            group = ColumnGroup(
                f"{metric} {' '.join(names)}", title, names, 1, f"accuracy_{metric}_percent", title,
                heads=tuple(column.head for column in shown), paper_digits=1,
            )  # fmt: skip
            blocks.append((group, shown, metric))
    return blocks


def _cell(rows: pd.DataFrame, has_gap: bool, column: GridColumn, weighting: str, printed: PrintedPair) -> TableCell:
    rows = rows[rows.key == column.key]
    cell = aggregate(rows[weighting].dropna(), rows, printed[0], has_gap, top=100.0)
    return dataclasses.replace(cell, paper_std=printed[1])


def _uplift(
    members: pd.DataFrame, needed: Sequence[str], column: GridColumn, weighting: str, printed: PrintedPair
) -> TableCell:
    """Return the cell with the gain of clustering over the vanilla algorithm: mean and standard deviation over rows.

    The cell is empty if one of the ``needed`` rows is missing, because a mean over fewer rows is not comparable.
    """
    vanilla = GridColumn(column.structure, "none", None)
    if column == vanilla:
        return TableCell()
    mean, std = printed
    by_row = members.groupby(["row", "key"])[weighting]
    means = by_row.mean().unstack().reindex(index=needed, columns=[column.key, vanilla.key])
    gains = (means[column.key] - means[vanilla.key]).to_numpy()
    if np.isnan(gains).any():
        return TableCell(paper=mean, paper_std=std)
    spread = float(gains.std()) if len(gains) > 1 else None  # undefined for a single row
    counts = by_row.count().unstack().loc[needed]
    seeds = int(counts[[column.key, vanilla.key]].min(axis=None))
    planned = int(by_row.size().unstack().loc[needed, column.key].min())
    return TableCell(float(gains.mean()), n=seeds, planned=planned, paper=mean, std=spread, paper_std=std)


def clustered_frame(runs: Sequence[Run], cases: Cases, algorithms: Mapping[str, str]) -> pd.DataFrame:
    """Return a frame with one row per table cell and seed.

    In addition to the columns of :func:`run_rows`, the frame has these columns:

    - ``data``, ``algorithm``, ``clients``, ``other``: the parts of the table row's name
    - ``row``: the name of the table row (:func:`row_name`)
    - ``column``: the :class:`GridColumn` of the cell
    - ``key``: the key of the :class:`GridColumn`
    - one column per weighting in :data:`ACCURACY_WEIGHTINGS`: the mean accuracy in percent; NaN for unfinished runs

    Rows are ordered by ``cases``, then by ``algorithms``, then by number of clients. ``algorithms`` maps each method to
    the method's name in the paper.

    Raises:
        UserError: A run has no federated results, or its setting ``partition.num_clients`` is missing.
        ValueError: Two different runs have the same cell and seed.
    """
    import pandas as pd

    cells = []
    for run, other in zip(runs, others(runs, GRID_KEYS), strict=True):
        kind = str(run.setting("partition.kind"))
        graph = run.setting(GRAPH) or "none"
        clients = run.setting("partition.num_clients")
        if "clustering" not in run.config.get("method", {}):
            problem = "the run has no federated results, so tables of kind 'clustered' cannot show it"
            raise UserError(f"task={run.task} method={run.method}: {problem}")
        if not isinstance(clients, int):
            problem = "partition.num_clients is not set, but the table has one row per number of clients"
            raise UserError(problem, f"partition={kind}", hint="Use partition=pairs or shards")
        column = GridColumn(STRUCTURES.get(kind, kind), graph, run.setting(SUPPORT) if graph != "none" else None)
        parts = (case_of(run, cases), algorithms.get(run.method, run.method), clients, other)
        accuracies = [run.metric("client_accuracy", weighting) for weighting in ACCURACY_WEIGHTINGS]
        cells.append((*parts, row_name(*parts), column, column.key, *accuracies))
    columns = ["data", "algorithm", "clients", "other", "row", "column", "key", *ACCURACY_WEIGHTINGS]
    frame = run_rows(runs).join(pd.DataFrame(cells, columns=columns))
    percent = 100 * frame[list(ACCURACY_WEIGHTINGS)].astype(float)
    vanilla = percent[BY_IMAGES].where(frame.key.str.endswith(VANILLA))  # one cluster: same as the mean over images
    frame = frame.assign(**percent.assign(**{PRINTED: percent[PRINTED].fillna(vanilla)}))
    frame = one_per_seed(frame, ["row", "key"], lambda row: f"{row.row}, {row.key}")
    frame["case"] = frame.data.map(ranks([*cases, *frame.data]))
    frame["rank"] = frame.algorithm.map(ranks([*algorithms.values(), *frame.algorithm]))
    return frame.sort_values(["case", "rank", "clients", "other"], kind="stable", ignore_index=True)


def grid_columns(frame: pd.DataFrame) -> list[GridColumn]:
    """Return the distinct columns in ``frame``, in the order of the table.

    Columns of the strong structure come first, then columns without structure, then columns of other structures. Within
    a structure, the column without clusters comes first. The other columns are sorted by support size. At equal support
    size, affinity graphs come before nearest-neighbor graphs.
    """
    columns = set(frame.column)
    rank = ranks([*STRUCTURES.values(), *sorted(column.structure for column in columns)])

    def order(column: GridColumn) -> tuple[int, int, int, str]:
        neighbors = column.graph.removeprefix("sparse")
        return rank[column.structure], column.support or 0, int(neighbors) if neighbors.isdigit() else 0, column.graph

    return sorted(columns, key=order)
