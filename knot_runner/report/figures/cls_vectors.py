"""t-SNE of the student's [CLS] vectors (KNOT Fig. 6-8), each with a number measured on the vectors themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knot_runner.report import run_folders
from knot_runner.report.figures import style
from knot_runner.report.render.table_model import display
from knot_runner.report.render.text import number, plain, spread_text
from knot_runner.report.run_folders import Run
from knot_runner.report.statistics.intervals import mean_interval

NEIGHBOURS = 10
#: Points drawn per panel; t-SNE takes minutes for more and the eye sees no more. The numbers use all vectors.
_MAX_POINTS = 2500
VECTOR_NOTE = (
    "t-SNE keeps neighbours, not distances or sizes of clusters. Purity: share of a vector's 10 nearest that have its "
    "label, in the original space."
)


@dataclass(frozen=True)
class Separation:
    """How far labels keep apart in the original vectors.

    ``purity``: share of a point's 10 nearest others with its label, over all and ``by_label``; ``chance``: the same
    if labels were dealt at random. ``silhouette``: -1 to 1.
    """

    purity: float
    by_label: tuple[float, ...]
    chance: float
    silhouette: float


def separation(vectors: np.ndarray, labels: np.ndarray, classes: int) -> Separation:
    """:class:`Separation` of ``vectors`` [M, H] by ``labels`` [M]; a label not in the sample has purity NaN."""
    from sklearn.metrics import silhouette_score
    from sklearn.neighbors import NearestNeighbors

    count = min(NEIGHBOURS, len(vectors) - 1)
    near = NearestNeighbors(n_neighbors=count).fit(vectors).kneighbors(return_distance=False)  # without the point
    same = (labels[near] == labels[:, None]).mean(1)
    by_label = tuple(float(same[labels == c].mean()) if (labels == c).any() else float("nan") for c in range(classes))
    sizes = np.bincount(labels, minlength=classes)
    chance = float((sizes * (sizes - 1)).sum() / (len(labels) * (len(labels) - 1)))
    some = 1 < len(np.unique(labels)) < len(labels)
    silhouette = silhouette_score(vectors, labels, sample_size=min(5000, len(labels)), random_state=0) if some else 0.0
    return Separation(float(same.mean()), by_label, chance, float(silhouette))


@style.figure_of(reads=(run_folders.VECTORS,))
def vector_figure(runs: list[Run], command: str) -> style.Drawing:
    """A t-SNE panel per method and setting, coloured by label.

    Each panel shows the lowest seed there; its number is the mean over the seeds. t-SNE is seeded.
    """
    groups = style.by_name(runs)
    labels = runs[0].result["labels"]
    colours = style.label_colours(labels["coordinates"])
    made, grid = style.panels(len(groups), *((3.7, 3.9) if len(groups) > 1 else (5.6, 5.2)))
    lines = []
    for axes, (name, members) in zip(grid, groups.items(), strict=True):
        vectors = [run_folders.cls_vectors(run, command) for run in sorted(members, key=lambda run: run.job.seed)]
        found = [separation(*one, len(colours)) for one in vectors]
        _scatter_labels(axes, *vectors[0], colours)
        axes.set(title=plain(name), xlabel=_purity(found))
        seeds = f"seed{'s' * (len(members) > 1)} {style.seed_list(members)}"
        lines.append(f"{name} ({seeds}): {NEIGHBOURS}-neighbour {_purity(found)}; {_more(found, labels['names'])}")
    for colour, text in zip(colours, labels["names"], strict=True):
        grid[0].scatter([], [], s=40, color=colour, label=style.label_text(text))
    style.side_legend(made, grid, title="true label")
    methods = {display(run.job.method) for run in runs}
    of = f" ({methods.pop()})" if len(methods) == 1 < len(groups) else ""
    return style.Drawing(made, f"Student's [CLS] vectors by true label{of}", [VECTOR_NOTE], lines)


def _scatter_labels(axes: style.Axes, points: np.ndarray, labels: np.ndarray, colours: list[Any]) -> None:
    from sklearn.manifold import TSNE

    if len(points) > _MAX_POINTS:
        chosen = np.sort(np.random.default_rng(0).permutation(len(points))[:_MAX_POINTS])
        points, labels = points[chosen], labels[chosen]
    perplexity = min(30.0, (len(points) - 1) / 3)
    flat = TSNE(random_state=0, init="pca", perplexity=perplexity).fit_transform(points.astype(np.float64))
    order = np.random.default_rng(0).permutation(len(flat))  # so that no label lies on top of the others
    axes.scatter(*flat[order].T, s=9, c=[colours[label] for label in labels[order]], alpha=0.8, linewidths=0)
    axes.set(xticks=[], yticks=[], box_aspect=1)
    axes.spines[:].set(visible=True, color=style.GREY)


def _mean_text(values: Sequence[float], top: float | None = None) -> str:
    mean, half = mean_interval(values)
    return number(mean, 2) + (spread_text(mean, half, 2, top) if half is not None else "")


def _purity(found: list[Separation]) -> str:
    return f"purity {_mean_text([s.purity for s in found], top=1.0)} (chance {number(found[0].chance, 2)})"


def _more(found: list[Separation], names: list[str]) -> str:
    means = [np.mean([s.by_label[c] for s in found]) for c in range(len(names))]
    each = ", ".join(f"{name} {mean:.2f}" for name, mean in zip(names, means, strict=True)).replace("nan", "none")
    return f"by label {each}; silhouette {_mean_text([s.silhouette for s in found])}"
