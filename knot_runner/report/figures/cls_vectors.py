"""t-SNE of the student's [CLS] vectors (KNOT Fig. 6-8), each with a number measured on the vectors themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.report.figures.style import (
    GRAY,
    Drawing,
    by_name,
    figure_of,
    label_colors,
    label_text,
    panels,
    seed_list,
    side_legend,
)
from knot_runner.report.render.text import estimate_text, number
from knot_runner.report.run_folders import VECTORS, StagesRun, arrays
from knot_runner.report.statistics.intervals import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEIGHBORS = 10
#: Points drawn per panel; t-SNE takes minutes for more and the eye sees no more. The numbers use all vectors.
_MAX_POINTS = 2500
VECTOR_NOTE = (
    "t-SNE keeps neighbors, not distances or sizes of clusters. Purity: share of a vector's 10 nearest that have its "
    "label, in the original space; chance: the same for labels in random order."
)


def purity(vectors: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The share of the nearest others of ``vectors`` [M, H] that have their label of ``labels`` [M], and its
    expectation for labels in random order."""
    from sklearn.neighbors import NearestNeighbors

    count = min(NEIGHBORS, len(vectors) - 1)
    near = NearestNeighbors(n_neighbors=count).fit(vectors).kneighbors(return_distance=False)  # without the point
    sizes = np.bincount(labels)
    chance = (sizes * (sizes - 1)).sum() / (len(labels) * (len(labels) - 1))
    return float((labels[near] == labels[:, None]).mean()), float(chance)


@figure_of(reads=(VECTORS,), needs="labels.coordinates")
def vector_figure(runs: list[StagesRun], command: str) -> Drawing:
    """A t-SNE panel per method and setting, colored by label.

    Each panel shows the lowest seed there; its number, which comes back as a line, is the mean over the seeds. t-SNE is
    seeded.
    """
    groups = by_name(runs)
    labels = runs[0].result.labels
    colors = label_colors(labels)
    made, grid = panels(len(groups), *((3.7, 3.9) if len(groups) > 1 else (5.6, 5.2)))
    lines = []
    for axes, (name, members) in zip(grid, groups.items(), strict=True):
        stored = [arrays(run, VECTORS) for run in sorted(members, key=lambda run: run.seed)]
        _scatter_labels(axes, stored[0]["vectors"], stored[0]["labels"], colors)
        shares, chances = zip(*(purity(one["vectors"], one["labels"]) for one in stored), strict=True)
        text = f"purity {estimate_text(*mean_interval(shares), 2, 1.0)} (chance {number(chances[0], 2)})"
        axes.set(title=name, xlabel=text)
        lines.append(f"{name} (seeds {seed_list(members)}): {NEIGHBORS}-neighbor {text}")
    for color, text in zip(colors, labels.names, strict=True):
        grid[0].scatter([], [], s=40, color=color, label=label_text(text))
    side_legend(made, grid, title="true label")
    return Drawing(made, "Student's [CLS] vectors by true label", [VECTOR_NOTE], lines)


def _scatter_labels(axes: Axes, points: np.ndarray, labels: np.ndarray, colors: list[Any]) -> None:
    from sklearn.manifold import TSNE

    order = np.random.default_rng(0).permutation(len(points))[:_MAX_POINTS]  # no label lies on top of the others
    points = points[order]
    labels = labels[order]
    perplexity = min(30.0, (len(points) - 1) / 3)
    flat = TSNE(random_state=0, init="pca", perplexity=perplexity).fit_transform(points.astype(np.float64))
    axes.scatter(flat[:, 0], flat[:, 1], s=9, c=[colors[label] for label in labels], alpha=0.8, linewidths=0)
    axes.set(xticks=[], yticks=[], box_aspect=1)
    axes.spines[:].set(visible=True, color=GRAY)
