"""Figure of a partition: how many training examples each client has, and of which classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from knot_runner.report.figures.style import Drawing, figure_settings, label_text, name_ticks, nth_color, panels, save
from knot_runner.report.render.markup import csv_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Sizes in inches: the width and the limits of the height of the figure, and the height of a client's row.
WIDTH = 9.5
MIN_HEIGHT = 3.4
MAX_HEIGHT = 8.5
ROW = 0.17


def draw_partition(
    counts: np.ndarray, names: Sequence[str], classes: Sequence[str], path: Path, title: str, notes: Sequence[str] = ()
) -> list[str]:
    """Draw a partition, and write the counts of training examples to a CSV file.

    The colors of a heat map show the fraction of each class in a client's training examples. Bars show how many
    examples each client has. Classes without examples appear only in the CSV file.

    Args:
        counts: Counts of training examples, shape [clients, classes].
        names: Names of the clients.
        classes: Names of the classes.
        path: Path of the figure. The CSV file has the same name with the suffix ``.csv``.
        title: Title of the figure.
        notes: Lines below the figure.

    Returns:
        Lines of text that describe the partition, see :func:`partition_lines`.
    """
    drawn = np.flatnonzero(counts.any(0))
    missing = len(classes) - len(drawn)
    absent = [f"{missing} of {len(classes)} classes have no training examples and are not drawn."] if missing else []
    lines = partition_lines(counts) + absent
    rows = zip(names, counts.sum(1), *counts.T, strict=True)
    numbers = csv_text(["client", "examples", *classes], rows, digits=6)
    with figure_settings():
        height = min(MAX_HEIGHT, max(MIN_HEIGHT, ROW * len(counts) + 1.6))
        figure, (shares, sizes) = panels(2, WIDTH / 2, height, across=2, sharey=True, width_ratios=[4, 1])
        _shares(shares, counts[:, drawn], names, np.array(classes)[drawn].tolist())
        sizes.barh(np.arange(len(counts)), counts.sum(1), height=0.8, color=nth_color(0))
        sizes.tick_params(axis="y", length=0, labelleft=False)
        sizes.spines.left.set_visible(False)
        sizes.set_title("Training examples")
        save(Drawing(figure, title, [*notes, *absent], lines, numbers), path)
    return lines


def partition_lines(counts: np.ndarray) -> list[str]:
    """Return two lines of text that describe a partition.

    The first line states the number of clients, and the minimum, median and maximum count of examples per client. The
    second line covers only clients that have examples. It states the mean fraction of a client's most frequent class,
    and the mean number of classes per client.

    Args:
        counts: Counts of training examples, shape [clients, classes].
    """
    sizes = counts.sum(1)
    held = counts[sizes > 0]
    largest = (held.max(1) / held.sum(1)).mean()
    kinds = (held > 0).sum(1).mean()
    return [
        f"{len(counts)} clients with {sizes.min()} / {np.median(sizes):g} / {sizes.max()} training examples "
        "(least / median / most)",
        f"mean largest class share {largest:.3f}; {kinds:.1f} classes per client on average, of {counts.any(0).sum()}",
    ]


def _shares(axes: Axes, counts: np.ndarray, names: Sequence[str], classes: Sequence[str]) -> None:
    from matplotlib.colors import PowerNorm

    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    # The color is the square root, so that shares of 1% and 50% are both visible.
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, shares.max()), aspect="auto")
    bar = axes.figure.colorbar(image, ax=axes, location="right", pad=0.01, fraction=0.04, aspect=30)
    bar.outline.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    name_ticks(axes.set_yticks, [name.removeprefix("client ") for name in names])
    rotation = 90 if max(map(len, classes)) > 3 else 0
    name_ticks(axes.set_xticks, list(map(label_text, classes)), rotation=rotation)
    axes.set(title="Share of the client's examples", xlabel="class", ylabel="client")
