"""Spectral clustering of clients by the distances between their data (FedWaD section 4 and D.5; von Luxburg 2007)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.sparse.csgraph import connected_components, laplacian
from sklearn.cluster import SpectralClustering
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors

from knot_runner.config.settings.methods.transport import ClusteringSettings
from knot_runner.util.errors import UserError

#: Default number of clusters (FedWaD's public code).
CLUSTERS = 5


@dataclass(frozen=True)
class Clusters:
    """The result of a clustering.

    Attributes:
        labels: The cluster index of each client. Clusters are sorted by their lowest client number.
        eigenvalues: The :func:`eigenvalues` of the graph of clients; empty if no graph was built.
    """

    labels: list[int]
    eigenvalues: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def members(self) -> list[list[int]]:
        """Return, for each cluster, the indices of its clients in ascending order."""
        members: list[list[int]] = [[] for _ in set(self.labels)]
        for client, label in enumerate(self.labels):
            members[label].append(client)
        return members


def cluster(matrix: np.ndarray, settings: ClusteringSettings, seed: int) -> Clusters:
    """Group clients into clusters by the squared distances between their data.

    :func:`affinity` builds a graph of the clients. scikit-learn's spectral clustering groups the nodes by k-means.

    Args:
        matrix: Squared distances [N, N], symmetric and non-negative.
        settings: The settings of the clustering.
        seed: Seed of the 10 initializations of k-means.

    Raises:
        UserError: There are more clusters than clients, the number of neighbors is too large, or an entry of
            ``matrix`` is above ``settings.scale``.
    """
    check_clustering(settings, len(matrix))
    if settings.graph == "none":
        return one_cluster(len(matrix))
    graph = affinity(matrix, settings)
    count = settings.clusters
    values = eigenvalues(graph)
    if count is None:
        count = min(CLUSTERS, max(len(matrix) // 2, 1))
    elif count == "eigengap":
        count = eigengap(values)
    labels, notes = _spectral(graph, count, seed)
    if settings.clusters is None and count < CLUSTERS:
        notes.append(f"method.clustering.clusters={count}: chosen as half the number of clients")
    if settings.clusters == "eigengap":
        notes.append(f"method.clustering.clusters={count}: chosen by the widest gap between eigenvalues")
    numbers, _ = pd.factorize(labels)  # in the order of the clusters' first clients
    return Clusters(numbers.tolist(), values.tolist(), notes)


def one_cluster(clients: int) -> Clusters:
    """Return one cluster that contains all clients."""
    return Clusters([0] * clients)


def check_clustering(settings: ClusteringSettings, clients: int) -> None:
    """Raise :class:`UserError` if the settings do not fit the number of clients."""
    if settings.graph == "none":
        return
    if isinstance(settings.clusters, int) and settings.clusters > clients:
        raise UserError(
            f"expected at most {clients} (the number of clients), got {settings.clusters}", "method.clustering.clusters"
        )
    if settings.neighbors is not None and settings.neighbors >= clients:
        raise UserError(
            f"{settings.graph!r} needs more than {settings.neighbors} clients, but there are "
            f"{clients}. Use 'affinity', or at most 'sparse{clients - 1}'",
            "method.clustering.graph",
        )


def affinity(matrix: np.ndarray, settings: ClusteringSettings) -> np.ndarray:
    """Return the edge weights of the graph of clients, shape [N, N]. Each weight is between 0 and 1.

    Let s be ``settings.scale``. Without ``settings.neighbors``, an entry d of ``matrix`` gives the weight (s - d) / s.
    With ``settings.neighbors``, each client selects its ``settings.neighbors`` nearest clients. As in FedWaD's public
    code, a client counts as its own nearest client. An edge has weight 1 if its two clients select each other. The
    weight is 1/2 if only one client selects the other, and 0 if neither does.
    """
    if not np.isfinite(matrix).all() or matrix.min() < 0:
        raise UserError("the clients' distances must be finite and at least 0", "method.clustering")
    if settings.neighbors is not None:
        nearest = NearestNeighbors(n_neighbors=settings.neighbors, metric="precomputed").fit(matrix)
        edges = nearest.kneighbors_graph(matrix).toarray()
        weights: np.ndarray = (edges + edges.T) / 2
        return weights
    scale = largest = float(matrix.max())
    if settings.scale != "largest":
        scale = settings.scale
    if scale < largest:
        raise UserError(
            f"{scale:g} is less than the largest distance ({largest:.1f}). Use at least {largest:.1f}, or 'largest'",
            "method.clustering.scale",
        )
    return (scale - matrix) / scale if scale > 0 else np.ones_like(matrix)


def eigenvalues(graph: np.ndarray) -> np.ndarray:
    """Return the eigenvalues [N] of the normalized Laplacian I - D^{-1/2} W D^{-1/2}, in ascending order.

    W is the matrix ``graph`` of edge weights. D is the diagonal matrix of the row sums of W.
    """
    return np.clip(np.linalg.eigvalsh(laplacian(graph, normed=True)), 0, None)


def eigengap(values: np.ndarray) -> int:
    """Return the number of clusters by the eigengap heuristic (von Luxburg 2007, 8.3).

    The number is the k from 1 to N/2 with the largest gap between eigenvalues k and k + 1. ``values`` holds the N
    eigenvalues in ascending order.
    """
    # More than N/2 clusters would include clusters of one client, which are not useful.
    gaps = np.diff(values)[: max(len(values) // 2, 1)]
    return int(gaps.argmax()) + 1 if len(gaps) else 1


def adjusted_rand(clusters: list[int], groups: list[int] | None) -> float | None:
    """Return the adjusted Rand index between ``clusters`` and the known ``groups`` of clients.

    The index is 1 for equal groupings, and about 0 for random groupings. If ``groups`` is None, the result is None.
    """
    return None if groups is None else float(adjusted_rand_score(groups, clusters))


def _spectral(graph: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """Return the cluster of each client, shape [N], and notes (disconnected graph, fewer clusters than requested)."""
    if count in (1, len(graph)):
        return np.arange(len(graph)) * (count > 1), []
    method = SpectralClustering(
        count, affinity="precomputed", assign_labels="kmeans", n_init=10, random_state=seed % 2**32
    )
    with warnings.catch_warnings(action="ignore"):  # the notes report it with numbers
        labels = method.fit_predict(graph)
    notes = []
    parts = int(connected_components(graph, directed=False, return_labels=False))
    if parts > 1:
        notes.append(
            f"method.clustering.graph: the graph has {parts} separate parts, but {count} clusters are requested"
        )
    clusters = len(set(labels.tolist()))
    if clusters < count:
        notes.append(
            f"method.clustering.clusters: only {clusters} of {count} clusters found, since clients are too similar"
        )
    return labels, notes
