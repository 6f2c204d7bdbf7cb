"""Sentences under a table of clustered federated learning: estimated gains on the vanilla algorithm by both weightings,
and how well the planted groups are found. Whether a gain is sure, claims decide."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from knot_runner.report.run_folders import Run
from knot_runner.report.tables.clustered_grid import (
    BY_IMAGES,
    PRINTED,
    GridColumn,
    GridRow,
    Placed,
    in_words,
    over_seeds,
)
from knot_runner.report.tables.clustering_gain import Gain, gain, signed

#: A column's gain by the paper's weighting and by images.
GainPair = tuple[Gain, Gain]


def sentences(found: Placed, columns: Sequence[GridColumn], table: dict[str, Any] | None) -> list[str]:
    """The sentences of each data set and structure."""
    lines = []
    for data, other in dict.fromkeys((line.data, line.other) for line in found):
        rows = [line for line in found if (line.data, line.other) == (data, other)]
        for structure in dict.fromkeys(place.structure for place in columns):
            own = [place for place in columns if place.structure == structure and place != place.vanilla]
            title = f"{data}{f' ({other})' if other else ''}, {in_words(structure)}"
            claim = table["claims"].get(structure, "") if table else ""
            lines += _on_gains(title, found, rows, own, table, claim)
            agreement = f"{title}: adjusted Rand index to the planted groups"
            singles = f"{title}: clusters of a single client, mean number"
            lines += _average(agreement, found, rows, own, _agreement, 2)
            lines += _average(singles, found, rows, own, _singles, 1)
    return lines


# --------------------------------------------------------------------------------------------------------------- gains


def _on_gains(
    title: str,
    found: Placed,
    rows: Sequence[GridRow],
    own: Sequence[GridColumn],
    table: dict[str, Any] | None,
    claim: str,
) -> list[str]:
    """A line per algorithm, and one on all of them."""
    lines: list[str] = []
    together: list[GainPair] = []
    for algorithm in dict.fromkeys(line.algorithm for line in rows):
        members = [line for line in rows if line.algorithm == algorithm]
        both = {place: [gain(found, members, place, how, table) for how in (PRINTED, BY_IMAGES)] for place in own}
        pairs = {place: (first, second) for place, (first, second) in both.items() if first and second}
        if pairs:
            lines.append(f"{title}, {algorithm}: {_first(pairs)}")
            together += pairs.values()
    if together:
        said = f" The paper: {claim}." if claim else ""
        lines.append(f"{title}, all algorithms: {_left(together)}{said}")
    return lines


def _first(pairs: dict[GridColumn, GainPair]) -> str:
    """The gain of the first column: affinity at the smallest support, where that was run."""
    place, (first, second) = next(iter(pairs.items()))
    paper = f"paper {signed(first.paper)}; " if first.paper is not None else ""
    return f"{place.head} {first.band} points on vanilla ({paper}by images {second.band}; {first.basis})."


def _left(pairs: Sequence[GainPair]) -> str:
    """The mean gain, and how much of it is left when every image counts alike."""
    first, second = (statistics.fmean(one.mean for one in column) for column in zip(*pairs, strict=True))
    left = f" ({100 * second / first:.0f}% of it)" if first > 0.05 else ""
    return f"mean gain {signed(first)} points, by images {signed(second)}{left}."


# ------------------------------------------------------------------------------------------------------------ clusters


def _agreement(run: Run) -> float | None:
    return run.result.get("clusters", {}).get("ari")


def _singles(run: Run) -> float | None:
    sizes = run.result.get("clusters", {}).get("sizes")
    return None if sizes is None else float(sum(size == 1 for size in sizes))


def _average(
    title: str,
    found: Placed,
    rows: Sequence[GridRow],
    own: Sequence[GridColumn],
    read: Callable[[Run], float | None],
    digits: int,
) -> list[str]:
    """The mean over clusterings of what ``read`` finds: one per number of clients and seed, since all algorithms share
    theirs."""
    entries = []
    for place in own:
        values = {
            (line.clients, seed): value for line in rows for seed, value in over_seeds(found, line, place, read).items()
        }
        if values:
            entries.append(f"{place.head} {statistics.fmean(values.values()):.{digits}f}")
    return [f"{title}: {', '.join(entries)}."] if entries else []
