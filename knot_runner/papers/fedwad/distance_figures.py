"""Figures of the federated distance.

One figure shows the interpolating measure and the error after each iteration (FedWaD Fig. 3). The other figure shows
running time and error against the number of samples (Fig. 2, 8, 9).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.config.strict import by_key
from knot_runner.papers.fedwad.results import DistanceResult
from knot_runner.report.figures.style import (
    BAND_HEADS,
    GRAY,
    Drawing,
    draw_band,
    figure_of,
    log_scale,
    nth_color,
    panels,
    seeds_note,
    side_legend,
)
from knot_runner.report.render.markup import csv_text
from knot_runner.report.render.text import plain, short_line
from knot_runner.report.run_folders import DoneRun, arrays
from knot_runner.report.run_rows import others
from knot_runner.report.series import estimates
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: The paper's names of two methods: FedWaD with exact interpolating measures, and the exact distance, centralized.
EXACT_MODE = "FedWaD-e"
CENTRAL = "WD"
#: If the highest value of an axis is less than this many times the lowest, labels between powers of ten are added.
NARROW = 100
#: Settings that the method's name, the panel titles or the axes already show.
OF_METHOD = ("method.fedwad.mode", "method.fedwad.support")
OF_SAMPLES = ("task.samples", "task.ratio", "task.dimension")
MEASURE_NAMES = "measures.safetensors"
#: Field of the result -> its description in the panel's title and in the lines.
COURSES = {"values": "FedWaD's value", "server_only": "server alone (Theorem 3)", "sums": "sum A (Theorem 2)"}
QUANTITIES = {"seconds": "seconds", "error": "relative error"}
MOVING_NOTE = (
    "Crosses: the two samples, mu and nu. Dots: the server's measure xi, from its random start (iteration 0) on. "
    "Curves: relative excess over the exact distance of all samples (network simplex). They show FedWaD's value, the "
    "sum A of the four distances on the way from mu to nu, and the value that the server knows without the clients' "
    "distances. The latter may be too small; its sign is not shown."
)
RUNTIME_NOTE = (
    "WD: network simplex on all samples in one place. FedWaD-e: exact interpolating measures (eq. 5), started with as "
    "many points as the first sample has; FedWaD-a: approximate ones of S points (eq. 10). Error: relative to the "
    "distance of the distributions in closed form, so it is the samples' as well as the method's. n: size of the first "
    "sample; at 1:3 the second is a third of it."
)
DistanceRun = DoneRun[DistanceResult]


def methods_of(
    runs: Iterable[DistanceRun], shown_settings: Collection[str] = OF_METHOD
) -> dict[str, list[DistanceRun]]:
    """Return a dict from the name of each method, such as ``FedWaD-a, S=10``, to the method's runs.

    Methods in exact mode (``FedWaD-e``) come first. Methods in approximate mode are sorted by support size. The runs of
    a method are sorted by seed. Each name also includes the settings that differ between runs, except
    ``shown_settings``.
    """
    by_id = {run.run_id: run for run in runs}
    once = sorted(by_id.values(), key=lambda run: (run.result.mode != "exact", run.result.support[0], run.seed))
    named = []
    for run, other in zip(once, others(once, shown_settings), strict=True):
        name = EXACT_MODE if run.result.mode == "exact" else f"FedWaD-a, S={run.result.support[0]}"
        named.append((plain(f"{name}, {short_line(other)}".removesuffix(", ")), run))
    return by_key(named)


def _looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return a dict from method name to line style.

    The line of exact mode is dashed and drawn on top, because it often coincides with another line (Theorem 1).
    """
    looks: dict[str, dict[str, Any]] = {}
    for i, name in enumerate(dict.fromkeys(names)):
        looks[name] = {"color": nth_color(i), "ls": "-", "zorder": 3}
        if name.startswith(EXACT_MODE):
            looks[name] |= {"ls": "--", "zorder": 4}
    return looks


@figure_of(reads=(MEASURE_NAMES,), needs="dimension")
def moving_measure(runs: list[DistanceRun]) -> Drawing:
    """The interpolating measure and the distance's relative errors by iteration (Fig. 3).

    Each method has a panel with the first two dimensions of the measure's points. The color of a point stands for the
    iteration. The points are from the run with the lowest seed.

    The last panels show relative errors by iteration; see :func:`excess`. Lines are means over seeds, and bands are 95%
    t intervals.
    """
    from matplotlib.ticker import MaxNLocator

    methods = methods_of(runs)
    looks = _looks(methods)
    figure, grid = panels(len(methods) + len(COURSES), 3.4, 3.2, across=4)
    for axes, (name, members) in zip(grid, methods.items(), strict=False):
        image = _scatter(axes, members[0])
        axes.sharex(grid[0])  # one scale, so that panels can be compared
        axes.sharey(grid[0])
        axes.margins(0.15)  # room for the samples' names
        axes.set_title(name)
    bar = figure.colorbar(image, ax=grid, label="iteration of the dots", shrink=0.6, aspect=30)
    bar.locator = MaxNLocator(integer=True)
    curves = estimates(excess(methods), ["method", "quantity"])
    last = dict.fromkeys(methods, "")
    for axes, (key, title) in zip(grid[len(methods) :], COURSES.items(), strict=True):
        axes.set(xlabel="iteration", ylabel="relative excess", title=title)
        for name, curve in curves[curves.quantity == key].groupby("method", sort=False):
            draw_band(axes, curve, **looks[name])
            end = curve.iloc[-1]
            last[name] += f", {title} {end.value:.2g}"
            if end.n > 1:
                last[name] += f" [{end.low:.2g}, {end.high:.2g}]"
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        log_scale(axes, "y", NARROW, numticks=7)
    lines = [f"{name}, relative excess after the last iteration: {ends[2:]}" for name, ends in last.items()]
    side_legend(figure, looks)
    title = "The federated distance of two samples: its measure on the way, and its error"
    note = f"{MOVING_NOTE} Points: seed {min(run.seed for run in runs)}. {seeds_note(runs)}"
    numbers = csv_text(("method", "quantity", "iteration", *BAND_HEADS), curves.itertuples(index=False), digits=6)
    return Drawing(figure, title, [note], lines, numbers)


def excess(methods: dict[str, list[DistanceRun]]) -> pd.DataFrame:
    """Return a frame with the relative errors of each run after each iteration. The first iteration has number 1.

    An error is ``|quantity / exact distance - 1|``. The quantities are ``values``, ``server_only`` and ``sums`` of
    :class:`DistanceResult`. Quantities that a run does not record are left out. Runs whose exact distance is 0 are also
    left out.
    """
    import pandas as pd

    points = []
    for (name, runs), key in itertools.product(methods.items(), COURSES):
        for run in runs:
            if not run.result.exact:
                continue
            for k, value in enumerate(getattr(run.result, key) or [], 1):
                points.append((name, key, run.seed, k, abs(value / run.result.exact - 1)))
    return pd.DataFrame(points, columns=["method", "quantity", "seed", "place", "value"])


def _scatter(axes: Axes, run: DistanceRun) -> Any:
    """Draw both samples and the measure after each saved iteration; return the artist with the color scale."""
    kept = {}
    moving = {}
    for key, points in arrays(run, MEASURE_NAMES).items():
        if points.ndim == 2:  # first two dimensions; 0 if there is one
            kept[key] = np.pad(points, ((0, 0), (0, 1)))[:, :2]
        if key.startswith("xi/"):
            moving[int(key.removeprefix("xi/"))] = kept[key]
    for key, edge, side in (("mu", np.min, -1), ("nu", np.max, 1)):
        x, y = kept[key].T
        axes.scatter(x, y, s=9, marker="x", color=GRAY, linewidths=0.5, zorder=2)
        axes.annotate(
            key, (x.mean(), edge(y)), (0, 7 * side), textcoords="offset points", ha="center", va="center",
            fontweight="bold", zorder=3,
        )  # fmt: skip
    iterations = np.repeat(list(moving), list(map(len, moving.values())))
    order = np.argsort(iterations, kind="stable")  # the last measure on top
    x, y = np.concatenate(list(moving.values()))[order].T
    axes.set_aspect("equal")
    return axes.scatter(
        x, y, s=12, c=iterations[order], vmin=0, vmax=max(*moving, 1), cmap="viridis_r", linewidths=0, zorder=1
    )


@figure_of(needs="dimension")
def distance_runtime(runs: list[DistanceRun]) -> Drawing:
    """Running time and relative error against the size of the first sample (Fig. 2, 8, 9).

    The error is relative to the closed-form distance. Two panels are drawn for each combination of a dimension and a
    ratio of sample sizes. Lines are means over seeds, and bands are 95% t intervals.

    Raises:
        UserError: A closed-form distance is 0, so the relative error is undefined.
    """
    if any(run.result.closed_form == 0 for run in runs):
        raise UserError("for 0, the relative error is undefined. Use a number above 0", "task.offset")
    ordered = sorted(runs, key=lambda run: (run.result.dimension, run.result.ratio))
    cases = by_key((f"d={run.result.dimension}, ratio 1:{run.result.ratio}", run) for run in ordered)
    import pandas as pd

    points = []
    for case, members in cases.items():
        for name, of_method in methods_of(members, (*OF_METHOD, *OF_SAMPLES)).items():
            for run in of_method:
                result = run.result
                size = result.samples[0]
                # every run measures the exact distance; its time is the mean over the runs of a seed
                central = (CENTRAL, result.seconds.exact, result.exact)
                for method, seconds, value in (central, (name, result.seconds.federated, result.value)):
                    error = abs(value / result.closed_form - 1)
                    points.append((case, method, "seconds", run.seed, size, seconds or 0.0))
                    points.append((case, method, "error", run.seed, size, error))
    names = ["case", "method", "quantity"]
    curves = estimates(pd.DataFrame(points, columns=[*names, "seed", "place", "value"]), names, everywhere=False)
    looks = _looks(curves.method)
    figure, grid = panels(2 * len(cases), 3.6, 3.1, across=min(2 * len(cases), 4))
    places = dict(zip(itertools.product(cases, QUANTITIES), grid, strict=True))
    lines = []
    for (case, name, quantity), curve in curves.groupby(names, sort=False):
        draw_band(places[case, quantity], curve, marker="o", **looks[name])
        end = curve.iloc[-1]
        if quantity == "seconds":
            lines.append(f"{case}, {name}: n={end.place:,} in {end.value:.3g} s")
        else:  # the row of errors follows the row of seconds
            lines[-1] += f", relative error {end.value:.2g}"
    for (case, quantity), axes in places.items():
        axes.set(xlabel="n", ylabel=QUANTITIES[quantity], title=case)
        log_scale(axes, "xy", NARROW, numticks=7)
    side_legend(figure, looks)
    numbers = csv_text((*names, "n", *BAND_HEADS), curves.itertuples(index=False), digits=6)
    note = f"{RUNTIME_NOTE} {seeds_note(runs)}"
    return Drawing(figure, "The federated distance: running time and error", [note], lines, numbers)
