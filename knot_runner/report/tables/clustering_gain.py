"""Gain of clustering over the vanilla algorithm: points of accuracy, paired over seeds, with 95% intervals; and
footnotes on it and on recovery of the planted groups. Whether a gain is significant is for claims to decide."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knot_runner.report.render.text import signed, signed_with_half
from knot_runner.report.statistics.intervals import mean_interval
from knot_runner.report.tables import clustered_grid as grid
from knot_runner.util.messages import counted

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Gain:
    """Points gained over vanilla, averaged over client numbers and then over seeds. ``clients``: the client numbers;
    ``paper``: the same from the paper's means, None if not printed."""

    mean: float
    half: float | None
    clients: tuple[int, ...]
    seeds: int
    paper: float | None

    @property
    def basis(self) -> str:
        """``N=20, 40; 5 seeds``."""
        return f"N={', '.join(map(str, self.clients))}; {counted(self.seeds, 'seed')}"

    @property
    def band(self) -> str:
        """``+12.3 ± 4.5``."""
        return signed_with_half(self.mean, self.half)


def gain(accuracies: pd.DataFrame, place: grid.GridColumn, table: dict[str, Any] | None) -> Gain | None:
    """Gain of ``place`` over vanilla in the ``accuracies`` (:func:`grid.by_column`) of one algorithm; None without
    a pair.

    Each seed's mean is over the client numbers with the most seeds, so that all seeds average the same ones.
    """
    both = accuracies.reindex(columns=[place.key, place.vanilla.key])
    pairs = (both[place.key] - both[place.vanilla.key]).dropna().unstack("seed")  # client numbers x seeds
    counts = pairs.count(axis=1)
    kept = pairs[counts == counts.max()].dropna(axis=1)
    if kept.empty:
        return None
    mean, half = mean_interval([statistics.fmean(kept[seed]) for seed in kept])
    clients = tuple(line.clients for line in kept.index)
    return Gain(mean, half, clients, kept.shape[1], _printed_gain(table, kept.index, place))


def _printed_gain(table: dict[str, Any] | None, rows: Sequence[grid.GridRow], place: grid.GridColumn) -> float | None:
    both = [(grid.printed_pair(table, line, place), grid.printed_pair(table, line, place.vanilla)) for line in rows]
    gains = [ours[0] - plain[0] for ours, plain in both if ours and plain]
    return statistics.fmean(gains) if len(gains) == len(rows) else None


def gain_sentences(frame: pd.DataFrame, table: dict[str, Any] | None) -> list[str]:
    """Footnotes for each data set and structure."""
    columns, lines = grid.grid_columns(frame), []
    for (data, other), rows in frame.groupby(["data", "other"], sort=False):
        for structure in dict.fromkeys(place.structure for place in columns):
            own = [place for place in columns if place.structure == structure and place != place.vanilla]
            title = f"{data}{f' ({other})' if other else ''}, {grid.in_words(structure)}"
            claim = table["claims"].get(structure, "") if table else ""
            lines += _on_gains(title, rows, own, table, claim)
            lines += _average(f"{title}: adjusted Rand index to the planted groups", rows, own, "ari", 2)
            lines += _average(f"{title}: clusters of a single client, mean number", rows, own, "singles", 1)
    return lines


def _on_gains(
    title: str, rows: pd.DataFrame, own: Sequence[grid.GridColumn], table: dict[str, Any] | None, claim: str
) -> list[str]:
    """A line per algorithm on its first column (affinity at the smallest support, if run), and one on all algorithms:
    how much of the mean gain remains when every image has equal weight."""
    lines: list[str] = []
    means: list[tuple[float, float]] = []
    for algorithm, members in rows.groupby("algorithm", sort=False):
        accuracies = [grid.by_column(members, weighting) for weighting in (grid.PRINTED, grid.BY_IMAGES)]
        examples = grid.examples_called(members)
        both = {place: [gain(one, place, table) for one in accuracies] for place in own}
        pairs = {place: (first, second) for place, (first, second) in both.items() if first and second}
        means += [(first.mean, second.mean) for first, second in pairs.values()]
        for place, (first, second) in list(pairs.items())[:1]:
            paper = f"paper {signed(first.paper, 1)}; " if first.paper is not None else ""
            gain_text = f"{first.band} points on vanilla ({paper}by {examples} {second.band}; {first.basis})"
            lines.append(f"{title}, {algorithm}: {place.head} {gain_text}.")
    if means:
        first, second = map(statistics.fmean, zip(*means, strict=True))
        left = f" ({100 * second / first:.0f}% of it)" if first > 0.05 else ""
        paper_claim = f" The paper: {claim}." if claim else ""
        mean = f"mean gain {signed(first, 1)} points, by {grid.examples_called(rows)} {signed(second, 1)}{left}"
        lines.append(f"{title}, all algorithms: {mean}.{paper_claim}")
    return lines


def _average(title: str, rows: pd.DataFrame, own: Sequence[grid.GridColumn], measure: str, digits: int) -> list[str]:
    """A line on the mean of ``measure`` over clusterings: one per number of clients and seed, since all algorithms
    share them."""
    there = rows.dropna(subset=[measure]).drop_duplicates(["key", "clients", "seed"], keep="last")
    means = there.groupby("key")[measure].agg(statistics.fmean)
    entries = [f"{place.head} {means[place.key]:.{digits}f}" for place in own if place.key in means]
    return [f"{title}: {', '.join(entries)}."] if entries else []
