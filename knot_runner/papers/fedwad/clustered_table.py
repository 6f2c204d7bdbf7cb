"""Tables of clustered federated learning: accuracy by graph and support next to the vanilla algorithm (FedWaD 1-5).

A row is a data set, an algorithm and a number of clients. A column is a structure of the clients' data, a graph and a
support size. Runs without clusters are the vanilla algorithm and have no support size.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.render.table_model import ColumnGroup, Parts, TableCell, TableRow
from knot_runner.report.run_folders import Job, MeasuredRun, Run, is_finished
from knot_runner.report.run_rows import Cases, case_of, one_per_seed, others, preset_cases, ranks, run_rows
from knot_runner.report.tables.footnotes import absences, cited, comparable, other_data, same_data, sources
from knot_runner.report.tables.kind import TableRequest, aggregate
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: ``partition.kind`` -> the paper's name of the structure; other partitions keep their name.
STRUCTURES = {"pairs": "strong", "shards": "none"}
#: Averaging of the clients' accuracies -> its description in the table.
ACCURACY_WEIGHTINGS = {
    "clusters": "mean over clusters; within a cluster, clients weighted by test {examples}",
    "weighted": "mean over clients, weighted by test {examples}",
    "unweighted": "mean over clients, unweighted",
}
#: Weighting of the published tables; weighting that is independent of the choice of clusters.
PRINTED = "clusters"
BY_IMAGES = "weighted"
GRAPH = "method.clustering.graph"
SUPPORT = "method.clustering.otdd.fedwad.support"
#: Settings that rows and columns already describe.
GRID_KEYS = ("task.name", "method.algorithm", "partition", "partition.kind", "partition.num_clients", GRAPH, SUPPORT)
VANILLA = "vanilla"


@dataclass(frozen=True, order=True)
class GridRow:
    """A row; ``other``: further settings in which the runs differ, as text."""

    data: str
    algorithm: str
    clients: int
    other: str = ""

    @property
    def name(self) -> str:
        """Return the row's name for use in a sentence."""
        rest = f" ({self.other})" if self.other else ""
        return f"{self.data} {self.algorithm} N={self.clients}{rest}"


@dataclass(frozen=True)
class GridColumn:
    """A column; ``graph`` none: no clusters; ``support``: S, None without clusters."""

    structure: str
    graph: str
    support: int | None

    @property
    def head(self) -> str:
        """Return the head, such as ``affinity 10``, below a heading that names the structure."""
        return VANILLA if self.graph == "none" else f"{self.graph} {self.support}"

    @property
    def key(self) -> str:
        """Return the key in CSV files, such as ``strong_affinity_S10``."""
        return f"{self.structure}_" + (VANILLA if self.graph == "none" else f"{self.graph}_S{self.support}")

    @property
    def vanilla(self) -> GridColumn:
        """Return the vanilla column with which this one is compared."""
        return GridColumn(self.structure, "none", None)

    @property
    def order(self) -> tuple[int, int, str]:
        """Return the sort key: vanilla first, then by support; affinity before nearest neighbors."""
        return (self.support or 0, len(self.graph) if self.graph.startswith("sparse") else 0, self.graph)


#: Name of the row of gains over all algorithms.
UPLIFT = "mean uplift"
CLUSTERED_HEADS = ("data set", "algorithm", "clients")
Printed = PrintedTable | None


def clustered(request: TableRequest) -> Parts:
    """Return a row per data set, algorithm and number of clients, plus a row of gains per data set.

    There is a block of columns per structure and weighting (``metrics``: of :data:`ACCURACY_WEIGHTINGS`). The paper's
    numbers are shown with its weighting only.

    Raises:
        UserError: A run does not belong in this table.
    """
    table = request.printed
    metrics = request.metrics
    frame = clustered_frame(request.runs, preset_cases({}, table), table.algorithms if table else {})
    texts = all("datasets" in run.config["task"] for run in frame["run"])
    columns = _columns(grid_columns(frame), metrics, "texts" if texts else "images")
    heads = (*CLUSTERED_HEADS, "settings") if any(frame["other"]) else CLUSTERED_HEADS
    rows: list[TableRow] = []
    for (data, other), members in frame.groupby(["data", "other"], sort=False):
        printed = None if other else table
        for line, own in members.groupby("line", sort=False):
            cells = {}
            for group, places, weighting in columns:
                cells[group.key] = [_cell(own, line, printed, place, weighting) for place in places]
            names = (data, line.algorithm, str(line.clients), other)[: len(heads)]
            rows.append(TableRow(names, names, cells))
        paper = table.values.get(data, {}) if table else {}
        uplifts = {}
        needed = [GridRow(data, algorithm, clients, other) for algorithm, own in paper.items() for clients in own]
        needed = needed or list(members["line"].unique())  # where the paper has no rows of this data set
        for group, places, weighting in columns:
            uplifts[group.key] = [_uplift(members, needed, printed, place, weighting) for place in places]
        names = (data, UPLIFT, "", other)[: len(heads)]
        rows.append(TableRow(names, names, uplifts))
    note = " The unweighted mean over clusters is the paper's; it favors small clusters." if PRINTED in metrics else ""
    legend = (
        "Behind a graph: S, points of the interpolating measures. The paper's ± is the standard deviation over trials. "
        f"{UPLIFT}: points above vanilla, mean ± standard deviation over rows, as the paper has it.{note}"
    )
    lines = [legend, *_under(frame, rows, table), *cited(table)]
    return rows, heads, [group for group, _, _ in columns], lines


def _columns(
    of: Sequence[GridColumn], metrics: Sequence[str], examples: str
) -> list[tuple[ColumnGroup, list[GridColumn], str]]:
    """Return (column group, its grid columns, weighting) per structure, weighting and support size.

    Vanilla is in the group of the smallest support.
    """
    columns = []
    for structure in dict.fromkeys(place.structure for place in of):
        own = [place for place in of if place.structure == structure]
        supports: list[int | None] = [*sorted({place.support for place in own if place.support is not None})] or [None]
        words = "no structure" if structure == "none" else f"{structure} structure"
        if structure not in STRUCTURES.values():
            words = f"partition {structure}"
        for metric in metrics:
            weights = ACCURACY_WEIGHTINGS[metric].format(examples=examples)
            title = f"{words}: accuracy in percent, {weights}"
            for support in supports:
                shown = {support, None} if support == supports[0] else {support}
                places = [place for place in own if place.support in shown]
                names = tuple(place.key for place in places)
                heads = tuple(place.head for place in places)
                key = f"{metric} {' '.join(names)}"
                unit = f"accuracy_{metric}_percent"
                group = ColumnGroup(key, title, names, 1, unit, title, heads=heads, paper_digits=1)
                columns.append((group, places, metric))
    return columns


def _cell(own: pd.DataFrame, line: GridRow, table: Printed, place: GridColumn, weighting: str) -> TableCell:
    there = own[own["key"] == place.key]
    mean = None
    std = None
    if table is not None and weighting == PRINTED:
        by_clients = table.values.get(line.data, {}).get(line.algorithm, {})
        mean, std = printed_pair(table, by_clients.get(line.clients), place)
    like = comparable(there["run"]) and same_data(there["run"], table, line.data)
    cell = aggregate(there[weighting].dropna(), there, mean, like, top=100.0)
    return dataclasses.replace(cell, paper_std=std)


def _uplift(
    members: pd.DataFrame, needed: Sequence[GridRow], table: Printed, place: GridColumn, weighting: str
) -> TableCell:
    """Return the mean and standard deviation over rows of the gain of clustering over vanilla.

    The cell is empty unless all ``needed`` rows exist, because a mean over other rows is a different number.
    """
    if place == place.vanilla:
        return TableCell()
    mean = None
    std = None
    if table is not None and weighting == PRINTED:
        mean, std = printed_pair(table, table.uplift.get(needed[0].data), place)
    gains = []
    counts = []
    planned = []
    for line in needed:
        own = members[members["line"] == line]
        there = own[own["key"] == place.key]
        ours, plain = (rows[weighting].dropna() for rows in (there, own[own["key"] == place.vanilla.key]))
        if ours.empty or plain.empty:
            return TableCell(paper=mean, paper_std=std)
        gains.append(statistics.fmean(ours) - statistics.fmean(plain))
        counts += [len(ours), len(plain)]
        planned.append(len(there))
    spread = statistics.pstdev(gains) if len(gains) > 1 else None  # undefined for one row
    return TableCell(
        statistics.fmean(gains), n=min(counts), planned=min(planned), paper=mean, std=spread, paper_std=std
    )


def _under(frame: pd.DataFrame, rows: Sequence[TableRow], table: Printed) -> list[str]:
    """Return footnotes on missing runs and on data that differ from the paper's."""
    lines = absences(frame, frame["line"].map(lambda line: line.name)) + sources(frame["run"])
    for data, own in frame.groupby("data", sort=False):
        lines += other_data(data, own["run"], table)
        uplifts = [row for row in rows if row.keys[:2] == (data, UPLIFT)]
        if any(all(cell.mean is None for cells in row.cells.values() for cell in cells) for row in uplifts):
            lines.append(f"{data}: no mean uplift, since some rows of this data set are missing.")
    return lines


def clustered_frame(runs: Sequence[Run], cases: Cases, algorithms: Mapping[str, str]) -> pd.DataFrame:
    """Return a row per cell and seed.

    Columns: ``line`` (:class:`GridRow`) and its parts, ``place`` (:class:`GridColumn`) and its ``key``, ``seed`` and
    ``run``; for a finished run also its accuracy over clients in percent by each of :data:`ACCURACY_WEIGHTINGS`.

    ``algorithms``: method -> its name in the paper; others keep their names. A vanilla run that is requested once per
    support size counts once. Rows are ordered by ``cases`` and ``algorithms``, then by clients.

    Raises:
        UserError: This table has no row for a run.
        ValueError: Two different runs have the same cell.
    """
    import pandas as pd

    places = []
    for run, other in zip(runs, others(runs, GRID_KEYS), strict=True):
        kind = str(run.setting("partition.kind"))
        graph = run.setting(GRAPH) or "none"
        place = GridColumn(STRUCTURES.get(kind, kind), graph, run.setting(SUPPORT) if graph != "none" else None)
        line = _line(run, cases, algorithms, other)
        measured = _measured(run, place) if is_finished(run) else {}
        places.append({"line": line, **vars(line), "place": place, "key": place.key, **measured})
    columns = dict.fromkeys([*places[0], *ACCURACY_WEIGHTINGS])
    frame = run_rows(runs).join(pd.DataFrame(places, columns=list(columns), dtype=object))
    frame = one_per_seed(frame, ["line", "key"], lambda row: f"{row.line.name}, {row.key}")
    data = ranks([*cases, *frame["data"]])
    names = ranks([*algorithms.values(), *frame["algorithm"]])
    order = frame["line"].map(lambda line: (data[line.data], names[line.algorithm], line.clients, line.other))
    cells = frame.groupby(["line", "key"], sort=False).ngroup()
    return frame.assign(order=order, cell=cells).sort_values(["order", "cell"], kind="stable", ignore_index=True)


def _measured(run: MeasuredRun, place: GridColumn) -> dict[str, float]:
    """Return a finished run's accuracy over clients in percent, by weighting."""
    means = dict(run.result.metrics.get("client_accuracy", {}))
    if place.graph == "none":  # one cluster, so the mean over clusters is that by images
        means.setdefault(PRINTED, means.get(BY_IMAGES))
    return {how: 100 * means[how] for how in ACCURACY_WEIGHTINGS if means.get(how) is not None}


def grid_columns(frame: pd.DataFrame) -> list[GridColumn]:
    """Return the columns of any row: the strong structure first, then none, then others.

    See :attr:`GridColumn.order`.
    """
    unlike = set(frame["place"])
    rank = ranks([*STRUCTURES.values(), *sorted(place.structure for place in unlike)])
    return sorted(unlike, key=lambda place: (rank[place.structure], place.order))


def printed_pair(
    table: PrintedTable, row: list[list[float]] | None, place: GridColumn
) -> tuple[float | None, float | None]:
    """Return the mean and deviation printed in column ``place`` of a ``row`` of ``table``, or None."""
    wanted = [place.structure, place.graph, place.support]
    if not row or wanted not in table.columns:
        return None, None
    mean, std = row[table.columns.index(wanted)]
    return mean, std


def _line(job: Job, cases: Cases, algorithms: Mapping[str, str], other: str) -> GridRow:
    clients = job.setting("partition.num_clients")
    if "clustering" not in job.config.get("method", {}):
        raise UserError(f"task={job.task} method={job.method}: not federated, so a clustered table cannot show it")
    if not isinstance(clients, int):
        kind = job.setting("partition.kind")
        raise UserError("rows need partition.num_clients, which is not set. Use pairs or shards", f"partition={kind}")
    return GridRow(case_of(job, cases), algorithms.get(job.method, job.method), clients, other)
