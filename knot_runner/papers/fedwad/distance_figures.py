"""Figures of the federated distance.

They show its interpolating measure and its error by iteration (FedWaD Fig. 3), and its running time and error by the
number of samples (Fig. 2, 8, 9).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.papers.fedwad.results import DistanceResult
from knot_runner.report.figures.style import (
    GRAY,
    Drawing,
    draw_bands,
    figure_of,
    log_scale,
    nth_color,
    panels,
    seeds_note,
    side_legend,
)
from knot_runner.report.render.text import plain, short_line
from knot_runner.report.run_folders import DoneRun, arrays
from knot_runner.report.run_rows import others
from knot_runner.report.series import Band, band, band_numbers
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The paper's names: exact interpolating measures; all samples in one place.
EXACT_MODE = "FedWaD-e"
CENTRAL = "WD"
#: Axes with a smaller ratio of ends also have labels between powers of ten.
NARROW = 100
#: Settings already in a method's name, in panel titles, or on the axes.
OF_METHOD = ("method.fedwad.mode", "method.fedwad.support")
OF_SAMPLES = ("task.samples", "task.ratio", "task.dimension")
MEASURE_NAMES = "measures.safetensors"
#: Key of the record -> what it is, as its panel's title and its line say it.
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
#: (case,) method, quantity -> its mean over seeds, and band, by iteration or by the size of the first sample.
Curves = dict[tuple[str, ...], Band]


def methods_of(
    runs: Iterable[DistanceRun], shown_settings: Collection[str] = OF_METHOD
) -> dict[str, list[DistanceRun]]:
    """Return the runs by method (``FedWaD-e``, ``FedWaD-a, S=10``) and seed; exact mode first, then by support size.

    Swept settings that are not in ``shown_settings`` are part of the name. A run that is requested twice is included
    once.
    """
    once = list({run.run_id: run for run in runs}.values())
    once.sort(key=lambda run: (run.result.mode != "exact", run.result.support[0], run.seed))
    found: dict[str, list[DistanceRun]] = {}
    for run, other in zip(once, others(once, shown_settings), strict=True):
        name = EXACT_MODE if run.result.mode == "exact" else f"FedWaD-a, S={run.result.support[0]}"
        found.setdefault(plain(", ".join(filter(None, (name, short_line(other))))), []).append(run)
    return found


def _looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return name -> its line style.

    Exact mode is dashed and on top, because by Theorem 1 it often coincides with another.
    """
    looks: dict[str, dict[str, Any]] = {}
    for i, name in enumerate(dict.fromkeys(names)):
        looks[name] = {"color": nth_color(i), "ls": "-", "zorder": 3}
        if name.startswith(EXACT_MODE):
            looks[name].update(ls="--", zorder=4)
    return looks


@figure_of(reads=(MEASURE_NAMES,), needs="dimension")
def moving_measure(runs: list[DistanceRun], command: str) -> Drawing:
    """A panel per method: the measure's points, colored by iteration, in their first two dimensions.

    It is followed by a panel per quantity over the iterations: the excess over the exact distance of FedWaD's value, of
    the server's value, and of the sum A of distances (Fig. 3). Lines are means over seeds, and bands are 95% t
    intervals. Points are those of the lowest seed.
    """
    from matplotlib.ticker import MaxNLocator

    methods = methods_of(runs)
    looks = _looks(methods)
    made, grid = panels(len(methods) + len(COURSES), 3.4, 3.2, across=4)
    for axes, (name, members) in zip(grid, methods.items(), strict=False):
        image = _scatter(axes, members[0])
        axes.set_title(name)
    for axes in grid[: len(methods)]:
        axes.sharex(grid[0])  # one scale, so that they compare
        axes.sharey(grid[0])
        axes.margins(0.15)  # room for the samples' names
    bar = made.colorbar(image, ax=grid, label="iteration of the dots", shrink=0.6, aspect=30)
    bar.locator = MaxNLocator(integer=True)
    courses = itertools.product(methods, COURSES)
    curves = {(name, key): band([excess(run, key) for run in methods[name]]) for name, key in courses}
    for axes, (key, title) in zip(grid[len(methods) :], COURSES.items(), strict=True):
        shown = {name: curves[name, key] for name in methods if len(curves[name, key].places)}
        draw_bands(axes, shown, looks)
        axes.set(xlabel="iteration", ylabel="relative excess", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        log_scale(axes, "y", NARROW, numticks=7)
    side_legend(made, looks)
    title = "The federated distance of two samples: its measure on the way, and its error"
    note = f"{MOVING_NOTE} Points: seed {min(run.seed for run in runs)}. {seeds_note(runs)}"
    lines = []
    for name in methods:
        last = []
        for key, what in COURSES.items():
            one = curves[name, key]
            if len(one.places):
                spread = f" [{one.low[-1]:.2g}, {one.high[-1]:.2g}]" if one.seeds[-1] > 1 else ""
                last.append(f"{what} {one.mean[-1]:.2g}{spread}")
        lines.append(f"{name}, relative excess after the last iteration: {', '.join(last)}")
    return Drawing(made, title, [note], lines, band_numbers(("method", "quantity", "iteration"), curves))


def excess(run: DistanceRun, key: str) -> dict[int, float]:
    """Return iteration (counted from 1) -> |quantity / exact distance - 1|.

    The result is empty if the run has no such quantity, or if the exact distance is 0.
    """
    values = getattr(run.result, key) or []
    exact = run.result.exact
    return {k: abs(value / exact - 1) for k, value in enumerate(values, 1)} if exact else {}


def _scatter(axes: Axes, run: DistanceRun) -> Any:
    """Draw both samples and the measure after each kept iteration; return the artist with the color scale."""
    kept = {}
    for key, points in arrays(run, MEASURE_NAMES).items():
        if "weights" not in key:  # the first two dimensions; of points on a line the second is 0
            kept[key] = np.pad(points, ((0, 0), (0, max(0, 2 - points.shape[1]))))[:, :2]
    steps = sorted(int(key.removeprefix("xi/")) for key in kept if key.startswith("xi/"))
    for key, edge, side in (("mu", np.min, -1), ("nu", np.max, 1)):
        x, y = kept[key].T
        axes.scatter(x, y, s=9, marker="x", color=GRAY, linewidths=0.5, zorder=2)
        axes.annotate(
            key, (x.mean(), edge(y)), (0, 7 * side), textcoords="offset points", ha="center", va="center",
            fontweight="bold", zorder=3,
        )  # fmt: skip
    moving = [kept[f"xi/{step}"] for step in steps]
    iterations = np.repeat(steps, [len(points) for points in moving])
    x, y = np.concatenate(moving).T
    axes.set_aspect("equal")
    return axes.scatter(
        x, y, s=12, c=iterations, vmin=0, vmax=max(steps[-1], 1), cmap="viridis_r", linewidths=0, zorder=1
    )


@figure_of(needs="dimension")
def distance_runtime(runs: list[DistanceRun], command: str) -> Drawing:
    """Seconds, and error relative to the closed form, by the first sample's size.

    There are two panels per dimension and ratio of the samples (Fig. 2, 8, 9). Lines are means over seeds, and bands
    are 95% t intervals.

    Raises:
        UserError: The two distributions are equal, so that no error is relative.
    """
    if any(run.result.closed_form == 0 for run in runs):
        raise UserError("for 0, the relative error is undefined. Use a number above 0", "task.offset")
    cases: dict[str, list[DistanceRun]] = {}
    for run in sorted(runs, key=lambda run: (run.result.dimension, run.result.ratio)):
        cases.setdefault(f"d={run.result.dimension}, ratio 1:{run.result.ratio}", []).append(run)
    curves: Curves = {}
    for case, members in cases.items():
        methods = methods_of(members, (*OF_METHOD, *OF_SAMPLES))
        # every run measures the exact distance: its time is the mean over those of a seed
        curves |= _by_size((case, CENTRAL), itertools.chain(*methods.values()), "exact", "exact")
        for name, own in methods.items():
            curves |= _by_size((case, name), own, "federated", "value")
    looks = _looks(name for _, name, _ in curves)
    made, grid = panels(2 * len(cases), 3.6, 3.1, across=4 if len(cases) > 1 else 2)
    for axes, panel in zip(grid, itertools.product(cases, QUANTITIES), strict=True):
        shown = {name: one for (case, name, what), one in curves.items() if (case, what) == panel and len(one.places)}
        draw_bands(axes, shown, looks, marker="o")
        axes.set(xlabel="n", ylabel=QUANTITIES[panel[1]], title=panel[0])
        log_scale(axes, "xy", NARROW, numticks=7)
    side_legend(made, looks)
    lines = []
    for (case, name, what), one in curves.items():
        if what == "seconds" and len(one.places):
            size = one.places[-1]
            seconds = one.mean[-1]
            error = curves[case, name, "error"].mean[-1]
            lines.append(f"{case}, {name}: n={size:,} in {seconds:.3g} s, relative error {error:.2g}")
    numbers = band_numbers(("case", "method", "quantity", "n"), curves)
    note = f"{RUNTIME_NOTE} {seeds_note(runs)}"
    return Drawing(made, "The federated distance: running time and error", [note], lines, numbers)


def _by_size(names: tuple[str, str], runs: Iterable[DistanceRun], seconds: str, value: str) -> Curves:
    """Return curves of time and error by size.

    ``seconds``: key of the record's times; ``value``: key of the distance whose error is drawn.
    """
    cells: dict[int, dict[int, list[tuple[float, float]]]] = {}
    for run in runs:
        error = abs(getattr(run.result, value) / run.result.closed_form - 1)
        sizes = cells.setdefault(run.seed, {})
        sizes.setdefault(run.result.samples[0], []).append((getattr(run.result.seconds, seconds), error))
    curves = {}
    for i, what in enumerate(QUANTITIES):
        means = []
        for sizes in cells.values():
            means.append({size: float(np.mean(found, axis=0)[i]) for size, found in sizes.items()})
        curves[*names, what] = band(means)
    return curves
