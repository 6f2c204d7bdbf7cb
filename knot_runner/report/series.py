"""A quantity along an axis: its mean over seeds and its band from the lowest to the highest; the CSV of a figure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.report.text import escape_csv
from knot_runner.util.files import write_atomic

#: Heads of what :func:`band_rows` puts after the place.
BAND_HEADS = ("mean", "low", "high", "seeds")


@dataclass(frozen=True)
class Band:
    """``places`` [R] on the axis (rounds, sizes, ...); ``mean``, ``low``, ``high`` [R] over ``seeds`` [R] runs."""

    places: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: np.ndarray


def band(series: Sequence[dict[int, float]]) -> Band:
    """The band of several runs, over the places at which each of them has a value."""
    places = sorted(set.intersection(*(set(one) for one in series)))
    values = np.array([[one[place] for place in places] for one in series], dtype=float)
    seeds = np.full(len(places), len(series))
    return Band(np.array(places, dtype=int), values.mean(0), values.min(0), values.max(0), seeds)


def smoothed(series: dict[int, float], window: int) -> dict[int, float]:
    """Running means over ``window`` successive values, centred, of fewer at both ends."""
    if len(series) < window:
        return series
    ones, values = np.ones(window), np.array(list(series.values()))
    means = np.convolve(values, ones, "same") / np.convolve(np.ones(len(values)), ones, "same")
    return dict(zip(series, means.tolist(), strict=True))


def band_rows(names: Sequence[str], one: Band) -> list[list[Any]]:
    """A row of CSV for each place of ``one``: ``names``, place, :data:`BAND_HEADS`."""
    columns = (one.places, one.mean, one.low, one.high, one.seeds)
    return [[*names, *values] for values in zip(*columns, strict=True)]


def write_csv(
    path: Path, heads: Sequence[str], rows: Iterable[Sequence[Any]], digits: int = 6, decimals: int | None = None
) -> None:
    """``rows`` as CSV beside the PNG ``path``, whole or not at all. Text is escaped; floats have ``digits`` significant
    digits, after rounding to ``decimals`` if any."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_cell(value, digits, decimals) for value in row] for row in (heads, *rows))
    write_atomic(path.with_suffix(".csv"), out.getvalue())


def _cell(value: Any, digits: int, decimals: int | None) -> Any:
    if isinstance(value, str):
        return escape_csv(value)
    if not isinstance(value, float | np.floating):
        return value
    return f"{value if decimals is None else np.round(value, decimals):.{digits}g}"
