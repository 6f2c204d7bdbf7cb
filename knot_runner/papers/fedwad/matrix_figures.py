"""Figures of distances between data sets or clients.

One figure shows maps of distances and compares them with exact distances (FedWaD Fig. 6, 15). The other shows distances
and computing time against one setting (Fig. 13, 14).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from knot_runner.config.strict import by_key, without
from knot_runner.papers.fedwad.results import MatrixResult
from knot_runner.report.figures.maps import draw_map, mark_clients
from knot_runner.report.figures.style import (
    BAND_HEADS,
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
from knot_runner.report.series import estimates
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: Maximum number of data sets for which the map shows names and distances. Larger maps show only the groups that the
#: partition planted.
_MAX_NAMED = 8
MATRIX_NOTE = "Squared distances, each map with its own colors; the diagonal, which is 0, is left blank."
#: Setting -> its symbol and the title of the axis. The x axis is the first of these settings in which the runs differ.
ALONG = {
    "method.otdd.samples": ("n", "samples of each data set (n)"),
    "method.otdd.fedwad.iterations": ("K", "iterations (K)"),
    "method.otdd.fedwad.support": ("S", "points of the interpolating measure (S)"),
}
#: Setting of FedWaD in a title -> its symbol.
FEDWAD = {
    "method.otdd.fedwad.support": "S", "method.otdd.fedwad.iterations": "K", "method.otdd.fedwad.t": "t",
}  # fmt: skip
#: Maximum number of pairs of data sets with separate lines. For more pairs, the figure shows their mean.
MAX_PAIRS = 6
_COURSE_NOTE = "Means over seeds. Seconds: time of the whole matrix divided by its pairs, also for runs that reuse it."
EXACT = "exact"
SECONDS = "seconds"
MatrixRun = DoneRun[MatrixResult]


@figure_of(needs="matrix")
def matrix_figure(runs: list[MatrixRun]) -> Drawing:
    """Heat maps of the distances between data sets or clients, with one map for each combination of settings.

    A map of data sets shows the mean over seeds. A map of clients shows the run with the lowest seed, and the clients
    are sorted by group. All distances are written to a CSV file.

    For each map, the returned text gives the range and the median of the distances. If one of ``runs`` has
    the exact distances for the same samples, the text also compares the map with these (:func:`agreement_of`).
    """
    by_setting: dict[tuple[str, str], dict[int, MatrixRun]] = {}
    for run, other in zip(runs, others(runs, ("method.otdd.solver", *FEDWAD)), strict=True):
        setting = other, _solver_name(run, FEDWAD)  # exact distances have no S, K or t, and count once
        by_setting.setdefault(setting, {}).setdefault(run.seed, run)
    is_fixed = runs[0].setting("task.kind") != "images" and runs[0].setting("partition") is None
    drawn = f"of seed {min(run.seed for run in runs)}"
    if is_fixed:  # the data sets are the same for every seed, unlike clients
        drawn = f"means over seeds {seed_list(runs)}"
    exact = {_samples_of(run): run.result.distances for run in runs if run.result.solver == EXACT}
    figure, grid = panels(len(by_setting), 3.9, 3.7)
    lines = []
    rows = []
    for axes, (setting, by_seed) in zip(grid, by_setting.items(), strict=True):
        members = list(by_seed.values())
        shown = members if is_fixed else members[:1]
        _draw_map(axes, np.mean([run.result.matrix for run in shown], axis=0), members[0].result)
        axes.set_title("\n".join(filter(None, map(plain, setting))), fontsize="small")
        title = ", ".join(filter(None, setting))
        kinds = []
        agreements = []
        for run in members:
            distances = run.result.distances
            kinds += run.result.by_kind().items()
            rows += [(title, run.seed, *pair) for pair in pairs_of(run)]
            if run.result.solver != EXACT:
                agreements.append(agreement_of(distances, exact.get(_samples_of(run), distances[:0])))
        ranges = []
        for kind, values in by_key(kinds).items():
            low, middle, high = np.quantile(np.concatenate(values), (0, 0.5, 1))
            ranges.append(f"{kind} {low:,.1f} to {high:,.1f}, median {middle:,.1f}")
        lines.append(f"{title}: {'; '.join(ranges)}")
        if known := list(filter(None, agreements)):
            rank, kept, larger = zip(*known, strict=True)
            order = f"Spearman {np.mean(rank):.3f} ({min(rank):.3f} to {max(rank):.3f} over {len(rank)} seeds)"
            relations = f"{np.mean(kept):.0%} of {math.comb(members[0].result.pairs, 2):,} order relations kept"
            larger_text = f"{np.mean(larger):.3g} times as large (median)"
            lines.append(f"{title}: with the exact distances, {order}; {relations}; {larger_text}")
    numbers = csv_text(("setting", "seed", "first", "second", "distance"), rows, digits=8)
    return Drawing(figure, "Distances between data sets", [f"{MATRIX_NOTE} Drawn: {drawn}."], lines, numbers)


def agreement_of(ours: np.ndarray, exact: np.ndarray) -> tuple[float, float, float] | None:
    """Return three measures of agreement between approximate distances ``ours`` [M] and ``exact`` distances [M].

    Returns:
        Spearman's rank correlation, the fraction of pairs of distances that both arrays order in the same way, and the
        median of ``ours / exact``. The median is NaN if an exact distance is 0. The result is None if M < 2, or if
        ``ours`` or ``exact`` is constant.
    """
    if len(exact) < 2 or np.ptp(exact) == 0 or np.ptp(ours) == 0:
        return None
    from scipy.stats import spearmanr  # here, since scipy takes a third of a second to import

    first, second = np.triu_indices(len(exact), 1)
    same = np.sign(ours[first] - ours[second]) == np.sign(exact[first] - exact[second])
    inflation = float(np.median(ours / exact)) if exact.min() > 0 else math.nan
    return float(spearmanr(ours, exact).statistic), float(same.mean()), inflation


def _draw_map(axes: Axes, matrix: np.ndarray, result: MatrixResult) -> None:
    """Draw the distances ``matrix`` of shape [N, N], with the names and groups in ``result``."""
    image = draw_map(axes, np.ma.masked_array(matrix, np.eye(len(matrix), dtype=bool)), result.groups, cmap="cividis")
    if len(matrix) > _MAX_NAMED:
        mark_clients(axes, result.groups)
        return
    texts = list(map(plain, result.names))
    axes.set_xticks(range(len(texts)), texts, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(texts)), texts)
    axes.tick_params(length=0)
    for (i, j), value in np.ndenumerate(image.get_array()):
        if i != j:
            color = "white" if image.norm(value) < 0.6 else "black"
            axes.text(j, i, f"{value:,.0f}", ha="center", va="center", fontsize="small", color=color)


@figure_of(needs="matrix")
def distance_course(runs: list[MatrixRun]) -> Drawing:
    """Squared distances (left) and seconds per pair (right) as functions of one setting (Fig. 13, 14).

    The setting is the first of these three in which the runs differ: samples, iterations, support. Each pair of
    data sets has a color. Markers distinguish the values of the other two settings. All values are written to a CSV
    file. The returned text gives the results at the largest value of the setting.

    Raises:
        UserError: The runs differ in none of the three settings.
    """
    varied = []
    for key in ALONG:
        if len({run.setting(key) for run in runs}) > 1:
            varied.append(key)
    if not varied:
        raise UserError(f"the figure needs runs that differ in one of these settings: {', '.join(ALONG)}")
    sign, label = ALONG[varied[0]]
    courses = _courses(runs, varied)
    colors = {pair: nth_color(i) for i, pair in enumerate(courses.of[courses.of != SECONDS].unique())}
    looks = {}
    for i, solver in enumerate(courses.by.unique()):
        looks[solver] = {"marker": "osD^vP"[i % 6], "ms": 5}
        if solver == EXACT:
            looks[solver] = {"ls": "--"}
    figure, (left, right) = panels(2, 5.0, 3.9, across=2)
    lines = []
    for (pair, solver), curve in courses.groupby(["of", "by"], sort=False):
        axes = right if pair == SECONDS else left
        draw_band(axes, curve, colors.get(pair, GRAY), filled=False, **looks[solver])
        end = curve.iloc[-1]
        lines.append(f"{pair}, {solver}: {end.value:,.4g} at {sign}={end.place:g}")
    log_scale(right, "y")
    ticks = courses.place.unique()
    for axes, quantity in ((left, "squared distance"), (right, "seconds a pair")):
        log_scale(axes, "x")
        axes.set_xticks(ticks, list(map("{:g}".format, ticks)))
        axes.grid(color=GRID_GRAY)
        axes.set(xlabel=label, ylabel=quantity, axisbelow=True)
    shown = {plain(pair): {"color": color, "lw": 3} for pair, color in colors.items()}  # colors of pairs
    side_legend(figure, shown | {plain(solver): {"color": GRAY, **look} for solver, look in looks.items()})
    numbers = csv_text(("of", "by", sign, *BAND_HEADS), courses.itertuples(index=False), digits=6)
    return Drawing(figure, "Distances between data sets and their time", [_COURSE_NOTE], lines, numbers)


def _courses(runs: list[MatrixRun], varied: list[str]) -> pd.DataFrame:
    """Return a frame with the squared distance of each pair (column ``of``) by solver (column ``by``), and the seconds.

    The rows with the seconds per pair follow the rows with the distances. Exact distances have neither K nor S, so they
    are constant along these settings.
    """
    import pandas as pd

    symbols = {key: ALONG[key][0] for key in varied[1:]}
    distances = []
    seconds = []
    for run in runs:
        position = float(run.setting(varied[0]))
        solver = _solver_name(run, symbols)
        pairs = {f"{first} - {second}": distance for first, second, distance in pairs_of(run)}
        if len(pairs) > MAX_PAIRS:
            pairs = {f"mean of {len(pairs)} pairs": float(np.mean(list(pairs.values())))}
        distances += [(pair, solver, run.seed, position, distance) for pair, distance in pairs.items()]
        of_pair = (run.result.seconds.distances or 0.0) / run.result.pairs
        seconds.append((SECONDS, solver, run.seed, position, of_pair))
    points = pd.DataFrame([*distances, *seconds], columns=["of", "by", "seed", "place", "value"])
    return estimates(points, ["of", "by"], everywhere=False)


def _solver_name(run: MatrixRun, symbols: Mapping[str, str]) -> str:
    """Return ``exact`` or ``FedWaD, S=10``. ``symbols``: key of each setting in the name -> symbol of the setting."""
    if run.result.solver == EXACT:
        return EXACT
    return ", ".join(["FedWaD", *(f"{symbol}={run.setting(key)}" for key, symbol in symbols.items())])


def _samples_of(run: MatrixRun) -> str:
    """Return a text that is equal for runs that measure the same distance between the same samples."""
    otdd = without(run.setting("method.otdd") or {}, "solver", "fedwad", "precision")
    samples = [run.seed, run.result.names, otdd, run.setting("task"), run.setting("partition")]
    return json.dumps(samples, sort_keys=True)


def pairs_of(run: MatrixRun) -> list[tuple[str, str, float]]:
    """Return a tuple (first name, second name, squared distance) for each pair of data sets."""
    pairs = itertools.combinations(run.result.names, 2)
    return [(*pair, value) for pair, value in zip(pairs, run.result.distances, strict=True)]
