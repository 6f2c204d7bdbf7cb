"""Clusters of a federated run in the terminal."""

from __future__ import annotations

from typing import Any

from knot_runner.report.text import number


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
