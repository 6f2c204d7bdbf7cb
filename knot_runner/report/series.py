"""A quantity along an axis, with its mean and 95% interval over seeds, and the CSV file of a figure."""

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

    ``places`` [R] on the axis (rounds, sizes, ...); ``mean`` [R] over ``seeds`` [R] runs, and its 95% t interval from
    ``low`` to ``high`` [R], which has width 0 for one seed.
    """

    places: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: np.ndarray


def band(series: Iterable[Mapping[AxisPlace, float]], everywhere: bool = True) -> Band:
    """Return the band of several runs at the places where all have a value.

    Without ``everywhere``, places where any run has a value are included.
    """
    series = list(series)
    keys = [set(one) for one in series]
    places = sorted(set.intersection(*keys) if everywhere else set.union(*keys))
    cells = [[one[place] for one in series if place in one] for place in places]
    found = [mean_interval(own) for own in cells]
    mean = np.array([center for center, _ in found])
    half = np.array([half or 0.0 for _, half in found])
    return Band(np.array(places), mean, mean - half, mean + half, np.array([len(own) for own in cells]))


def band_numbers(heads: Sequence[str], bands: Mapping[Names, Band]) -> str:
    """Return CSV with a row per place of ``bands``: names and place (under ``heads``), mean, low, high, seeds."""
    rows: list[list[Any]] = []
    for names, one in bands.items():
        columns = (one.places, one.mean, one.low, one.high, one.seeds)
        rows += [[*names, *values] for values in zip(*columns, strict=True)]
    return csv_text((*heads, "mean", "low", "high", "seeds"), rows, digits=6)
