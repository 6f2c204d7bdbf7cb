"""The federated distance's measure on its way, and the error of the distance by iteration (FedWaD Fig. 3)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.report import run_folders
from knot_runner.report.figure_style import GREY, figure_of, panels, save
from knot_runner.report.figures.distance_style import (
    colours_of,
    csv_rows,
    draw_band,
    log_scale,
    methods_of,
    seeds_note,
    side_legend,
    write_csv,
)
from knot_runner.report.run_folders import Run
from knot_runner.report.series import Band, band

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Key of the record -> what it is, as its panel's title and its line say it.
COURSES = {
    "values": "FedWaD's value",
    "server_only": "server alone (Theorem 3)",
    "sums": "sum A (Theorem 2)",
}
MEASURE_NAMES = "measures.safetensors"
MOVING_NOTE = (
    "Crosses: the two samples, mu and nu. Dots: the server's measure xi, from its random start (iteration 0) on. "
    "Curves: relative excess over the exact distance, that of the network simplex on all samples at one place: of "
    "FedWaD's value; of what the server knows without any distance from the clients, which may fall short and has no "
    "sign here; and of the sum A of the four distances on the way from mu to nu."
)


@functools.partial(figure_of, reads=(MEASURE_NAMES,))
def moving_measure(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """A panel per method: the measure's points, coloured by iteration, in their first two dimensions. Then a panel
    per quantity over the iterations: excess over the exact distance of FedWaD's value, of what the server knows alone,
    and of the sum A of distances (Fig. 3). Returns the last iteration's.

    Lines are means over seeds, bands reach from the lowest to the highest; points are those of the lowest seed.
    """
    from matplotlib.ticker import MaxNLocator

    methods = methods_of(runs)
    colours = colours_of(methods)
    courses = {
        name: {key: band([excess(run, key) for run in members]) for key in COURSES} for name, members in methods.items()
    }
    made, grid = panels(len(methods) + len(COURSES), 3.4, 3.2, across=4)
    for axes, (name, members) in zip(grid, methods.items(), strict=False):
        image = _scatter(axes, members[0], command)
        axes.set_title(name)
    made.colorbar(image, ax=grid, label="iteration of the dots", shrink=0.6, aspect=30).locator = MaxNLocator(
        integer=True
    )
    for axes, (key, title) in zip(grid[len(methods) :], COURSES.items(), strict=True):
        for name in methods:
            draw_band(axes, courses[name][key], colours[name], name)
        axes.set(xlabel="iteration", ylabel="relative excess")
        axes.set_title(title)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        log_scale(axes, "y")
    side_legend(made, colours, methods)
    said = [f"{MOVING_NOTE} Points: seed {min(run.job.seed for run in runs)}. {seeds_note(runs)}"]
    save(made, path, "The federated distance of two samples: its measure on the way, and its error", [*said, *notes])
    rows = [row for name, of in courses.items() for key, one in of.items() for row in csv_rows((name, key), one)]
    write_csv(path, ("method", "quantity", "iteration"), rows)
    return [_line(name, of) for name, of in courses.items()]


def excess(run: Run, key: str) -> dict[int, float]:
    """Iteration (from 1) -> |quantity / exact distance - 1|; nothing where the run has no such quantity, or the exact
    distance is 0."""
    values, exact = run.result.get(key, []), run.result["exact"]
    return {k: abs(value / exact - 1) for k, value in enumerate(values, 1)} if exact else {}


def _line(name: str, of: dict[str, Band]) -> str:
    last = (f"{COURSES[key]} {one.mean[-1]:.2g}{_spread(one)}" for key, one in of.items() if len(one.rounds))
    return f"{name}, relative excess after the last iteration: {', '.join(last)}"


def _spread(one: Band) -> str:
    return f" ({one.low[-1]:.2g} to {one.high[-1]:.2g})" if one.seeds > 1 else ""


def _scatter(axes: Axes, run: Run, command: str) -> Any:
    """Both samples, and the measure after each iteration that was kept; returns what has the scale of colours."""
    path, stored = run.job.folder / MEASURE_NAMES, run_folders.arrays(run, MEASURE_NAMES, command)
    kept = {key: _flat(points) for key, points in stored.items() if "weights" not in key}
    steps = sorted(int(key.removeprefix("xi/")) for key in kept if key.startswith("xi/"))
    if not steps or {"mu", "nu"} - set(kept) or any(points is None for points in kept.values()):
        run_folders.damaged(path, command)
    for key, edge, side in (("mu", np.min, -1), ("nu", np.max, 1)):
        axes.scatter(*kept[key].T, s=9, marker="x", color=GREY, linewidths=0.5, zorder=2)
        place = kept[key][:, 0].mean(), edge(kept[key][:, 1])
        style = {"textcoords": "offset points", "ha": "center", "va": "center", "fontweight": "bold", "zorder": 3}
        axes.annotate(key, place, (0, 7 * side), **style)
    moving = np.concatenate([kept[f"xi/{step}"] for step in steps])
    when = np.repeat(steps, [len(kept[f"xi/{step}"]) for step in steps])
    axes.set_aspect("equal", adjustable="datalim")
    return axes.scatter(
        *moving.T, c=when, s=12, cmap="viridis_r", vmin=0, vmax=max(steps[-1], 1), linewidths=0, zorder=1
    )


def _flat(points: np.ndarray) -> np.ndarray | None:
    """The first two dimensions of ``points`` [n, d]; of points on a line the second is 0. None for no points."""
    if points.ndim != 2 or not points.size or not np.isfinite(points).all():
        return None
    return np.pad(points, ((0, 0), (0, max(0, 2 - points.shape[1]))))[:, :2]
