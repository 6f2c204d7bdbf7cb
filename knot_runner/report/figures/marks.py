"""Marks of figures: curves, bars, boxes, points and heat maps.

A mark is a function that draws one panel. Its argument ``summary`` contains means over runs, and its argument
``points`` contains the values of single runs. A series is a set of runs with the same label. A position is a value on
the x axis.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from knot_runner.report.figures.style import GRAY, draw_band, draw_boxes, name_ticks

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

CONFUSION = "confusion"
#: Maximum number of columns of a heat map that has numbers in the cells.
MOST_WRITTEN = 12
#: Total width of the bars at a position (neighboring positions have distance 1), and the number of letters per inch.
BARS = 0.8
LETTERS_PER_INCH = 7.0
#: Format of percentages.
WHOLE = "{:.0f}"
LINES = ("-", "--", ":", "-.")
MARKERS = "os^Dv<>P"


class SeriesLook(NamedTuple):
    """Color, line style and marker of a series."""

    color: Any
    line: str
    marker: str


#: Name of a series -> its color, line and marker, which are the same in every panel.
SeriesLooks = Mapping[str, SeriesLook]


def _name_places(axes: Axes, summary: pd.DataFrame) -> None:
    """Put the names of the positions on the x axis, rotated if the names are too long for the panel."""
    names = summary.place.cat.categories
    spec = axes.get_subplotspec()
    room = LETTERS_PER_INCH * axes.figure.bbox.width / axes.figure.dpi / (spec.get_gridspec().ncols if spec else 1)
    name_ticks(axes.set_xticks, names, rotation=90 if sum(map(len, names)) > room else 0)


def curve(axes: Axes, summary: pd.DataFrame, points: pd.DataFrame, looks: SeriesLooks) -> None:
    """Draw a line through the means of each series, and a band for the intervals of these means."""
    named = summary.place.dtype == "category"
    for name, rows in summary.groupby("series", observed=True):
        look = looks[name]
        marker = look.marker if named or len(rows) == 1 else ""
        draw_band(axes, rows, look.color, "x", ls=look.line, marker=marker, label=name)
    axes.margins(x=0.02)
    axes.locator_params(axis="x", integer=axes.get_xlabel().startswith("rounds"))
    if named:
        _name_places(axes, summary)


def bar(axes: Axes, summary: pd.DataFrame, points: pd.DataFrame, looks: SeriesLooks) -> None:
    """Draw a bar for the mean of each series at each position, and a whisker for the interval of the mean."""
    width = BARS / len(summary.series.cat.categories)
    for name, rows in summary.groupby("series", observed=True):
        errors = (rows.value - rows.low, rows.high - rows.value)
        color = looks[name].color
        axes.bar(rows.x, rows.value, width, yerr=errors, color=color, label=name, ecolor=GRAY, capsize=3, alpha=0.85)
    _name_places(axes, summary)


def box(axes: Axes, summary: pd.DataFrame, points: pd.DataFrame, looks: SeriesLooks) -> None:
    """Draw a box plot for each series at each position, and a point for each value."""
    width = BARS / len(summary.series.cat.categories)
    rng = np.random.default_rng(0)
    for name, rows in points.groupby("series", observed=True):
        color = looks[name].color
        x, values = zip(*rows.groupby("x").y, strict=True)
        draw_boxes(axes, values, color, 0.45, positions=x, widths=0.8 * width, label=name)
        axes.plot(rows.x + rng.uniform(-width / 4, width / 4, len(rows)), rows.y, ".", ms=3, color=color)
    _name_places(axes, summary)


def scatter(axes: Axes, summary: pd.DataFrame, points: pd.DataFrame, looks: SeriesLooks) -> None:
    """Draw a small point for each run, and a large point for the mean of each series."""
    for name, rows in points.groupby("series", observed=True):
        look = looks[name]
        axes.plot(rows.x, rows.y, look.marker, ms=4, alpha=0.5, color=look.color)
        axes.plot(rows.x.mean(), rows.y.mean(), look.marker, ms=9, color=look.color, mec="white", label=name)
    axes.margins(0.1)


def heat_map(
    axes: Axes, summary: pd.DataFrame, points: pd.DataFrame, looks: SeriesLooks, form: str = "{:.3g}", **style: Any
) -> None:
    """Draw a cell for each series at each position. The color of the cell shows the mean.

    The mean is also printed in the cell, unless there are too many columns.

    Args:
        axes: The axes to draw on.
        summary: The means.
        points: Not used.
        looks: Not used.
        form: The format of a printed mean, such as ``{:.3g}``.
        **style: Options of matplotlib's ``imshow``.
    """
    rows = summary.series.cat.categories
    columns = summary.place.cat.categories
    table = summary.set_index(["series", "place"]).value.unstack().reindex(index=rows, columns=columns)
    image = axes.imshow(table, aspect="auto", alpha=0.6, **style)  # pale, so that black text can be read
    axes.figure.colorbar(image, ax=axes, label=axes.get_ylabel())
    axes.set_ylabel("true class" if form == WHOLE else "")
    axes.spines[:].set_visible(False)
    _name_places(axes, summary)
    name_ticks(axes.set_yticks, rows)
    if len(columns) > MOST_WRITTEN:
        return
    for (i, j), value in np.ndenumerate(table):
        if not np.isnan(value):
            axes.text(j, i, form.format(value), ha="center", va="center", size=8)


def limit_to_shares(axes: Axes, top: float) -> None:
    """Limit the y axis to the range of a fraction or percentage, from 0 to ``top``.

    A small margin keeps lines at 0 and ``top`` visible.
    """
    (low, high), edge = axes.get_ylim(), 0.015 * top
    axes.set_ylim(max(low, -edge), min(high, top + edge))


MARKS: dict[str, Callable[..., None]] = {
    "curve": curve,
    "bar": bar,
    "box": box,
    "scatter": scatter,
    "heatmap": functools.partial(heat_map, cmap="viridis", origin="lower"),
    CONFUSION: functools.partial(heat_map, form=WHOLE, cmap="Blues", vmin=0, vmax=100),
}
