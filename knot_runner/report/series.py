"""A quantity along an axis, with the mean and 95% interval over seeds, and the CSV file of a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from knot_runner.report.render.markup import csv_text
from knot_runner.report.statistics.intervals import mean_interval

AxisPlace = TypeVar("AxisPlace", int, float)
#: The names of a band, such as case, method and quantity.
Names = TypeVar("Names", bound=tuple[str, ...])


@dataclass(frozen=True)
class Band:
    """A mean over seeds along an axis.

    Attributes:
        places: Positions [R] on the axis (rounds, sizes, ...).
        mean: The mean [R] over runs.
        low, high: The bounds [R] of the 95% t interval, which has width 0 for one seed.
        seeds: The number of runs [R] in each mean.
    """

    places: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: np.ndarray


def band(series: Iterable[Mapping[AxisPlace, float]], everywhere: bool = True) -> Band:
    """Return the band of several runs, at the places where all runs have a value.

    Without ``everywhere``, the band has all places where at least one run has a value.
    """
    runs = 0
    by_place: dict[AxisPlace, list[float]] = {}
    for run in series:
        runs += 1
        for position, value in run.items():
            by_place.setdefault(position, []).append(value)
    places = sorted(position for position, values in by_place.items() if len(values) == runs or not everywhere)
    estimates = [mean_interval(by_place[position]) for position in places]
    mean = np.array([center for center, _ in estimates])
    half = np.array([half or 0.0 for _, half in estimates])
    seeds = np.array([len(by_place[position]) for position in places])
    return Band(np.array(places), mean, mean - half, mean + half, seeds)


def bands_of(points: Iterable[tuple[Names, int, AxisPlace, float]], everywhere: bool = True) -> dict[Names, Band]:
    """Return a dict from names to the :func:`band` of the values in ``points`` (names, seed, place, value).

    Values with the same seed and place are averaged.
    """
    values: dict[Names, dict[int, dict[AxisPlace, list[float]]]] = {}
    for names, seed, place, value in points:
        values.setdefault(names, {}).setdefault(seed, {}).setdefault(place, []).append(value)
    bands = {}
    for names, seeds in values.items():
        means = []
        for by_place in seeds.values():
            means.append({place: float(np.mean(repeats)) for place, repeats in by_place.items()})
        bands[names] = band(means, everywhere)
    return bands


def band_numbers(heads: Sequence[str], bands: Mapping[Names, Band]) -> str:
    """Return CSV with a row per place of ``bands``. ``heads`` are the headings of the names and the place.

    The other columns are mean, low, high and seeds.
    """
    rows: list[list[Any]] = []
    for names, line in bands.items():
        columns = (line.places, line.mean, line.low, line.high, line.seeds)
        rows += [[*names, *values] for values in zip(*columns, strict=True)]
    return csv_text((*heads, "mean", "low", "high", "seeds"), rows, digits=6)
