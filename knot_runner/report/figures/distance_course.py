"""Distances between data sets and their time along one setting: iterations, support, samples (FedWaD Fig. 13, 14)."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.report.figure_style import GREY, PALETTE, figure_of, panels, save
from knot_runner.report.matrix_runs import matrix_of, only_matrices
from knot_runner.report.row_keys import lookup
from knot_runner.report.run_folders import Run
from knot_runner.report.text import escape_csv, plain
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic

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
#: Place on the axis -> seed -> value.
Course = dict[float, dict[int, float]]
#: (pair, or "seconds"; what it is measured by) -> its course.
Courses = dict[tuple[str, str], Course]


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
    distances, seconds = _courses(runs, varied)
    made, (left, right) = panels(2, 5.0, 3.9, across=2)
    _draw(left, distances, "squared distance")
    _draw(right, seconds, "seconds a pair")
    right.set_yscale("log")
    _scales(left, right, sorted({place for course in distances.values() for place in course}), ALONG[varied[0]][1])
    _legend(made, distances)
    save(made, path, "Distances between data sets and their time", [_COURSE_NOTE, *notes])
    write_atomic(path.with_suffix(".csv"), _to_csv({**distances, **seconds}, ALONG[varied[0]][0]))
    return [_line(name, course, ALONG[varied[0]][0]) for name, course in {**distances, **seconds}.items()]


def _courses(runs: Sequence[Run], varied: list[str]) -> tuple[Courses, Courses]:
    """Distances and seconds. Exact ones have neither K nor S, so they are the same all along those axes."""
    distances: Courses = defaultdict(lambda: defaultdict(dict))
    seconds: Courses = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        place = float(lookup(run.job.config, varied[0]))
        how = _how(run, varied[1:])
        for pair, value in _pairs(run).items():
            distances[pair, how][place][run.job.seed] = value
        seconds[SECONDS, how][place][run.job.seed] = run.result["seconds"]["distances"] / run.result["pairs"]
    return distances, seconds


def _how(run: Run, others: list[str]) -> str:
    if run.result["solver"] == "exact":
        return EXACT
    return ", ".join(["FedWaD", *(f"{ALONG[key][0]}={lookup(run.job.config, key)}" for key in others)])


def _pairs(run: Run) -> dict[str, float]:
    names, matrix = run.result["names"], matrix_of(run)
    rows, columns = np.triu_indices(len(names), 1)
    if len(rows) > MAX_PAIRS:
        return {f"mean of {len(rows)} pairs": float(matrix[rows, columns].mean())}
    return {f"{names[i]} - {names[j]}": float(matrix[i, j]) for i, j in zip(rows, columns, strict=True)}


def _line(name: tuple[str, str], course: Course, sign: str) -> str:
    last = max(course)
    return f"{', '.join(name)}: {np.mean([*course[last].values()]):,.4g} at {sign}={last:g}"


def _to_csv(courses: Courses, sign: str) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["of", "by", sign, "mean", "low", "high", "seeds"])
    for names, course in courses.items():
        for place in sorted(course):
            values = [*course[place].values()]
            numbers = (f"{value:.6g}" for value in (np.mean(values), min(values), max(values)))
            writer.writerow([*map(escape_csv, names), f"{place:g}", *numbers, len(values)])
    return out.getvalue()


def _draw(axes: Any, courses: Courses, label: str) -> None:
    colours, looks = _colours(courses), _looks(courses)
    for (pair, way), course in courses.items():
        places = sorted(course)
        means = [np.mean([*course[place].values()]) for place in places]
        axes.plot(places, means, color=colours.get(pair, GREY), lw=1.5, ms=5, **looks[way])
    axes.set_ylabel(label)
    axes.grid(color="#EEEEEE")
    axes.set_axisbelow(True)


def _scales(left: Any, right: Any, places: list[float], label: str) -> None:
    """Logarithmic axes with plain numbers: every place that was measured, and 1, 2, 5 times powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for axes in (left, right):
        axes.set(xlabel=label, xscale="log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_formatter(NullFormatter())
    right.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    right.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    right.yaxis.set_minor_formatter(NullFormatter())


def _colours(courses: Courses) -> dict[str, str]:
    pairs = dict.fromkeys(pair for pair, _ in courses if pair != SECONDS)
    return {pair: PALETTE[i % len(PALETTE)] for i, pair in enumerate(pairs)}


def _looks(courses: Courses) -> dict[str, dict[str, Any]]:
    """Exact ones dashed, the others with a marker each."""
    ways = dict.fromkeys(way for _, way in courses if way != EXACT)
    marked = {way: {"ls": "-", "marker": "osD^vP"[i % 6]} for i, way in enumerate(ways)}
    return {EXACT: {"ls": "--"}, **marked}


def _legend(made: Any, distances: Courses) -> None:
    """Colours and looks apart, since every pair has every look."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, lw=3, label=plain(pair)) for pair, colour in _colours(distances).items()]
    there = {way for _, way in distances}
    looks = {way: look for way, look in _looks(distances).items() if way in there}
    lines += [Line2D([], [], color=GREY, lw=1.5, ms=5, label=plain(way), **look) for way, look in looks.items()]
    made.legend(handles=lines, loc="outside right upper")
