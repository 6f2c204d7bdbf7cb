"""Heat maps of square matrices over clients or data sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_map(axes: Axes, matrix: np.ndarray, groups: Sequence[int] | None, **look: Any) -> Any:
    """Draw a matrix as a heat map with a color bar, and return matplotlib's ``AxesImage``.

    Args:
        axes: The axes to draw on.
        matrix: The matrix, shape [N, N], for N clients or data sets.
        groups: The group of each client. Rows and columns are sorted by group. None disables the sorting.
        **look: Options of matplotlib's ``imshow``.
    """
    if groups is not None:
        order = np.argsort(groups, kind="stable")
        matrix = matrix[np.ix_(order, order)]
    image = axes.imshow(matrix, **look)
    axes.figure.colorbar(image, ax=axes, shrink=0.75)
    axes.spines[:].set_visible(False)
    return image


def mark_clients(axes: Axes, groups: Sequence[int] | None, xlabel: str = "client") -> None:
    """Label both axes of a heat map of clients.

    Args:
        axes: The axes of the heat map.
        groups: The group of each client. The ticks name the groups, and white lines separate the groups. If None, the
            ticks are the indices of the clients.
        xlabel: The label of the x axis if ``groups`` is None.
    """
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
    names = np.unique(groups).astype(str)
    axes.set_xticks(middles, names)
    axes.set_yticks(middles, names)
    axes.set(xlabel=label, ylabel=label)
    axes.tick_params(length=0)
