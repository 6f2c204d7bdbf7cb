"""Clusters of a federated run, as ``result.json`` holds them: whether they can be, and what the terminal says."""

from __future__ import annotations

import math
from typing import Any

from knot_runner.report.text import number


def clusters_valid(value: Any, result: dict[str, Any]) -> bool:
    """Whether ``clusters`` says of every client which of the clusters it is in, and fits itself."""
    if not isinstance(value, dict) or not isinstance(value.get("graph"), str):
        return False
    labels, sizes = value.get("labels"), value.get("sizes")
    if not isinstance(labels, list) or len(labels) != result["clients"] or not all(type(c) is int for c in labels):
        return False
    if sizes != [labels.count(c) for c in range(value.get("count", 0))] or sum(sizes) != len(labels):
        return False
    ari, spectrum = value.get("ari"), value.get("eigenvalues")
    index = ari is None or (isinstance(ari, int | float) and -1 <= ari <= 1)
    return (
        index and isinstance(spectrum, list) and all(isinstance(x, int | float) and 0 <= x < math.inf for x in spectrum)
    )


def cluster_lines(result: dict[str, Any]) -> list[str]:
    """``5 clusters (affinity) of 4, 3, 5, 4, 4 clients``, and how they agree with planted groups."""
    clusters = result.get("clusters")
    if clusters is None:
        return []
    if clusters["graph"] == "none":
        return ["one cluster of all clients (method.clustering.graph=none)"]
    sizes = ", ".join(map(str, clusters["sizes"]))
    lines = [f"{clusters['count']} clusters ({clusters['graph']}) of {sizes} clients"]
    if clusters["ari"] is not None:
        lines.append(f"adjusted Rand index to the planted groups {number(clusters['ari'], 3)} (1: the same; 0: chance)")
    return lines
