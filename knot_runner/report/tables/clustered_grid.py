"""Row and column of a clustered federated run in a table, and the values read from its record (FedWaD Tables 1-5).

A row is a data set, an algorithm and a number of clients; a column is a structure of the clients' data, a graph and a
support size. Runs without clusters are the vanilla algorithm; they have no support size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.run_folders import Job, MeasuredRun, Run, is_finished
from knot_runner.report.run_rows import Cases, case_of, one_per_seed, others, ranks, run_rows
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: ``partition.kind`` -> the paper's name of the structure; other partitions keep their name.
STRUCTURES = {"pairs": "strong", "shards": "none"}
#: Averaging of the clients' accuracies -> its description in the table.
ACCURACY_WEIGHTINGS = {
    "clusters": "clusters alike, clients in them by test {examples}",
    "weighted": "all clients by test {examples}",
    "unweighted": "all clients alike",
}
#: Weighting of the published tables; weighting that is independent of the choice of clusters.
PRINTED, BY_IMAGES = "clusters", "weighted"
GRAPH, SUPPORT = "method.clustering.graph", "method.clustering.otdd.fedwad.support"
#: Settings that rows and columns already describe.
GRID_KEYS = ("task.name", "method.algorithm", "partition", "partition.kind", "partition.num_clients", GRAPH, SUPPORT)
VANILLA = "vanilla"


@dataclass(frozen=True, order=True)
class GridRow:
    """A row. ``other``: more settings in which the runs differ, as text."""

    data: str
    algorithm: str
    clients: int
    other: str = ""

    @property
    def name(self) -> str:
        """The row's name for use in a sentence."""
        rest = f" ({self.other})" if self.other else ""
        return f"{self.data} {self.algorithm} N={self.clients}{rest}"


@dataclass(frozen=True)
class GridColumn:
    """A column. ``graph`` none: no clusters; ``support``: S, None without clusters."""

    structure: str
    graph: str
    support: int | None

    @property
    def head(self) -> str:
        """``affinity 10``, below a heading that names the structure."""
        return VANILLA if self.graph == "none" else f"{self.graph} {self.support}"

    @property
    def key(self) -> str:
        """``strong_affinity_S10``, as in CSV files."""
        return f"{self.structure}_" + (VANILLA if self.graph == "none" else f"{self.graph}_S{self.support}")

    @property
    def vanilla(self) -> GridColumn:
        """The vanilla column that this one is compared with."""
        return GridColumn(self.structure, "none", None)

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort key: vanilla first, then by support; affinity before nearest neighbors."""
        return (self.support or 0, len(self.graph) if self.graph.startswith("sparse") else 0, self.graph)


def clustered_frame(runs: Sequence[Run], cases: Cases, algorithms: Mapping[str, str]) -> pd.DataFrame:
    """A row per cell and seed, with ``line`` (:class:`GridRow`) and its parts, ``place`` (:class:`GridColumn`) and its
    ``key``, ``seed`` and ``run``; of a finished run also its accuracy over clients in percent by each of
    :data:`ACCURACY_WEIGHTINGS`.

    ``algorithms``: method -> how the paper names it; others keep their names. A vanilla run that is asked for once per
    support size counts once. Rows are ordered by ``cases`` and ``algorithms``, then by clients. Raises
    :class:`UserError` for runs that this table has no row for, ValueError for two unlike runs of one cell.
    """
    import pandas as pd

    places = []
    for run, other in zip(runs, others(runs, GRID_KEYS), strict=True):
        kind, graph = str(run.setting("partition.kind")), run.setting(GRAPH) or "none"
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
    """A finished run's accuracy over clients in percent, by weighting."""
    means = dict(run.result.metrics.get("client_accuracy", {}))
    if place.graph == "none":  # one cluster, so the mean over clusters is that by images
        means.setdefault(PRINTED, means.get(BY_IMAGES))
    return {how: 100 * means[how] for how in ACCURACY_WEIGHTINGS if means.get(how) is not None}


def grid_columns(frame: pd.DataFrame) -> list[GridColumn]:
    """The columns of any row: the strong structure first, then none, then others; see :attr:`GridColumn.order`."""
    unlike = set(frame["place"])
    rank = ranks([*STRUCTURES.values(), *sorted(place.structure for place in unlike)])
    return sorted(unlike, key=lambda place: (rank[place.structure], place.order))


def printed_pair(
    table: PrintedTable, row: list[list[float]] | None, place: GridColumn
) -> tuple[float | None, float | None]:
    """Mean and standard deviation printed in column ``place`` of a ``row`` of ``table``; None where there are none."""
    wanted = [place.structure, place.graph, place.support]
    if not row or wanted not in table.columns:
        return None, None
    mean, std = row[table.columns.index(wanted)]
    return mean, std


def in_words(structure: str) -> str:
    """``strong structure``, ``no structure``."""
    if structure not in STRUCTURES.values():
        return f"partition {structure}"
    return "no structure" if structure == "none" else f"{structure} structure"


def _line(job: Job, cases: Cases, algorithms: Mapping[str, str], other: str) -> GridRow:
    clients = job.setting("partition.num_clients")
    if "clustering" not in job.config.get("method", {}):
        raise UserError(f"{job.task} {job.method}: is not federated, so it has no row in a table of clustered runs")
    if not isinstance(clients, int):
        kind = job.setting("partition.kind")
        raise UserError("has no partition.num_clients to name a row; pairs and shards have", f"partition={kind}")
    return GridRow(case_of(job, cases), algorithms.get(job.method, job.method), clients, other)
