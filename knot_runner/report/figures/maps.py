"""Heat maps of clients, or of data sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_map(axes: Axes, matrix: np.ndarray, groups: Sequence[int] | None, **look: Any) -> Any:
    """Draw ``matrix`` [N, N] in the colors of ``look`` with a color bar, and return the image.

    If ``groups`` [N] are given, rows and columns are sorted by group.
    """
    if groups is not None:
        order = np.argsort(groups, kind="stable")
        matrix = matrix[np.ix_(order, order)]
    image = axes.imshow(matrix, **look)
    axes.figure.colorbar(image, ax=axes, shrink=0.75)
    axes.spines[:].set_visible(False)
    return image


def mark_clients(axes: Axes, groups: Sequence[int] | None, xlabel: str = "client") -> None:
    """Label the axes with clients, or with their ``groups`` and lines between the groups."""
    if groups is None:
        axes.set(xlabel=xlabel, ylabel="client")
        axes.locator_params(integer=True)
        return
    ends = np.flatnonzero(np.diff(sorted(groups))) + 1
    for end in ends:
        axes.axvline(end - 0.5, color="white", lw=1)
        axes.axhline(end - 0.5, color="white", lw=1)
    edges = np.array([0, *ends, len(groups)])
    middles = (edges[:-1] + edges[1:] - 1) / 2
    label = "clients by planted group"
    names = [str(group) for group in sorted(set(groups))]
    axes.set_xticks(middles, names)
    axes.set_yticks(middles, names)
    axes.set(xlabel=label, ylabel=label)
    axes.tick_params(length=0)
