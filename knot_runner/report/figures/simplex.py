"""The L2 confidence on the probability simplex (KNOT Fig. 5): a prediction counts by its distance from the bias B."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.report import run_folders
from knot_runner.report.figure_style import GREY, PALETTE, figure_of, label_text, panels, save
from knot_runner.report.figures.bias import with_bias
from knot_runner.report.run_folders import Run
from knot_runner.report.text import plain

#: Corners of the triangle as drawn; on the simplex they are sqrt(2) apart.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
ON_FACE = " (those with 95% of their mass on these labels, 800 at most)."
GREEN, STEP, _MAX_POINTS = "#007A3D", 0.1, 800


def face(share: np.ndarray) -> list[int]:
    """Three labels whose triangle is shown: the two heaviest in the bias and the lightest, where confidence is greatest
    (Prop. B.1). For three labels that is all of them."""
    order = np.argsort(-share, kind="stable")
    return sorted([int(order[0]), int(order[1]), int(order[-1])])


def foot(share: np.ndarray, chosen: list[int]) -> np.ndarray:
    """The point of the face ``chosen`` that is nearest to B, [3]: circles of equal confidence are centred there."""
    return share[chosen] + (1 - share[chosen].sum()) / 3


@functools.partial(figure_of, reads=(run_folders.PREDICTIONS,))
def confidence(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """A triangle per teacher: B, arcs of equal confidence ||p - B||, an arrow to the most confident corner (Fig. 5).

    With more than three labels each triangle is the face of the simplex over three of them, with exact distances to
    the whole B. On the pretrained global model's triangle lie its own predictions. Returns B and the corners' values.
    """
    run = with_bias(runs)[0]
    names, shares = run.result["labels"]["names"], {k: np.array(v) for k, v in run.result["bias"].items()}
    top = max(np.linalg.norm(np.eye(len(names))[c] - b) for b in shares.values() for c in range(len(names)))
    made, grid = panels(len(shares), 3.6, 3.5)
    dots: list[str] = []
    for axes, (name, share) in zip(grid, shares.items(), strict=True):
        chosen = face(share)
        image = _triangle(axes, share, chosen, [label_text(names[c]) for c in chosen], top)
        axes.set_title(plain(name), pad=8)
        points, count = _own_predictions(run, name, chosen, command)
        axes.plot(*(points @ CORNERS).T, ls="", marker=".", ms=3, color="black", alpha=0.3, zorder=3)
        if count:
            dots.append(f"Dots: {len(points):,} of {name}'s {count:,} own predictions on its test set" + ON_FACE)
    made.colorbar(image, ax=grid, label="confidence ||p - B||", shrink=0.7, ticks=np.arange(0, top, 2 * STEP))
    said = ["Cross: bias B. Lines: equal confidence. Arrow: to the corner of greatest confidence."]
    if len(names) > 3:
        said.append("Each triangle: the two labels heaviest in B and the lightest; cross: its point nearest to B.")
    title = f"Confidence of a prediction, per teacher (seed {run.job.seed})"
    save(made, path, title, [*said, *dots, *notes])
    return [_numbers(name, share, names) for name, share in shares.items()]


def _numbers(name: str, share: np.ndarray, names: list[str]) -> str:
    corners = np.linalg.norm(np.eye(len(names)) - share, axis=1)
    each = ", ".join(f"{text} {b:.3f} / {w:.3f}" for text, b, w in zip(names, share, corners, strict=True))
    return f"{name}: bias / confidence at the corner: {each}; greatest at {names[int(corners.argmax())]}"


def _triangle(axes: Any, share: np.ndarray, chosen: list[int], names: list[str], top: float) -> Any:
    from matplotlib import colormaps
    from matplotlib.tri import Triangulation, UniformTriRefiner

    mesh = UniformTriRefiner(Triangulation(*CORNERS.T, [[0, 1, 2]])).refine_triangulation(subdiv=6)
    high = mesh.y / CORNERS[2, 1]
    shares = np.stack([1 - mesh.x - high / 2, mesh.x - high / 2, high], axis=1)
    rest = np.delete(share, chosen)
    weight = np.sqrt(((shares - share[chosen]) ** 2).sum(1) + (rest**2).sum())
    levels = np.arange(0, top + STEP, STEP)
    greys = colormaps["Greys"](np.linspace(0.05, 0.55, len(levels) - 1))
    image = axes.tricontourf(mesh, weight, levels=levels, colors=greys)
    axes.tricontour(mesh, weight, levels=levels[2::2], colors="white", linewidths=1.6)
    axes.fill(*CORNERS.T, fill=False, ec=GREY, lw=1.3)
    start, best = foot(share, chosen) @ CORNERS, int(np.argmin(share[chosen]))
    end = start + 0.9 * (CORNERS[best] - start)
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": GREEN, "lw": 2.5}, zorder=4)
    axes.plot(*start, marker="X", ms=11, color=PALETTE[2], mec="white", zorder=5)
    for corner, text, (x, y), side in zip(CORNERS, names, ((0, -0.06), (0, -0.06), (0, 0.04)), "lrc", strict=True):
        align = {"l": "left", "r": "right", "c": "center"}[side]
        place = corner + (x, y)
        broken = text if side == "c" else text.replace(" ", "\n")  # the two below would meet
        axes.text(*place, broken, ha=align, va="top" if y < 0 else "bottom")
    axes.set_aspect("equal")
    axes.set_xlim(-0.06, 1.06)
    axes.set_ylim(-0.2, 1.05)
    axes.axis("off")
    return image


def _own_predictions(run: Run, teacher: str, chosen: list[int], command: str) -> tuple[np.ndarray, int]:
    """Predictions [M, 3] of the pretrained global model on its test set, those on the face, and how many it made;
    none for local teachers, whose predictions are not kept."""
    of_global = run.result["datasets"].get(teacher, {}).get("role") == "global"
    before = run_folders.predictions(run, command).get(f"before/{teacher}") if of_global else None
    if before is None:
        return np.zeros((0, 3)), 0
    shares = before[0][:, chosen].astype(float)
    on_face = shares[shares.sum(1) > 0.95]
    kept = np.random.default_rng(0).permutation(len(on_face))[:_MAX_POINTS]
    return on_face[kept] / on_face[kept].sum(1, keepdims=True), len(shares)
