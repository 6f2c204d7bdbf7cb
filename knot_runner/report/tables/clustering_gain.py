"""What clustering gains on the vanilla algorithm: points of accuracy, paired over seeds, with their 95% interval."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from knot_runner.report.statistics import mean_interval
from knot_runner.report.tables.clustered_grid import (
    GridColumn,
    GridRow,
    Placed,
    over_seeds,
    printed_pair,
    weighted_accuracy,
)
from knot_runner.report.text import number


@dataclass(frozen=True)
class Gain:
    """Points that clustering adds to vanilla, averaged over client numbers and then over seeds. ``clients``: over
    which; ``paper``: the same of its means, None where it prints none."""

    mean: float
    half: float | None
    clients: tuple[int, ...]
    seeds: int
    paper: float | None

    @property
    def basis(self) -> str:
        """``N=20, 40; 5 seeds``."""
        seeds = f"{self.seeds} seed" + ("s" if self.seeds != 1 else "")
        return f"N={', '.join(map(str, self.clients))}; {seeds}"

    @property
    def band(self) -> str:
        """``+12.3 ± 4.5``."""
        return signed(self.mean) + (f" ± {number(self.half, 1)}" if self.half is not None else "")


def signed(points: float) -> str:
    """``+12.3``; zero without a sign."""
    return ("+" if round(points, 1) > 0 else "") + number(points, 1)


def gain(
    found: Placed, rows: Sequence[GridRow], place: GridColumn, weighting: str, table: dict[str, Any] | None
) -> Gain | None:
    """What ``place`` adds to vanilla over ``rows`` of one algorithm; None without a pair.

    Per seed the mean over client numbers, of those with the most seeds, so that each seed is over the same ones.
    """
    read = functools.partial(weighted_accuracy, weighting=weighting)
    pairs = {}
    for line in rows:
        ours, plain = (over_seeds(found, line, column, read) for column in (place, place.vanilla))
        pairs[line] = {seed: ours[seed] - plain[seed] for seed in ours.keys() & plain.keys()}
    most = max(map(len, pairs.values()), default=0)
    kept = [line for line in rows if most and len(pairs[line]) == most]
    shared = sorted(set.intersection(*(set(pairs[line]) for line in kept))) if kept else []
    if not shared:
        return None
    mean, half = mean_interval([statistics.fmean(pairs[line][seed] for line in kept) for seed in shared])
    return Gain(mean, half, tuple(line.clients for line in kept), len(shared), _printed(table, kept, place))


def _printed(table: dict[str, Any] | None, rows: Sequence[GridRow], place: GridColumn) -> float | None:
    both = [(printed_pair(table, line, place), printed_pair(table, line, place.vanilla)) for line in rows]
    gains = [ours[0] - plain[0] for ours, plain in both if ours and plain]
    return statistics.fmean(gains) if len(gains) == len(rows) else None
