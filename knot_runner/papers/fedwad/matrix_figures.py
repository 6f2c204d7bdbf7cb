"""Figures of distances between data sets or clients.

They show maps, comparisons with exact distances (FedWaD Fig. 6, 15), and distances and their time along one setting
(Fig. 13, 14).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.config.strict import by_key, without
from knot_runner.papers.fedwad.results import MatrixResult, kinds_of_pairs
from knot_runner.report.figures.maps import draw_map, mark_clients
from knot_runner.report.figures.style import (
    GRAY,
    GRID_GRAY,
    Drawing,
    draw_band,
    figure_of,
    log_scale,
    nth_color,
    panels,
    seed_list,
    side_legend,
)
from knot_runner.report.render.markup import csv_text
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import DoneRun
from knot_runner.report.run_rows import others
from knot_runner.report.series import Band, band, band_numbers
from knot_runner.report.statistics.intervals import agreement_of
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Data sets whose names and distances are written into the map; of more, only planted groups are named.
_MAX_NAMED = 8
MATRIX_NOTE = "Squared distances, each map with its own colors; the diagonal, which is 0, is left blank."
#: Settings for the axis, of which the first that varies is used, with their symbols.
ALONG = {
    "method.otdd.samples": ("n", "samples of each data set (n)"),
    "method.otdd.fedwad.iterations": ("K", "iterations (K)"),
    "method.otdd.fedwad.support": ("S", "points of the interpolating measure (S)"),
}
FEDWAD = {"support": "S", "iterations": "K", "t": "t"}
#: Settings already in a title.
MATRIX_KEYS = ("method.otdd.solver", *(f"method.otdd.fedwad.{key}" for key in FEDWAD))
#: Pairs drawn one by one; of more, their mean.
MAX_PAIRS = 6
_COURSE_NOTE = "Means over seeds. Seconds: time of the whole matrix divided by its pairs, also for runs that reuse it."
EXACT = "exact"
SECONDS = "seconds"
MatrixRun = DoneRun[MatrixResult]
#: Seed -> place on the axis -> value.
SeriesBySeed = dict[int, dict[float, float]]


@figure_of(one_task=False)
def matrix_figure(runs: list[MatrixRun], command: str) -> Drawing:
    """A heat map per setting: for data sets, the mean over seeds; for clients, sorted by group, the first seed.

    Returns, for each setting, the range of its distances. If there are exact distances of the same samples, it also
    returns the rank correlation (Spearman), the order relations kept, and the median ratio. All distances are written
    to a CSV file next to the PNG.

    Raises:
        UserError: A run has no distances.
    """
    only_matrices(runs)
    found = by_setting(runs)
    made, grid = panels(len(found), 3.9, 3.7)
    lines = []
    rows = []
    for axes, (title, members) in zip(grid, found.items(), strict=True):
        _draw_map(axes, members if _is_fixed(members[0]) else members[:1])
        axes.set_title(re.sub(", (?=FedWaD|exact$)", "\n", plain(title)), fontsize="small")
        lines += _lines(title, members, runs)
        for run in members:
            rows += [(title, run.seed, *pair) for pair in pairs_of(run)]
    which = f"means over seeds {seed_list(runs)}" if _is_fixed(runs[0]) else f"of seed {min(run.seed for run in runs)}"
    numbers = csv_text(("setting", "seed", "first", "second", "distance"), rows, digits=8)
    return Drawing(made, "Distances between data sets", [f"{MATRIX_NOTE} Drawn: {which}."], lines, numbers)


def _is_fixed(run: MatrixRun) -> bool:
    """Return whether the data sets are equal for every seed, unlike clients."""
    return run.setting("task.kind") != "images" and run.setting("partition") is None


def _lines(title: str, runs: list[MatrixRun], all_runs: list[MatrixRun]) -> list[str]:
    """Return lines on the range of the distances, and on their agreement with exact ones, averaged over seeds."""
    kinds: dict[str, list[np.ndarray]] = by_key(
        pair for run in runs for pair in kinds_of_pairs(np.array(run.result.matrix), run.result.groups).items()
    )
    parts = []
    for kind, values in kinds.items():
        pooled = np.concatenate(values)
        parts.append(f"{kind} {pooled.min():,.1f} to {pooled.max():,.1f}, median {np.median(pooled):,.1f}")
    lines = [f"{title}: {'; '.join(parts)}"]
    exact = {_samples_of(run): _distances(run) for run in all_runs if run.result.solver == EXACT}
    found = []
    for run in runs:
        if run.result.solver != EXACT and _samples_of(run) in exact:
            agreement = agreement_of(_distances(run), exact[_samples_of(run)])
            if agreement is not None:  # None without an order of distances
                found.append(agreement)
    if found:
        rank = [one.spearman for one in found]
        kept = np.mean([one.kept / one.relations for one in found])
        larger = np.mean([one.inflation for one in found])
        order = f"Spearman {np.mean(rank):.3f} ({min(rank):.3f} to {max(rank):.3f} over {len(rank)} seeds)"
        kept_text = f"{kept:.0%} of {found[0].relations:,} order relations kept"
        lines.append(f"{title}: with the exact distances, {order}; {kept_text}; {larger:.3g} times as large (median)")
    return lines


def _draw_map(axes: Axes, runs: list[MatrixRun]) -> None:
    """Draw the mean over ``runs``."""
    matrix = np.mean([run.result.matrix for run in runs], axis=0)
    result = runs[0].result
    image = draw_map(axes, np.ma.masked_array(matrix, np.eye(len(matrix), dtype=bool)), result.groups, cmap="cividis")
    if len(matrix) > _MAX_NAMED:
        mark_clients(axes, result.groups)
        return
    texts = [plain(name) for name in result.names]
    axes.set_xticks(range(len(texts)), texts, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(texts)), texts)
    axes.tick_params(length=0)
    for (i, j), value in np.ndenumerate(image.get_array()):
        if i != j:
            color = "white" if image.norm(value) < 0.6 else "black"
            axes.text(j, i, f"{value:,.0f}", ha="center", va="center", fontsize="small", color=color)


@figure_of
def distance_course(runs: list[MatrixRun], command: str) -> Drawing:
    """Squared distances (left) and seconds per pair (right) along the first setting that varies.

    That setting is samples, iterations or support. Each pair of data sets has a color, and each combination of other
    settings a marker; lines of exact distances are dashed. The numbers are written to a CSV file next to the PNG. Those
    at the end of the axis are returned as lines.

    Raises:
        UserError: No setting varies.
    """
    only_matrices(runs)
    varied = [key for key in ALONG if len({run.setting(key) for run in runs}) > 1]
    if not varied:
        raise UserError(f"the figure needs runs that differ in one of these settings: {', '.join(ALONG)}")
    sign, label = ALONG[varied[0]]
    courses = _courses(runs, varied)
    pairs = dict.fromkeys(pair for pair, _ in courses if pair != SECONDS)
    colors = {pair: nth_color(i) for i, pair in enumerate(pairs)}
    looks: dict[str, dict[str, Any]] = {}
    for _, way in courses:
        looks.setdefault(way, {"ls": "--"} if way == EXACT else {"marker": "osD^vP"[len(looks) % 6], "ms": 5})
    made, (left, right) = panels(2, 5.0, 3.9, across=2)
    for (pair, way), one in courses.items():
        axes, color = (right, GRAY) if pair == SECONDS else (left, colors[pair])
        draw_band(axes, one, color, filled=False, **looks[way])
    log_scale(right, "y")
    places = sorted({place for one in courses.values() for place in one.places})
    for axes, quantity in ((left, "squared distance"), (right, "seconds a pair")):
        log_scale(axes, "x")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.grid(color=GRID_GRAY)
        axes.set_axisbelow(True)
        axes.set(xlabel=label, ylabel=quantity)
    shown = {plain(pair): {"color": color, "lw": 3} for pair, color in colors.items()}  # every pair has every look
    side_legend(made, shown | {plain(way): {"color": GRAY, **look} for way, look in looks.items()})
    lines = [f"{', '.join(names)}: {one.mean[-1]:,.4g} at {sign}={one.places[-1]:g}" for names, one in courses.items()]
    numbers = band_numbers(("of", "by", sign), courses)
    return Drawing(made, "Distances between data sets and their time", [_COURSE_NOTE], lines, numbers)


def _courses(runs: list[MatrixRun], varied: list[str]) -> dict[tuple[str, str], Band]:
    """Return (pair, solver) -> squared distances, then ("seconds", solver) -> seconds per pair.

    Exact distances have neither K nor S, so they are constant along these axes.
    """
    distances: dict[tuple[str, str], SeriesBySeed] = {}
    seconds: dict[tuple[str, str], SeriesBySeed] = {}
    for run in runs:
        place = float(run.setting(varied[0]))
        way = EXACT
        if run.result.solver != EXACT:
            way = ", ".join(["FedWaD", *(f"{ALONG[key][0]}={run.setting(key)}" for key in varied[1:])])
        pairs = [(f"{one} - {other}", value) for one, other, value in pairs_of(run)]
        if len(pairs) > MAX_PAIRS:
            pairs = [(f"mean of {len(pairs)} pairs", float(np.mean([value for _, value in pairs])))]
        for pair, value in pairs:
            distances.setdefault((pair, way), {}).setdefault(run.seed, {})[place] = value
        of_pair = (run.result.seconds.distances or 0.0) / run.result.pairs
        seconds.setdefault((SECONDS, way), {}).setdefault(run.seed, {})[place] = of_pair
    return {names: band(found.values(), everywhere=False) for names, found in (distances | seconds).items()}


def by_setting(runs: Sequence[MatrixRun]) -> dict[str, list[MatrixRun]]:
    """Return title -> its runs, one per seed. An exact distance has neither S, K nor t, so it counts once."""
    several = len({run.task for run in runs}) > 1
    found: dict[str, dict[int, MatrixRun]] = {}
    for run, other in zip(runs, others(runs, MATRIX_KEYS), strict=True):
        solver = EXACT
        if run.result.solver != EXACT:
            fedwad = run.setting("method.otdd.fedwad") or {}
            solver = ", ".join(["FedWaD", *(f"{short}={fedwad.get(key)}" for key, short in FEDWAD.items())])
        title = ", ".join(filter(None, (run.task if several else "", other, solver)))
        found.setdefault(title, {}).setdefault(run.seed, run)
    return {title: list(seeds.values()) for title, seeds in found.items()}


def only_matrices(runs: Sequence[MatrixRun]) -> None:
    """Raise :class:`UserError` for a run without distances between data sets."""
    for run in runs:
        if run.result.kind != "matrix":
            raise UserError(f"task={run.task} method={run.method}: has no distances between data sets")


def _samples_of(run: MatrixRun) -> str:
    """Return the key that runs share if they have the same distances between the same samples."""
    otdd = without(run.setting("method.otdd") or {}, "solver", "fedwad", "precision")
    samples = [run.seed, run.result.names, otdd, run.setting("task"), run.setting("partition")]
    return json.dumps(samples, sort_keys=True)


def _distances(run: MatrixRun) -> np.ndarray:
    """Return the squared distance of each pair of data sets, [N (N - 1) / 2]."""
    return kinds_of_pairs(np.array(run.result.matrix), None)["all pairs"]


def pairs_of(run: MatrixRun) -> list[tuple[str, str, float]]:
    """Return (name, name, squared distance) of each pair of data sets."""
    pairs = itertools.combinations(run.result.names, 2)
    return [(*pair, value) for pair, value in zip(pairs, _distances(run), strict=True)]
