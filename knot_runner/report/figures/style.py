"""Common parts of figures: style, panels, colors and names, bands, boxes, logarithmic axes, legends, files."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.config.strict import by_key
from knot_runner.report.figures.output import current_output, write_figure
from knot_runner.report.render.table_model import display
from knot_runner.report.render.text import plain, short_line, spelled_labels
from knot_runner.report.run_folders import Job, Run, RunT, finished, readable
from knot_runner.report.run_rows import runs_with
from knot_runner.report.tables.footnotes import not_counted, sources
from knot_runner.results import ClassNames
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colors, which are distinct for every kind of color vision. Pale yellow is last.
PALETTE = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#F0E442")
GRAY = "#555555"
GRID_GRAY = "#EEEEEE"
DPI = 200
#: Fonts and lines. Files contain text as text (PDF: TrueType, SVG: <text>), and identifiers in an SVG are reproducible.
STYLE: dict[Any, Any] = {
    "font.size": 11, "axes.titlesize": "medium", "xtick.labelsize": "small", "ytick.labelsize": "small",
    "legend.fontsize": "small", "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": GRAY, "text.parse_math": False,
    "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "knot-runner",
}  # fmt: skip
#: Mark -> the note that explains how to read it.
READING = {
    "curve": "Lines: means over {}; bands: 95% t intervals.",
    "bar": "Bars: means over {}; whiskers: 95% t intervals.",
    "box": "Boxes: median and quartiles of the points, which are of {}; whiskers: at most 1.5 times the box.",
    "scatter": "Small points: single runs; large points: means over {}.",
    "heatmap": "Means over {}.",
    "confusion": "Rows add up to 100%. Means over {}.",
}
#: Heads of the estimates in CSV files.
BAND_HEADS = ("mean", "low", "high", "seeds")
#: Font size in print, in points.
PRINT_SIZE = 8
#: Maximum number of names along an axis.
MOST_NAMES = 30
#: Minimum width and height of panels in print, in inches. Panels that would be narrower are placed below each other.
NARROWEST_PANEL = 2.2
LOWEST_PANEL = 1.6


@dataclass(frozen=True)
class Drawing:
    """A drawn figure with its texts.

    Attributes:
        title: The text above the figure.
        notes: The lines below the figure.
        lines: The drawn numbers as lines of text.
        numbers: The content of the CSV file next to the figure.
    """

    figure: Figure
    title: str
    notes: Sequence[str]
    lines: list[str]
    numbers: str = ""


def figure_of(
    function: Callable[..., Drawing] | None = None, one_task: bool = True, reads: Sequence[str] = (), needs: str = ""
) -> Callable[..., Any]:
    """Turn a function that draws finished runs into a figure function, which reads jobs and writes files.

    The figure function has the arguments ``(jobs, path, notes=(), command="")``. It writes the files of the figure, and
    returns the drawn numbers as lines of text. Notes in the figure mention missing runs and state what limits
    comparisons. This decorator can be used with or without arguments.

    Args:
        function: Function that draws finished runs and returns a :class:`Drawing`.
        one_task: Whether the runs must have the same task.
        reads: Names of the run files that ``function`` reads. A run that lacks one of these files is left out.
        needs: A dotted key of the result. A run without this key is left out.

    Raises:
        UserError: The figure function raises this error if no run is finished, or if ``one_task`` is true and the runs
            have several tasks.
    """
    if function is None:
        return functools.partial(figure_of, one_task=one_task, reads=reads, needs=needs)

    @functools.wraps(function)
    def figure(jobs: Sequence[Job], path: Path, notes: Sequence[str] = (), command: str = "") -> list[str]:
        tasks = dict.fromkeys(job.task for job in jobs)
        if one_task and len(tasks) > 1:
            raise UserError(f"a figure shows one task, but these runs have several: {', '.join(tasks)}")
        loaded = readable(jobs, reads, command)
        runs = finished(loaded)
        if needs:
            runs = runs_with(runs, needs, f"{needs!r}, the result that this figure needs")
        status = [*not_counted(loaded), *sources(runs)]
        if len(runs) < len(jobs):
            status.insert(0, f"{len(runs)} of {len(jobs)} runs are finished.")
        with figure_settings():
            drawing = function(runs)
            if not isinstance(drawing, Drawing):
                raise UserError(f"figure {function.__name__} returned {type(drawing).__name__} instead of a Drawing")
            save(drawing, path, [*notes, *status])
        return [*drawing.lines, *status]

    return figure


def figure_settings() -> contextlib.AbstractContextManager[None]:
    """Return a context in which matplotlib uses this project's fonts and lines, and ignores the user's matplotlibrc."""
    from matplotlib import style

    settings = dict(STYLE)
    if current_output().width:
        settings["font.size"] = PRINT_SIZE
    return style.context(settings, after_reset=True)


def panels(count: int, width: float, height: float, across: int = 3, **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels. The figure needs no screen and is not registered with pyplot.

    Args:
        count: The number of panels.
        width: The width of a panel in inches.
        height: The height of a panel in inches.
        across: The maximum number of panels per row. In print, a row may have fewer panels.
        **options: Options of matplotlib's ``subplots``.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = 2 if count == 4 else min(count, across)
    total = current_output().width
    if total:
        if "width_ratios" not in options:  # panels of unequal width form one picture
            columns = max(1, min(columns, int(total / NARROWEST_PANEL)))
        height = max(height * total / columns / width, LOWEST_PANEL)
        width = total / columns
    rows = -(-count // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure = Figure(figsize=(width * columns, height * rows), dpi=DPI, layout=layout)
    grid = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for spare in grid[count:]:
        spare.remove()
    return figure, grid[:count]


def save(drawing: Drawing, path: Path, notes: Sequence[str] = ()) -> None:
    """Write a drawing as image files (see :func:`write_figure`), and its numbers as a CSV file with the same name.

    The lines ``notes`` are printed below the notes of the drawing. Each file is written atomically.
    """
    write_figure(drawing.figure, plain(drawing.title), list(map(plain, (*drawing.notes, *notes))), path)
    if drawing.numbers:
        write_atomic(path.with_suffix(".csv"), drawing.numbers)


def by_name(runs: Sequence[RunT]) -> dict[str, list[RunT]]:
    """Group runs by name. The name of a run states its method and the settings that distinguish it from other runs.

    Returns:
        A dict from name to runs. Runs with the same name have different seeds.
    """
    labels = spelled_labels(run.label for run in runs)
    short = {label: short_line(text) for label, text in labels.items()}
    if len(set(short.values())) == len(labels):
        labels = short
    several_methods = len({run.method for run in runs}) > 1
    named = []
    for run in runs:
        head = display(run.method) if several_methods or not run.label else ""
        named.append((plain(f"{head} {labels[run.label]}".strip()), run))
    return by_key(named)


def seed_list(runs: Iterable[Run]) -> str:
    """Return the distinct seeds of ``runs`` as text, such as ``0, 1, 2``."""
    return ", ".join(map(str, sorted({run.seed for run in runs})))


def seeds_note(runs: Sequence[Run]) -> str:
    """Return a note that lists the seeds of ``runs``. For several seeds, the note also explains lines and bands."""
    seeds = seed_list(runs)
    return READING["curve"].format(f"seeds {seeds}") if "," in seeds else f"Seed {seeds}."


def nth_color(i: int) -> str:
    """Return the color with index ``i``. The colors of :data:`PALETTE` are repeated cyclically."""
    return PALETTE[i % len(PALETTE)]


def label_text(name: str, gap: str = " ") -> str:
    """Return the name of a class as shown in a figure: ``gap`` replaces each underscore."""
    return plain(name).replace("_", gap)


def name_ticks(put: Callable[..., Any], names: Sequence[str], **options: Any) -> None:
    """Put ticks with ``names`` at the positions 0, 1, ... of an axis.

    ``put`` is ``axes.set_xticks`` or ``axes.set_yticks``. If there are too many names, only every 2nd name (or
    every 5th, every 10th, ...) is shown.
    """
    step = next(k for k in (1, 2, 5, 10, 20, 50, 100, 200, 500, len(names)) if len(names) <= MOST_NAMES * k)
    put(range(0, len(names), step), list(map(plain, names[::step])), **options)


def label_colors(labels: ClassNames) -> list[Any]:
    """Return one color per class.

    If the classes are numbers on a scale (as for sentiment), :func:`scale_colors` gives the colors. Otherwise, the
    colors are clearly different from each other.
    """
    points = np.asarray(labels.coordinates, dtype=float)
    return list(map(nth_color, range(len(points)))) if points.shape[1] != 1 else scale_colors(points[:, 0])


def scale_colors(numbers: Sequence[float] | np.ndarray) -> list[Any]:
    """Return one color of a continuous scale for each of ``numbers``. The color depends on the number's rank."""
    from matplotlib import colormaps

    _, ranks = np.unique(numbers, return_inverse=True)
    return list(map(colormaps["viridis"], 0.92 * ranks / max(ranks.max(), 1)))


def draw_band(
    axes: Axes, line: pd.DataFrame, color: Any, place: str = "place", filled: bool = True, **look: Any
) -> None:
    """Draw a line through the means of one series, and a band for their intervals.

    The limits of the y axis fit the line. Therefore, a wide band may be cut off.

    Args:
        axes: The axes to draw on.
        line: The rows that :func:`estimates` returns for the series.
        color: The color of line and band.
        place: The name of the column that contains the positions on the x axis.
        filled: Whether the band is drawn.
        **look: Options of matplotlib's ``plot``.
    """
    axes.plot(line[place], line.value, color=color, **{"lw": 1.6, "ms": 4, **look})
    if filled:
        # If the axes included all of a wide band, differences between lines would be hidden.
        of_lines = axes.dataLim.frozen()
        axes.fill_between(line[place], line.low, line.high, color=color, alpha=0.1, lw=0)
        axes.dataLim.set(of_lines)
        axes.margins(y=0.2)


def draw_boxes(axes: Axes, values: Sequence[np.ndarray], color: Any, alpha: float, **look: Any) -> dict[str, Any]:
    """Draw a box plot without outliers for each array in ``values``, and return the matplotlib artists."""
    box = {"facecolor": color, "edgecolor": GRAY, "alpha": alpha}
    return axes.boxplot(values, boxprops=box, showfliers=False, patch_artist=True, manage_ticks=False, **look)


def log_scale(axes: Axes, which: str, powers_from: float = math.inf, **options: Any) -> None:
    """Make axes logarithmic, with ticks at 1, 2 and 5 times powers of ten.

    Args:
        axes: The axes of a panel.
        which: ``x``, ``y`` or ``xy``.
        powers_from: If the highest value of an axis is more than ``powers_from`` times its lowest value, ticks are only
            at powers of ten.
        **options: Options of matplotlib's ``LogLocator``.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    for name in which:
        axes.set(**{f"{name}scale": "log"})
        axis = getattr(axes, f"{name}axis")
        low, high = axis.get_view_interval()
        ticks = (1.0,) if high > powers_from * low else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(10, ticks, **options))
        axis.set_major_formatter(plain_tick)
        axis.set_minor_formatter(NullFormatter())


def plain_tick(value: float, _: float) -> str:
    """Return the label of a tick as a plain number, such as 1000."""
    # matplotlib's powers of ten need math text, which is turned off.
    return f"{value:g}"


def side_legend(figure: Figure, shown: Mapping[str, Any] | Iterable[Axes], **options: Any) -> None:
    """Add a legend next to the panels or, in print, below the panels.

    Args:
        figure: The figure.
        shown: Either panels, whose labeled artists become the entries, or a dict. The dict maps the text of each
            entry to an artist or to line options.
        **options: Options of matplotlib's ``legend``.
    """
    from matplotlib.lines import Line2D

    if not isinstance(shown, Mapping):
        by_text: dict[str, Artist] = {}
        for axes in shown:
            drawn, texts = axes.get_legend_handles_labels()
            by_text.update(zip(texts, drawn, strict=True))
        shown = by_text
    handles = [Line2D([], [], **look) if isinstance(look, dict) else look for look in shown.values()]
    if not current_output().width:
        figure.legend(handles, list(shown), **{"loc": "outside right upper", **options})
        return
    options["loc"] = "outside lower center"
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(handles, list(shown), ncols=columns, **options)
        box = legend.get_window_extent()
        if box.width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)  # so that the panels keep their height
