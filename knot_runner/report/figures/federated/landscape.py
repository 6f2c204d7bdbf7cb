"""Loss landscapes of clients in the plane of their fine-tuning: on their own test examples, and on the others'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.records import CLIENTS_FILE
from knot_runner.report import run_folders
from knot_runner.report.figures import style
from knot_runner.report.row_keys import runs_with
from knot_runner.report.run_folders import Run
from knot_runner.report.series import Numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = ("own test examples", "the other clients'")
NAMES = ("x", "y", "loss", "path", "segment")
LANDSCAPE_NOTE = (
    "Mean loss (nats) of theta_0 + x b1 + y b2: b1 leads from the model of the last round (star) to the last save of "
    "its fine-tuning (line with points, as projected), b2 to a save between, orthogonal and as long. Dashed: the soup. "
    "Triangle: the least loss of the grid; small crosses: other minima of the grid."
)


@style.figure_of(reads=(CLIENTS_FILE,))
def landscape_figure(runs: list[Run], command: str) -> style.Drawing:
    """Contours of the loss over the plane of two clients' fine-tuning, a row per client: on its own test examples, and
    on the others', all clients alike. The first run that has landscapes is drawn."""
    run = runs_with(runs, "personalisation.landscape", f"landscapes; method=landscape has (made by: {command})")[0]
    arrays = run_folders.arrays(run, CLIENTS_FILE, command)
    facts = run.result["personalisation"]["landscape"]
    made, grid = style.panels(2 * len(facts), 5.4, 4.3, across=2)
    lines, numbers = [], []
    for row, one in enumerate(facts):
        with run_folders.refuse_damage(run, CLIENTS_FILE, command):
            own = {name: arrays[f"landscape/{one['client']}/{name}"] for name in NAMES}
        for part, what in enumerate(PARTS):
            shown = _draw(grid[2 * row + part], own, part)
            grid[2 * row + part].set(title=f"client {one['client']}: loss on {what}", xlabel="x", ylabel="y")
            made.colorbar(shown, ax=grid[2 * row + part])
        lines.append(_line(one, own))
        numbers += _numbers(one["client"], own)
    heads = ("client", "x", "y", "own", "others")
    title = f"{run.job.task}: landscapes of two clients' fine-tuning, seed {run.job.seed}"
    return style.Drawing(made, title, [LANDSCAPE_NOTE], lines, Numbers(heads, numbers))


def grid_minima(loss: np.ndarray) -> list[tuple[int, int]]:
    """(row, column) of the points [H, W] that are lower than all their neighbours, up to eight; the lowest first."""
    rows, columns = loss.shape
    found = []
    for i in range(rows):
        for j in range(columns):
            around = loss[max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2]
            if loss[i, j] == around.min() and (around == loss[i, j]).sum() == 1:
                found.append((i, j))
    return sorted(found, key=lambda place: loss[place])


def _draw(axes: Axes, own: Mapping[str, np.ndarray], part: int) -> Any:
    loss = own["loss"][:, :, part]
    top = float(np.quantile(loss, 0.95))  # the corners would take all levels
    levels = np.linspace(float(loss.min()), top, 18)
    shown = axes.contourf(own["x"], own["y"], loss, levels=levels, cmap="viridis_r", extend="max")
    axes.plot([0, 1], [0, 0], ls="--", color="white", lw=1.3)
    axes.plot(own["path"][:, 0], own["path"][:, 1], marker="o", ms=3, lw=1.2, color="black")
    axes.plot(0, 0, marker="*", ms=13, color="white", mec="black", ls="")
    for number, (i, j) in enumerate(grid_minima(loss)):
        look = {"marker": "v", "ms": 9} if number == 0 else {"marker": "x", "ms": 6}
        axes.plot(own["x"][j], own["y"][i], color=style.PALETTE[2], mec="white" if number == 0 else None, ls="", **look)
    return shown


def _line(one: Mapping[str, Any], own: Mapping[str, np.ndarray]) -> str:
    ends = own["segment"][[0, -1]]
    return (
        f"client {one['client']}: loss on its own {ends[0, 0]:.3f} -> {ends[1, 0]:.3f}, on the others' "
        f"{ends[0, 1]:.3f} -> {ends[1, 1]:.3f}; above the line between the ends by at most {one['barrier']:+.3f}, "
        f"{one['barrier_others']:+.3f}; the path lies up to {own['path'][:, 2].max():.2f} lengths off the plane"
    )


def _numbers(client: int, own: Mapping[str, np.ndarray]) -> list[tuple[float, ...]]:
    places = [(x, y, i, j) for i, y in enumerate(own["y"]) for j, x in enumerate(own["x"])]
    return [(client, x, y, *own["loss"][i, j]) for x, y, i, j in places]
