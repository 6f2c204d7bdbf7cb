"""A quantity over rounds: its mean over seeds, and the band from the lowest to the highest."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knot_runner.report.text import escape_csv


@dataclass(frozen=True)
class Band:
    """``rounds`` [R] int; ``mean``, ``low``, ``high`` [R] over ``seeds`` runs."""

    rounds: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int


def band(series: Sequence[dict[int, float]]) -> Band:
    """The band of several runs, over the rounds in which each of them has a value."""
    rounds = sorted(set.intersection(*(set(one) for one in series)))
    values = np.array([[one[number] for number in rounds] for one in series], dtype=float)
    return Band(np.array(rounds, dtype=int), values.mean(0), values.min(0), values.max(0), len(series))


def smoothed(series: dict[int, float], window: int) -> dict[int, float]:
    """Running means over ``window`` successive values, centred, of fewer at both ends."""
    if len(series) < window:
        return series
    ones, values = np.ones(window), np.array(list(series.values()))
    means = np.convolve(values, ones, "same") / np.convolve(np.ones(len(values)), ones, "same")
    return dict(zip(series, means.tolist(), strict=True))


def series_csv(bands: Sequence[tuple[tuple[str, str, str, str], Band]]) -> str:
    """One line per case, temperature, settings, quantity and round: mean, low, high, seeds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["case", "T", "settings", "quantity", "round", "mean", "low", "high", "seeds"])
    for names, one in bands:
        for number, *values in zip(one.rounds, one.mean, one.low, one.high, strict=True):
            exact = [f"{value:.10g}" for value in np.round(values, 6)]
            writer.writerow([*map(escape_csv, names), number, *exact, one.seeds])
    return out.getvalue()
