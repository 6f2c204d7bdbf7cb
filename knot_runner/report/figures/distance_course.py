"""Distances between data sets and their time along one setting: iterations, support, samples (FedWaD Fig. 13, 14)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.report.figure_style import (
    GREY,
    GRID_GREY,
    draw_band,
    figure_of,
    log_scale,
    nth_colour,
    panels,
    save,
    side_legend,
)
from knot_runner.report.matrix_runs import matrix_of, only_matrices
from knot_runner.report.row_keys import lookup
from knot_runner.report.run_folders import Run
from knot_runner.report.series import BAND_HEADS, Band, band_rows, write_csv
from knot_runner.report.text import plain
from knot_runner.util.errors import UserError

#: What can lie along the axis, the first of them that varies, with its sign.
ALONG = {
    "method.otdd.samples": ("n", "samples of each data set (n)"),
    "method.otdd.fedwad.iterations": ("K", "iterations (K)"),
    "method.otdd.fedwad.support": ("S", "points of the interpolating measure (S)"),
}
#: Pairs drawn one by one; of more, their mean.
MAX_PAIRS = 6
_COURSE_NOTE = (
    "Means over seeds. Seconds: of the whole matrix, over its pairs; runs that shared an artefact share its seconds."
)
EXACT, SECONDS = "exact", "seconds"
#: (pair, or "seconds"; what it is measured by) -> its course along the axis.
Courses = dict[tuple[str, str], Band]


@figure_of
def distance_course(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """Squared distances (left) and seconds per pair (right) along the first setting of :data:`ALONG` that varies.

    A colour per pair of data sets, a marker per other settings, dashed for exact distances. The numbers go into a CSV
    beside the PNG; those at the end of the axis come back as lines. Raises :class:`UserError` where none varies.
    """
    only_matrices(runs)
    varied = [key for key in ALONG if len({lookup(run.job.config, key) for run in runs}) > 1]
    if not varied:
        raise UserError(f"a course needs runs that differ in one of {', '.join(ALONG)}")
    sign, label = ALONG[varied[0]]
    courses = _courses(runs, varied)
    pairs = list(dict.fromkeys(pair for pair, _ in courses if pair != SECONDS))
    colours = {pair: nth_colour(i) for i, pair in enumerate(pairs)}
    looks = _looks(dict.fromkeys(way for _, way in courses))
    made, (left, right) = panels(2, 5.0, 3.9, across=2)
    for (pair, way), one in courses.items():
        draw_band(right if pair == SECONDS else left, one, colours.get(pair, GREY), filled=False, **looks[way])
    log_scale(right, "y")
    for axes, quantity in ((left, "squared distance"), (right, "seconds a pair")):
        _label_places(axes, sorted({place for one in courses.values() for place in one.places}))
        axes.set(xlabel=label, ylabel=quantity)
    shown = {plain(pair): {"color": colour, "lw": 3} for pair, colour in colours.items()}  # every pair has every look
    side_legend(made, shown | {plain(way): {"color": GREY, **look} for way, look in looks.items()})
    save(made, path, "Distances between data sets and their time", [_COURSE_NOTE, *notes])
    write_csv(
        path, ("of", "by", sign, *BAND_HEADS), [row for names in courses for row in band_rows(names, courses[names])]
    )
    return [f"{', '.join(names)}: {one.mean[-1]:,.4g} at {sign}={one.places[-1]:g}" for names, one in courses.items()]


def _courses(runs: Sequence[Run], varied: list[str]) -> Courses:
    """Distances, then seconds. Exact ones have neither K nor S, so they are the same all along those axes."""
    distances: dict[Any, Any] = defaultdict(lambda: defaultdict(dict))
    seconds: dict[Any, Any] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        place = float(lookup(run.job.config, varied[0]))
        way = _way(run, varied[1:])
        for pair, value in _pair_distances(run).items():
            distances[pair, way][place][run.job.seed] = value
        seconds[SECONDS, way][place][run.job.seed] = run.result["seconds"]["distances"] / run.result["pairs"]
    return {names: _over_seeds(course) for names, course in (distances | seconds).items()}


def _over_seeds(course: dict[float, dict[int, float]]) -> Band:
    """Of place -> seed -> value; a place may lack a seed."""
    places = sorted(course)
    cells = [list(course[place].values()) for place in places]
    mean, low, high = (np.array([of(values) for values in cells]) for of in (np.mean, min, max))
    return Band(np.array(places), mean, low, high, np.array([len(values) for values in cells]))


def _way(run: Run, others: list[str]) -> str:
    if run.result["solver"] == "exact":
        return EXACT
    return ", ".join(["FedWaD", *(f"{ALONG[key][0]}={lookup(run.job.config, key)}" for key in others)])


def _pair_distances(run: Run) -> dict[str, float]:
    names, matrix = run.result["names"], matrix_of(run)
    rows, columns = np.triu_indices(len(names), 1)
    if len(rows) > MAX_PAIRS:
        return {f"mean of {len(rows)} pairs": float(matrix[rows, columns].mean())}
    return {f"{names[i]} - {names[j]}": float(matrix[i, j]) for i, j in zip(rows, columns, strict=True)}


def _looks(ways: dict[str, None]) -> dict[str, dict[str, Any]]:
    """Exact ones dashed, the others with a marker each."""
    marked = [way for way in ways if way != EXACT]
    looks: dict[str, dict[str, Any]] = {EXACT: {"ls": "--"}} if EXACT in ways else {}
    looks |= {way: {"ls": "-", "marker": "osD^vP"[i % 6]} for i, way in enumerate(marked)}
    return {way: {"lw": 1.5, "ms": 5, **look} for way, look in looks.items()}


def _label_places(axes: Any, places: list[float]) -> None:
    """Every place that was measured, on a logarithmic axis."""
    log_scale(axes, "x")
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.grid(color=GRID_GREY)
    axes.set_axisbelow(True)
