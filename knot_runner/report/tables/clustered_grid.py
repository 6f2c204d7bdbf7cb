"""Where a run of clustered federated learning stands in a table, and what is read from its record (FedWaD Tables 1-5).

A row is a data set, an algorithm and a number of clients; a column is a structure of the clients' data, a graph and a
support size. Runs without clusters are the vanilla algorithm; they have no support size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knot_runner.report.row_keys import Cases, case_of, lookup, others
from knot_runner.report.run_folders import Job, Run
from knot_runner.util.errors import UserError

#: ``partition.kind`` -> structure, as the paper calls it; another partition is named as it is.
STRUCTURES = {"pairs": "strong", "shards": "none"}
#: How accuracies of clients are averaged -> what the table says of it.
ACCURACY_WEIGHTINGS = {
    "clusters": "clusters alike, clients in them by test images",
    "weighted": "all clients by test images",
    "unweighted": "all clients alike",
}
#: That of the published tables, and the one that no choice of clusters can favour.
PRINTED, BY_IMAGES = "clusters", "weighted"
GRAPH, SUPPORT = "method.clustering.graph", "method.clustering.otdd.fedwad.support"
#: Settings that rows and columns show in words of their own.
GRID_KEYS = ("task.name", "method.algorithm", "partition", "partition.kind", "partition.clients", GRAPH, SUPPORT)
VANILLA = "vanilla"


@dataclass(frozen=True)
class GridRow:
    """A row. ``other``: more settings in which the runs differ, as text."""

    data: str
    algorithm: str
    clients: int
    other: str = ""

    @property
    def name(self) -> str:
        """In a sentence."""
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
        """The column that this one is compared with."""
        return GridColumn(self.structure, "none", None)

    @property
    def order(self) -> tuple[int, int, str]:
        """Vanilla first, then by support; affinity before nearest neighbours."""
        return (self.support or 0, len(self.graph) if self.graph.startswith("sparse") else 0, self.graph)


#: Row -> column -> seed -> run.
Placed = dict[GridRow, dict[GridColumn, dict[int, Run]]]


def grid_of(runs: Sequence[Run], cases: Cases, algorithms: Mapping[str, str]) -> Placed:
    """``runs`` by row and column. ``algorithms``: method -> how the paper names it; others keep their names.

    A vanilla run that is asked for once per support size counts once. Rows are ordered by ``cases`` and
    ``algorithms``, then by clients. Raises :class:`UserError` for runs that this table has no row for, ValueError for
    two unlike runs of one cell.
    """
    found: dict[GridRow, dict[GridColumn, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for run, other in zip(runs, others([run.job for run in runs], GRID_KEYS), strict=True):
        line, place = _line(run.job, cases, algorithms, other), _place(run.job)
        seeds = found[line][place]
        if seeds.setdefault(run.job.seed, run).job.run_id != run.job.run_id:
            raise ValueError(f"two runs share {line.name}, {place.key} and seed {run.job.seed}")
    data = _ranks([*cases, *(line.data for line in found)])
    names = _ranks([*algorithms.values(), *(line.algorithm for line in found)])
    ordered = sorted(found, key=lambda line: (data[line.data], names[line.algorithm], line.clients, line.other))
    return {line: dict(found[line]) for line in ordered}


def grid_columns(found: Placed) -> list[GridColumn]:
    """The columns of any row: the strong structure first, then none, then others; see :attr:`GridColumn.order`."""
    unlike = {place for columns in found.values() for place in columns}
    rank = _ranks([*STRUCTURES.values(), *sorted(place.structure for place in unlike)])
    return sorted(unlike, key=lambda place: (rank[place.structure], place.order))


def weighted_accuracy(run: Run, weighting: str) -> float | None:
    """Accuracy over clients in percent, averaged by ``weighting``; None of a run that has none.

    Where all clients are one cluster, the mean over clusters is that by images.
    """
    if run.status != "done":
        return None
    means = run.result["metrics"].get("client_accuracy", {})
    one = weighting == PRINTED and _place(run.job).graph == "none"
    value = means.get(PRINTED, means.get(BY_IMAGES)) if one else means.get(weighting)
    return None if value is None else 100 * value


def over_seeds(
    found: Placed, line: GridRow, place: GridColumn, read: Callable[[Run], float | None]
) -> dict[int, float]:
    """What ``read`` finds in the finished runs of one cell, by seed."""
    values = {seed: read(run) for seed, run in found.get(line, {}).get(place, {}).items() if run.status == "done"}
    return {seed: value for seed, value in values.items() if value is not None}


def printed_pair(table: dict[str, Any] | None, line: GridRow, place: GridColumn) -> list[float] | None:
    """The paper's mean and standard deviation of a cell, in percent; None where it prints none."""
    if table is None or line.other:
        return None
    row = table["values"].get(line.data, {}).get(line.algorithm, {}).get(line.clients)
    column = _column(table, place)
    return row[column] if row and column is not None else None


def printed_uplift(table: dict[str, Any] | None, line: GridRow, place: GridColumn) -> list[float] | None:
    """The paper's mean gain of a column over the rows of ``line``'s data set, and its standard deviation, in points."""
    if table is None or line.other:
        return None
    row, column = table["uplift"].get(line.data), _column(table, place)
    return row[column] if row and column is not None else None


def in_words(structure: str) -> str:
    """``strong structure``, ``no structure``."""
    if structure not in STRUCTURES.values():
        return f"partition {structure}"
    return "no structure" if structure == "none" else f"{structure} structure"


def _column(table: dict[str, Any], place: GridColumn) -> int | None:
    wanted = [place.structure, place.graph, place.support]
    return table["columns"].index(wanted) if wanted in table["columns"] else None


# ------------------------------------------------------------------------------------------------------- from settings


def _line(job: Job, cases: Cases, algorithms: Mapping[str, str], other: str) -> GridRow:
    clients = lookup(job.config, "partition.clients")
    if "clustering" not in job.config.get("method", {}):
        raise UserError(f"{job.task} {job.method}: is not federated, so it has no row in a table of clustered runs")
    if not isinstance(clients, int):
        kind = lookup(job.config, "partition.kind")
        raise UserError(f"partition={kind}: has no partition.clients to name a row; pairs and shards have")
    return GridRow(case_of(job, cases), algorithms.get(job.method, job.method), clients, other)


def _place(job: Job) -> GridColumn:
    kind = str(lookup(job.config, "partition.kind"))
    graph = lookup(job.config, GRAPH) or "none"
    return GridColumn(STRUCTURES.get(kind, kind), graph, lookup(job.config, SUPPORT) if graph != "none" else None)


def _ranks(names: Sequence[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate(dict.fromkeys(names))}
