"""Figures of any finished runs.

A figure selects numbers, averages them over runs, and draws the means with a mark, such as a curve or a bar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from knot_runner.metrics import METRICS
from knot_runner.records import ROUNDS_FILE
from knot_runner.report.compare.best import identifying_keys
from knot_runner.report.compare.measures import known_measures, measure_title
from knot_runner.report.compare.notes import lines_on
from knot_runner.report.compare.settings import (
    KEPT,
    key_names,
    resolve_keys,
    row_numbers,
    short_names,
    sorted_texts,
    telling,
    typed_column,
    written,
)
from knot_runner.report.figures import marks
from knot_runner.report.figures.marks import BARS, CONFUSION, LINES, MARKERS, MARKS, SeriesLook, SeriesLooks
from knot_runner.report.figures.points import CLIENTS, PROGRESS, column_of, labels_of, points_of
from knot_runner.report.figures.style import (
    PALETTE,
    READING,
    Drawing,
    figure_of,
    nth_color,
    panels,
    scale_colors,
    side_legend,
)
from knot_runner.report.frame import RunSet, run_set
from knot_runner.report.render.markup import csv_text
from knot_runner.report.run_folders import Run
from knot_runner.report.run_rows import variant
from knot_runner.report.series import estimates
from knot_runner.report.tables.footnotes import not_counted
from knot_runner.util.errors import UserError, counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: Key -> label of the axis, and the factor from stored to drawn values. The changes compare accuracy after a round with
#: an earlier accuracy: for participants, the accuracy after their own training in this round; for other clients, the
#: accuracy after the previous round.
AXIS_LABELS = {
    "round": ("rounds trained", 1.0),
    "clock": ("virtual time (s)", 1.0),
    "seconds": ("training time (s)", 1.0),
    "bytes": ("bytes sent and received (MB)", 1e-6),
    "costs.bytes": ("bytes sent and received (MB)", 1e-6),
    "flops": ("computation (GFLOP)", 1e-9),
    "costs.client_flops": ("computation of clients (GFLOP)", 1e-9),
    "participants_change": ("change of participants' accuracy (points)", 100.0),
    "others_change": ("change of others' accuracy (points)", 100.0),
    CLIENTS: ("accuracy of each client (%)", 100.0),
    CONFUSION: ("share of the true class (%)", 100.0),
    "predicted": ("predicted class", 1.0),
}
AXIS_UNITS = {"points": " (%)", "nats": " (nats)"}
#: Sizes in inches: the width of a figure, the height of a single panel and of one of several panels, and the height of
#: a row of a heat map.
FIGURE_WIDTH = 8.0
HEIGHTS = (3.6, 3.2)
MAP_ROW = 0.32
#: Maximum number of lines and of panels.
MOST_SERIES = 16


@dataclass(frozen=True)
class PlotRequest:
    """The request for a figure. Settings and measures have the same keys as in ``compare``.

    Attributes:
        x: The quantity on the x axis: one of :data:`PROGRESS` (such as ``round``), a setting or a measure.
        y: The quantity on the y axis: a measure, a number in rounds.jsonl, ``clients`` (each client's accuracy),
            ``confusion`` (the confusion matrix), or a change of accuracy such as ``participants_change``.
        by: Comma-separated settings. Each combination of their values has its own line or color. None selects
            settings that distinguish the runs.
        row, col: A setting, or "". Each value of the setting has its own panel. The panels are below each other for
            ``row``, and next to each other for ``col``.
        mark: The kind of plot. None selects boxes if ``y`` is ``clients``, and a heat map if ``y`` is ``confusion``.
            For other ``y``, None selects a curve if ``x`` is in PROGRESS, bars if ``x`` is a setting, and points if
            ``x`` is a measure.
        smooth: The window of the running mean over rounds, as a number of rounds. A number below 1 is a fraction of all
            rounds.
    """

    x: str = "round"
    y: str = "accuracy"
    by: str | None = None
    row: str = ""
    col: str = ""
    mark: Literal["curve", "bar", "box", "scatter", "heatmap"] | None = None
    smooth: float = 1

    @property
    def name(self) -> str:
        """Return the figure's file name without its suffix."""
        return f"{self.y}_by_{self.x}".replace("/", "_")


def plotted(request: PlotRequest) -> Callable[..., list[str]]:
    """Return a figure function (see :func:`figure_of`) that draws ``request``."""

    @figure_of(one_task=False, reads=(ROUNDS_FILE,))
    def figure(runs: list[Run]) -> Drawing:
        """Means over runs and their 95% intervals, by round, cost, setting or another measure."""
        return draw_runs(run_set(Path(), runs), request)[0]

    drawn: Callable[..., list[str]] = figure
    return drawn


def draw_runs(runs: RunSet, request: PlotRequest) -> tuple[Drawing, list[Axes]]:
    """Draw the finished runs as requested; return the drawing and the axes of its panels.

    Raises:
        UserError: The request does not fit the runs.
    """
    import pandas as pd

    done = runs.finished
    if done.runs.empty:
        raise UserError("none of the runs is finished", runs.out)
    points = points_of(done, request.x, request.y)
    y = column_of(request.y, points)
    x = "predicted" if y == CONFUSION else column_of(request.x, points)
    points = points[list({x, y, "round", "true"} & set(points))].dropna(subset=[x, y])
    shown = done.only(done.runs.index.isin(points.index))
    if request.smooth < 1 and "round" in points:  # an odd number of rounds, so that the mean is centered
        request = replace(request, smooth=1 + 2 * round(request.smooth * points["round"].max() / 2))
    settings = shown.settings
    apart = resolve_keys(filter(None, (request.row, request.col)), settings)
    used = [*apart, *({x} & set(settings))]
    by = resolve_keys(key_names(request.by or ""), settings)
    if request.by is None:
        differing = shown.differing()
        keys = [*used, *identifying_keys(differing, used)]
        by = tuple(key for key in telling(differing, keys, (*KEPT, *used)) if key not in used)
    grouped = shown.grouped([*used, *by])
    measures = {y} & set(known_measures(shown))
    rows = grouped.runs.row.nunique()
    notes = [*lines_on(grouped, rows, [*used, *by], list(measures)), *not_counted(runs.runs.run), *runs.lines]
    if len(shown.runs) < len(runs.runs):
        notes.append(f"Only the {len(shown.runs)} of {len(runs.runs)} finished runs with these values are drawn.")
    models = shown.runs.run.map(lambda run: variant(y, run.result))
    if models.groupby(grouped.runs.row).nunique().max() > 1:  # a mean must not mix several kinds of models
        settings = settings.assign(models=models)
        by = (*by, "models")
    if y == CONFUSION:
        points = points.assign(series=pd.Categorical(points.true, points.true.unique()))
        apart += by
    else:
        points = points.assign(series=labels_of(settings, by))
    looks = _looks(settings.loc[points.index.unique()], by, points.series)
    drawing, grid = _draw(points.assign(panel=labels_of(settings, apart)), x, y, request, looks)
    return replace(drawing, notes=[*drawing.notes, *notes]), grid


def _looks(settings: pd.DataFrame, by: Sequence[str], series: pd.Series) -> SeriesLooks:
    """Return a dict from the label of each series to its color, line and marker; ``series`` has each run's label.

    If exactly one setting in ``by`` takes three or more numeric values, the color shows this setting on a continuous
    scale, and the other settings determine line and marker. Otherwise, color, line and marker follow the order of the
    series.
    """
    series = series[~series.index.duplicated()]
    turns = series.cat.codes + series.cat.codes // len(PALETTE)
    colors = series.cat.codes.map(nth_color)
    numeric = [key for key in by if settings[key].nunique() > 2 and typed_column(settings[key]).dtype != object]
    if len(numeric) == 1:
        turns = row_numbers(settings, [key for key in by if key != numeric[0]])
        colors = dict(zip(settings.index, scale_colors(settings[numeric[0]].astype(float)), strict=True))
    looks = {}
    for run, name in series.items():
        looks[name] = SeriesLook(colors[run], LINES[turns[run] % len(LINES)], MARKERS[turns[run] % len(MARKERS)])
    return looks


def _axis(key: str) -> tuple[str, float, float | None]:
    """Return the label of an axis with the unit, the factor from stored to drawn values, and the largest drawn value.

    The largest drawn value is None unless ``key`` is a share.
    """
    title = measure_title(key)
    label, scale = AXIS_LABELS.get(key, (short_names([title])[title], 1.0))
    group = title.partition(".")[0]
    is_share = "(%)" in label
    if group in METRICS:
        metric = METRICS[group]
        scale = metric.scale
        label = title.replace(group, metric.title, 1) + AXIS_UNITS.get(metric.unit, "")
        is_share = metric.top == 1
    return label, scale, scale if is_share else None


def _draw(points: pd.DataFrame, x: str, y: str, request: PlotRequest, looks: SeriesLooks) -> tuple[Drawing, list[Axes]]:
    """Draw ``points`` (one row per drawn value), with a panel for each value of the column ``panel``."""
    points, mark = _placed(points, x, y, request)
    x_label, *_ = _axis(x)
    y_label, _, top = _axis(y)
    summary = _summary(points, mark, top)
    names = points.series.cat.categories
    cells = list(points.groupby("panel", observed=True))
    is_map = mark in ("heatmap", CONFUSION)
    most = MOST_SERIES if mark in ("curve", "scatter") else len(PALETTE)
    if len(cells) > MOST_SERIES:
        raise UserError(f"expected at most {MOST_SERIES} panels, got {len(cells)}. Select fewer runs", "plot")
    if len(names) > most and not is_map:
        raise UserError(
            f"expected at most {most} lines, got {len(names)}. Select fewer runs, or use fewer keys in --by", "plot"
        )
    across = min(len(cells), 3)
    height = HEIGHTS[len(cells) > 1]
    if is_map:
        across = min(across, 2)
        height = max(height, MAP_ROW * len(names) + 1.2)
    if request.row and not request.col:
        across = 1
    figure, grid = panels(len(cells), FIGURE_WIDTH / across, height, across, sharey=not is_map)
    for axes, (panel, in_panel) in zip(grid, cells, strict=True):
        axes.set(xlabel=x_label, ylabel=y_label, title=panel)
        MARKS[mark](axes, summary[summary.panel == panel], in_panel, looks)
    if not is_map:
        for axes in grid:
            if top:
                marks.limit_to_shares(axes, top)
            spec = axes.get_subplotspec()
            if spec and not spec.is_first_col():
                axes.set_ylabel("")
        if len(names) > 1:
            side_legend(figure, grid)
    shown = summary
    if x in PROGRESS:
        shown = summary.groupby(["panel", "series"], observed=True).tail(1)
    elif mark == CONFUSION:
        shown = summary[summary.series.astype(str) == summary.place.astype(str)]
    lines = []
    for row in shown.itertuples():
        at = row.place if isinstance(row.place, str) else f"{row.x:.4g}"
        words = filter(None, (row.panel, row.series, f"{x_label} {at}", y_label))
        interval = f" [{row.low:.4g}, {row.high:.4g}]" if row.n > 1 else ""
        lines.append(f"{', '.join(words)} {row.value:.4g}{interval}, n={row.n}")
    few = summary.n.min()
    many = summary.n.max()
    note = READING[mark].format(counted(few, "run") if few == many else f"{few} to {many} runs")
    if request.smooth > 1:
        note += f" Running means over {request.smooth:g} rounds."
    title = f"{y_label.partition(' (')[0]} by {x_label.partition(' (')[0]}"
    numbers = csv_text(list(summary), summary.itertuples(index=False))
    return Drawing(figure, title[0].upper() + title[1:], [note], lines, numbers), grid


def _placed(points: pd.DataFrame, x: str, y: str, request: PlotRequest) -> tuple[pd.DataFrame, str]:
    """Return ``points`` with drawn ``x`` and ``y`` and ``place`` (position on the x axis), and the name of the mark."""
    import pandas as pd

    is_number = pd.api.types.is_numeric_dtype
    values = typed_column(points[y])
    if not is_number(values):
        raise UserError("in some runs, the value of this key is not a number", y)
    if request.smooth > 1:
        values = values.groupby(level=0).transform(lambda run: run.rolling(int(request.smooth), 1, center=True).mean())
    points = points.assign(y=values.astype(float) * _axis(y)[1])
    mark = "scatter"
    if x in PROGRESS:
        mark = "curve"
    elif points[x].dtype == object:  # settings are text
        mark = "bar"
    mark = request.mark or {CLIENTS: "box", CONFUSION: CONFUSION}.get(y, mark)
    if mark == "scatter" or (mark == "curve" and x in PROGRESS):
        numbers = typed_column(points[x])
        if not is_number(numbers):
            raise UserError("in some runs, the value of this key is not a number. Use --mark=bar", x)
        points = points.assign(x=numbers.astype(float) * _axis(x)[1])
        return points.assign(place=0 if mark == "scatter" else points["round"]), mark
    texts = points[x].map(written)
    names = texts.unique()
    if y != CONFUSION:
        names = sorted_texts(names)
    points = points.assign(place=pd.Categorical(texts, names))
    shift = (points.series.cat.codes + 0.5) / len(points.series.cat.categories) - 0.5
    return points.assign(x=points.place.cat.codes + BARS * shift * (mark in ("bar", "box"))), mark


def _summary(points: pd.DataFrame, mark: str, top: float | None) -> pd.DataFrame:
    """Return a row per panel, series and place: the mean over ``n`` runs, the interval, and the mean ``x``.

    The mean is in ``value``, and the interval is from ``low`` to ``high``. For boxes, ``value`` is the median, and the
    interval is given by the quartiles. A curve has only the places with the most runs of its series.
    """
    keys = ["panel", "series", "place"]
    points = points.rename_axis("seed").rename(columns={"y": "value"}).reset_index().sort_values(keys)
    summary = estimates(points, keys[:2], everywhere=mark == "curve").astype(points.dtypes[keys])
    cells = points.groupby(keys, observed=True)
    if mark == "box":
        summary[["value", "low", "high"]] = cells.value.quantile([0.5, 0.25, 0.75]).unstack().to_numpy()
    elif top is not None:
        summary[["low", "high"]] = summary[["low", "high"]].clip(0.0, top)
    return summary.join(cells.x.mean(), on=keys)[[*keys, "x", "value", "low", "high", "n"]]
