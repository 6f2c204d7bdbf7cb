"""Figures of predictions and of the student's [CLS] vectors.

- the expected label by true label (KNOT Fig. 2)
- the L2 confidence ||p - B|| of a prediction p on the simplex of three labels, where B is the teacher's bias (Fig. 5)
- a t-SNE of the student's [CLS] vectors, and the fraction of nearest neighbors with the same label (Fig. 6-8)
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.papers.knot.bias_figures import with_bias
from knot_runner.report.figures.style import (
    GRAY,
    PALETTE,
    Drawing,
    by_name,
    draw_boxes,
    figure_of,
    label_colors,
    label_text,
    nth_color,
    panels,
    seed_list,
    side_legend,
)
from knot_runner.report.render.text import estimate_text, number, plain
from knot_runner.report.run_folders import PREDICTIONS, VECTORS, StagesRun, arrays, predictions
from knot_runner.report.statistics.intervals import mean_interval
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Line styles of a box plot's median, mean and whiskers.
BOX_LOOK = {
    "medianprops": {"color": "#D00000", "lw": 2},
    "meanprops": {"marker": "D", "markerfacecolor": "black", "markeredgecolor": "white", "markersize": 6},
    "whiskerprops": {"color": GRAY},
    "capprops": {"color": GRAY},
}
#: Corners of the drawn triangle. The distance between two corners of the simplex is sqrt(2).
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
CONFIDENCE_NOTE = "Cross: bias B. Lines: equal confidence. Arrow: to the corner of greatest confidence."
GREEN = "#007A3D"
STEP = 0.1


@figure_of(reads=(PREDICTIONS,), needs="labels.coordinates")
def expected_label(runs: list[StagesRun]) -> Drawing:
    """Box plots of the expected label by true label, with a box per method (Fig. 2).

    The expected label of a prediction p is ``sum_l p_l * coordinate_l``. Predictions are pooled over test sets and
    seeds.

    Raises:
        UserError: The labels have more than one coordinate each.
    """
    import pandas as pd

    labels = runs[0].result.labels
    points = np.asarray(labels.coordinates, dtype=float)
    if points.shape[1] != 1:
        raise UserError("the figure needs labels with one coordinate each. Use task=sa", "task.labels.coordinates")
    groups = by_name(runs)
    figure, (axes,) = panels(1, max(7.0, 0.42 * len(groups) * len(points) + 3.4), 4.6)
    texts = [label_text(name, "\n") for name in labels.names]
    axes.set_xticks(range(len(points)), texts)
    axes.set_yticks(points[:, 0], texts)
    axes.set(xlabel="true label", ylabel="expected label")
    width = 0.8 / len(groups)
    shown = {}
    lines = []
    for i, (name, members) in enumerate(groups.items()):
        parts = itertools.chain(*(predictions(run).values() for run in members))
        shares, truths = map(np.concatenate, zip(*parts, strict=True))
        values = dict(list(pd.Series(shares.astype(float) @ points[:, 0]).groupby(truths)))
        positions = np.array(list(values)) - 0.4 + width * (i + 0.5)  # boxes next to each other
        look = {"positions": positions, "widths": width * 0.82, "showmeans": True, **BOX_LOOK}
        boxes = draw_boxes(axes, list(values.values()), nth_color(i), 0.75, **look)
        shown[name] = boxes["boxes"][0]
        for label, of_label in values.items():
            low, middle, high = np.percentile(of_label, (25, 50, 75))
            spread = f"median {middle:.3f} ({low:.3f} to {high:.3f}), mean {of_label.mean():.3f}"
            lines.append(f"{name}, {labels.names[label]}: expected label {spread}")
    for label, truth in enumerate(points[:, 0]):
        (dashes,) = axes.plot([label - 0.46, label + 0.46], [truth, truth], ls="--", color=GRAY, lw=1.3, zorder=0)
    axes.set_ylim(points.min() - 0.15, points.max() + 0.15)
    side_legend(figure, shown | {"median": boxes["medians"][0], "mean": boxes["means"][0], "truth": dashes})
    sets = sorted(set().union(*(run.result.metrics.get("sd", {}) for run in runs)) - {"ALL"})
    note = f"Test sets pooled: {', '.join(sets)}. Boxes: quartiles; whiskers: up to 1.5 box heights."
    return Drawing(figure, "Expected label by true label", [note], lines)


@figure_of
def confidence(runs: list[StagesRun]) -> Drawing:
    """Confidence ||p - B|| for three labels, with the prediction p and the teacher's bias B (Fig. 5).

    Each teacher has a triangle, the simplex of the labels. The triangle shows B, lines of equal confidence, and an
    arrow to the corner with the greatest confidence. The returned text gives B and the confidence at each corner. Only
    the first run with biases is drawn.

    Raises:
        UserError: The task does not have three labels, or no run recorded biases.
    """
    run = with_bias(runs)[0]
    names = run.result.labels.names
    if len(names) != 3:
        raise UserError(f"the figure needs three labels, but the task has {len(names)}. Use task=nli", "task.labels")
    biases = run.result.bias or {}
    shares = np.array(list(biases.values()))  # [K, 3]
    corners = np.linalg.norm(np.eye(3) - shares[:, None], axis=2)  # [K, 3]: confidence at each corner
    top = corners.max()
    figure, grid = panels(len(shares), 3.6, 3.5)
    lines = []
    for axes, name, share, at_corners in zip(grid, biases, shares, corners, strict=True):
        each = ", ".join(f"{text} {b:.3f} / {w:.3f}" for text, b, w in zip(names, share, at_corners, strict=True))
        greatest = names[at_corners.argmax()]
        lines.append(f"{name}: bias / confidence at the corner: {each}; greatest at {greatest}")
        image = _triangle(axes, share, names, top)
        axes.set_title(plain(name), pad=8)
    figure.colorbar(image, ax=grid, label="confidence ||p - B||", shrink=0.7, ticks=np.arange(0, top, 2 * STEP))
    title = f"Confidence of a prediction, per teacher (seed {run.seed})"
    return Drawing(figure, title, [CONFIDENCE_NOTE], lines)


def _triangle(axes: Axes, share: np.ndarray, names: list[str], top: float) -> Any:
    """Draw the simplex of the three labels ``names`` with the bias ``share`` (shape [3]); return the colored artist."""
    from matplotlib import colormaps
    from matplotlib.tri import Triangulation, UniformTriRefiner

    mesh = UniformTriRefiner(Triangulation(CORNERS[:, 0], CORNERS[:, 1], [[0, 1, 2]])).refine_triangulation(subdiv=6)
    high = mesh.y / CORNERS[2, 1]
    shares = np.stack([1 - mesh.x - high / 2, mesh.x - high / 2, high], axis=1)
    levels = np.arange(0, top + STEP, STEP)
    grays = colormaps["Greys"](np.linspace(0.05, 0.55, len(levels) - 1))
    distance = np.linalg.norm(shares - share, axis=1)
    image = axes.tricontourf(mesh, distance, levels=levels, colors=grays)
    axes.tricontour(mesh, distance, levels=levels[2::2], colors="white", linewidths=1.6)
    axes.fill(*CORNERS.T, fill=False, ec=GRAY, lw=1.3)
    start = share @ CORNERS
    end = start + 0.9 * (CORNERS[share.argmin()] - start)
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": GREEN, "lw": 2.5}, zorder=4)
    axes.plot(*start, marker="X", ms=11, color=PALETTE[2], mec="white", zorder=5)
    left, right, above = map(label_text, names)
    for x, text, side in ((0, left, "left"), (1, right, "right")):
        axes.text(x, -0.06, text.replace(" ", "\n"), ha=side, va="top")  # in one line the two would meet
    axes.text(0.5, CORNERS[2, 1] + 0.04, above, ha="center", va="bottom")
    axes.set(aspect="equal", xlim=(-0.06, 1.06), ylim=(-0.2, 1.05))
    axes.axis("off")
    return image


# ------------------------------------------------------------------------------------------------------------- vectors

NEIGHBORS = 10
#: Maximum number of points drawn per panel, since t-SNE takes minutes for more. The numbers use all vectors.
_MAX_POINTS = 2500
VECTOR_NOTE = (
    "t-SNE keeps neighbors, not distances or sizes of clusters. Purity: share of a vector's 10 nearest that have its "
    "label, in the original space; chance: the same for labels in random order."
)


def purity(vectors: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the purity of ``vectors`` [M, H] with ``labels`` [M], and the expected purity for permuted labels.

    The purity is the fraction of a vector's nearest neighbors that have the vector's label, averaged over vectors. The
    number of neighbors is :data:`NEIGHBORS`, or M - 1 if M - 1 is smaller.
    """
    from sklearn.neighbors import NearestNeighbors

    count = min(NEIGHBORS, len(vectors) - 1)
    near = NearestNeighbors(n_neighbors=count).fit(vectors).kneighbors(return_distance=False)  # not itself
    sizes = np.bincount(labels)
    chance = (sizes * (sizes - 1)).sum() / (len(labels) * (len(labels) - 1))
    return float((labels[near] == labels[:, None]).mean()), float(chance)


@figure_of(reads=(VECTORS,), needs="labels.coordinates")
def vector_figure(runs: list[StagesRun]) -> Drawing:
    """t-SNE of the student's [CLS] vectors, colored by true label, with a panel per method and setting (Fig. 6-8).

    Each panel shows the run with the lowest seed. The panel and the returned text give the purity (see
    :func:`purity`), averaged over seeds.
    """
    from sklearn.manifold import TSNE

    groups = by_name(runs)
    labels = runs[0].result.labels
    colors = label_colors(labels)
    width, height = (3.7, 3.9) if len(groups) > 1 else (5.6, 5.2)
    figure, grid = panels(len(groups), width, height)
    lines = []
    for axes, (name, members) in zip(grid, groups.items(), strict=True):
        stored = []
        for run in sorted(members, key=lambda run: run.seed):
            kept = arrays(run, VECTORS)
            stored.append((kept["vectors"], kept["labels"]))
        vectors, truth = stored[0]
        order = np.random.default_rng(0).permutation(len(vectors))[:_MAX_POINTS]  # mixes the labels
        points = vectors[order].astype(np.float64)
        perplexity = min(30.0, (len(points) - 1) / 3)
        x, y = TSNE(random_state=0, init="pca", perplexity=perplexity).fit_transform(points).T
        axes.scatter(x, y, s=9, c=np.array(colors)[truth[order]], alpha=0.8, linewidths=0)
        axes.spines[:].set(visible=True, color=GRAY)
        shares, chances = zip(*itertools.starmap(purity, stored), strict=True)
        text = f"purity {estimate_text(*mean_interval(shares), 2, 1.0)} (chance {number(chances[0], 2)})"
        axes.set(title=name, xlabel=text, xticks=[], yticks=[], box_aspect=1)
        lines.append(f"{name} (seeds {seed_list(members)}): {NEIGHBORS}-neighbor {text}")
    for color, text in zip(colors, labels.names, strict=True):
        grid[0].scatter([], [], s=40, color=color, label=label_text(text))
    side_legend(figure, grid, title="true label")
    return Drawing(figure, "Student's [CLS] vectors by true label", [VECTOR_NOTE], lines)
