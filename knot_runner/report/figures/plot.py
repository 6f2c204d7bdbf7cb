"""Figures of any finished runs: their settings and numbers as a frame, means over runs, and a mark that draws them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from knot_runner.metrics import METRICS
from knot_runner.records import ROUNDS_FILE, has_record
from knot_runner.report.compare.best import identifying_keys
from knot_runner.report.compare.measures import known_measures, measure_title, resolve_measure
from knot_runner.report.compare.notes import left_out, lines_on
from knot_runner.report.compare.settings import (
    GROUP_NAMES,
    KEPT,
    key_names,
    resolve_key,
    row_numbers,
    short_names,
    sorted_texts,
    telling,
    typed_column,
    written,
)
from knot_runner.report.confusion import confusion_rows
from knot_runner.report.figures.marks import BARS, CONFUSION, LINES, MARKERS, MARKS, READING, SeriesLook, SeriesLooks
from knot_runner.report.figures.style import (
    PALETTE,
    Drawing,
    figure_of,
    limit_to_shares,
    nth_color,
    panels,
    scale_colors,
    side_legend,
)
from knot_runner.report.frame import RunSet, run_set
from knot_runner.report.render.markup import csv_text
from knot_runner.report.render.table_model import display
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import MeasuredRun, Run, rounds
from knot_runner.report.run_rows import variant
from knot_runner.report.statistics.intervals import mean_estimate
from knot_runner.results.base import BYTES, FLOPS
from knot_runner.util.errors import UserError, counted
from knot_runner.util.files import LogRow

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: Values of ``x`` that are totals of a training so far -> the columns of rounds.jsonl that are summed.
SUMS = {"seconds": ["seconds"], "bytes": [*BYTES], "flops": [*FLOPS]}
PROGRESS = ("round", "clock", *SUMS)
#: Value of ``y`` with a number for each client, in the last evaluated round; CONFUSION has one for a pair of classes.
CLIENTS = "clients"
#: Key -> label of its axis, and what is drawn for a stored 1. The changes are at the server's aggregation: of the
#: participants against the models that they have just trained, of the others against the server's last model.
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
#: Inches: width of a figure, height of a panel alone and among others, and of a row of a heat map.
FIGURE_WIDTH = 8.0
HEIGHTS = (3.6, 3.2)
MAP_ROW = 0.32
#: Most lines, colors or panels.
MOST_SERIES = 16


@dataclass(frozen=True)
class PlotRequest:
    """The request of a figure; keys of settings and measures are those of ``compare``.

    Attributes:
        x: One of :data:`PROGRESS`, a setting or a measure; "": round.
        y: A measure, a number in rounds.jsonl, a change in :data:`AXIS_LABELS`, ``clients`` or ``confusion``.
        by: The settings with a line or color per value, separated by commas; None: all that differ.
        row, col: A setting with a panel for each value.
        smooth: The number of rounds of a running mean, or below 1 their share of all rounds.
        mark: None: curve by progress, bar by setting, scatter by measure, box of clients.
    """

    x: str = ""
    y: str = "accuracy"
    by: str | None = None
    row: str = ""
    col: str = ""
    mark: Literal["curve", "bar", "box", "scatter", "heatmap"] | None = None
    smooth: float = 1

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"{self.y}_by_{self.x or 'round'}".replace("/", "_")


def plotted(request: PlotRequest) -> Callable[..., list[str]]:
    """Return the figure of a preset that ``request`` describes."""

    @figure_of(one_task=False, reads=(ROUNDS_FILE,))
    def figure(runs: list[Run], command: str) -> Drawing:
        """Means over runs and their 95% intervals, by round, cost, setting or another measure."""
        return draw_runs(run_set(Path(), runs), request)[0]

    drawn: Callable[..., list[str]] = figure
    return drawn


def draw_runs(runs: RunSet, request: PlotRequest) -> tuple[Drawing, list[Axes]]:
    """Draw the finished ``runs``; return the drawing and the axes of its panels.

    Raises:
        UserError: The request does not fit the runs.
    """
    import pandas as pd

    done = runs.finished
    if done.runs.empty:
        raise UserError("none of the runs is finished", runs.out)
    points = _points(done, request)
    y = _column(request.y, points)
    x = "predicted"
    if y != CONFUSION:
        x = _column(request.x or "round", points)
    points = points[list({x, y, "round", "true"} & set(points))].dropna(subset=[x, y])
    shown = done.only(done.runs.index.isin(points.index))
    if request.smooth < 1 and "round" in points:  # an odd number of rounds, so that the mean is centered
        request = replace(request, smooth=1 + 2 * round(request.smooth * points["round"].max() / 2))
    settings = shown.settings
    apart = [resolve_key(key, settings) for key in (request.row, request.col) if key]
    used = [*apart, *({x} & set(settings))]
    if request.by is None:
        differing = shown.differing()
        keys = [*used, *identifying_keys(differing, used)]
        by = [key for key in telling(differing, keys, (*KEPT, *used)) if key not in used]
    else:
        by = [resolve_key(key, settings) for key in key_names(request.by)]
    grouped = shown.grouped([*used, *by])
    measures = [y] if y in known_measures(shown) else []
    rows = grouped.runs["row"].nunique()
    notes = [*lines_on(grouped, rows, [*used, *by], measures), *left_out(runs), *runs.lines]
    if len(shown.runs) < len(runs.runs):
        notes.append(f"Only the {len(shown.runs)} of {len(runs.runs)} finished runs with these values are drawn.")
    models = shown.runs.run.map(lambda run: variant(y, run.result))
    if models.groupby(grouped.runs["row"]).nunique().max() > 1:  # no mean is over several kinds of models
        settings = settings.assign(models=models)
        by.append("models")
    if y == CONFUSION:
        points = points.assign(
            panel=_labels(settings, [*apart, *by]), series=pd.Categorical(points.true, points.true.unique())
        )
    else:
        points = points.assign(panel=_labels(settings, apart), series=_labels(settings, by))
    looks = _looks(settings.loc[points.index.unique()], by, points.series)
    drawing, grid = _draw(points, x, y, request, looks)
    return replace(drawing, notes=[*drawing.notes, *notes]), grid


def _points(done: RunSet, request: PlotRequest) -> pd.DataFrame:
    """Return a row for each run, or as requested for each of its rounds, clients or pairs of classes.

    Rows are indexed by run. All settings and numbers are columns.
    """
    import pandas as pd

    if (request.x or "round") in PROGRESS or request.y in (CLIENTS, CONFUSION):
        frames = {i: pd.json_normalize(_rows(run, request.y)) for i, run in done.runs.run.items()}
        numbers = pd.concat(frames, names=["run"]).droplevel(1)
        for name, columns in SUMS.items():
            if set(columns) <= set(numbers):
                numbers[name] = numbers[columns].sum(axis=1, skipna=False).groupby("run").cumsum()
    else:
        numbers = done.metrics.dropna().pivot(columns="metric", values="value")
    return done.settings.drop(columns=numbers.columns, errors="ignore").join(numbers, how="right")


def _rows(run: MeasuredRun, y: str) -> list[LogRow]:
    """Return the rows of rounds.jsonl with the changes in :data:`AXIS_LABELS`.

    For ``clients`` and ``confusion``, return a row for each client or pair of classes.
    """
    import pandas as pd

    if y == CONFUSION:
        return confusion_rows(run)
    log = rounds(run) if has_record(run.folder, run.result, ROUNDS_FILE) else []
    if y == CLIENTS:
        evaluated = [row[y] for row in log if y in row]
        return [{y: value} for value in evaluated[-1]] if evaluated else []
    before = pd.Series(dtype=float)
    for row in log:
        now = pd.Series(row.pop("clients", []), dtype=float)
        if "after" in row:
            trained = pd.Series(row["after"], row["participants"], dtype=float)
            row["participants_change"] = (now - trained).mean()
            row["others_change"] = (now - before).drop(trained.index, errors="ignore").mean()
        before = now
    return log


def _column(name: str, points: pd.DataFrame) -> str:
    """Return the full key of the setting or number ``name``.

    Raises:
        UserError: It is unknown.
    """
    with contextlib.suppress(UserError):
        return resolve_measure(name, list(points))
    others = [] if name in PROGRESS else PROGRESS  # those that there are are in points, too
    known = [*points, *map(measure_title, points), *others]
    return resolve_key(name, known, "setting or number", "config.yaml, result.json and rounds.jsonl")


def _labels(settings: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    """Return the values of ``keys`` of each run as text, as categories in the order of the values."""
    import pandas as pd

    short = short_names(keys)
    order = row_numbers(settings, keys).sort_values(kind="stable").index
    texts = []
    for _, values in settings.loc[order, list(keys)].iterrows():
        named = values.dropna().items()
        parts = [display(text) if key in (*GROUP_NAMES, "models") else f"{short[key]}={text}" for key, text in named]
        texts.append(plain(", ".join(parts)) or " ".join(f"no {name}" for name in short.values()))
    return pd.Series(pd.Categorical(texts, list(dict.fromkeys(texts))), order)


def _looks(settings: pd.DataFrame, by: Sequence[str], series: pd.Series) -> SeriesLooks:
    """Return the look of each of ``series``, which is indexed by run.

    If one setting in ``by`` has at least three numbers, the color follows a scale of them, and the other settings
    determine the line. Otherwise the number of the series determines both.
    """
    series = series[~series.index.duplicated()]
    turns = series.cat.codes + series.cat.codes // len(PALETTE)
    colors = series.cat.codes.map(nth_color)
    numeric = [key for key in by if settings[key].nunique() > 2 and typed_column(settings[key]).dtype != object]
    if len(numeric) == 1:
        turns = row_numbers(settings, [key for key in by if key not in numeric])
        colors = dict(zip(settings.index, scale_colors(settings[numeric[0]].astype(float)), strict=True))
    looks = {}
    for run, name in series.items():
        looks[name] = SeriesLook(colors[run], LINES[turns[run] % len(LINES)], MARKERS[turns[run] % len(MARKERS)])
    return looks


def _axis(key: str) -> tuple[str, float, float | None]:
    """Return the label of a setting or number with its unit, the factor to drawn values, and the largest value.

    The largest drawn value is that of a share; None for others.
    """
    title = measure_title(key)
    group = title.partition(".")[0]
    if group in METRICS:
        metric = METRICS[group]
        label = title.replace(group, metric.title, 1) + AXIS_UNITS.get(metric.unit, "")
        return label, metric.scale, metric.scale if metric.top == 1 else None
    label, scale = AXIS_LABELS.get(key, (short_names([title])[title], 1.0))
    return label, scale, 100.0 if "(%)" in label else None


def _draw(points: pd.DataFrame, x: str, y: str, request: PlotRequest, looks: SeriesLooks) -> tuple[Drawing, list[Axes]]:
    """Draw ``points``, with a panel for each value of ``panel``.

    Raises:
        UserError: There are too many panels or series.
    """
    points, mark = _placed(points, x, y, request)
    (x_label, *_), (y_label, _, top) = _axis(x), _axis(y)
    summary = _summary(points, mark, top)
    names, cells = points.series.cat.categories, list(points.groupby("panel", observed=True))
    is_map = mark in ("heatmap", CONFUSION)
    most = len(PALETTE)
    if mark in ("curve", "scatter"):
        most = MOST_SERIES
    if len(cells) > MOST_SERIES:
        raise UserError(f"expected at most {MOST_SERIES} panels, got {len(cells)}. Select fewer runs", "plot")
    if len(names) > most and not is_map:
        raise UserError(f"expected at most {most} lines, got {len(names)}. Use fewer runs or keys in --by", "plot")
    across = min(len(cells), 1 if request.row and not request.col else 3 - is_map)
    height = max(HEIGHTS[len(cells) > 1], is_map * (MAP_ROW * len(names) + 1.2))
    made, grid = panels(len(cells), FIGURE_WIDTH / across, height, across, sharey=not is_map)
    for axes, (panel, own) in zip(grid, cells, strict=True):
        axes.set(xlabel=x_label, ylabel=y_label, title=panel)
        MARKS[mark](axes, summary[summary.panel == panel], own, looks)
    if not is_map:
        for axes in grid:
            if top:
                limit_to_shares(axes, top)
            spec = axes.get_subplotspec()
            if spec and not spec.is_first_col():
                axes.set_ylabel("")
        if len(names) > 1:
            side_legend(made, grid)
    last = summary
    if x in PROGRESS:
        last = summary.groupby(["panel", "series"], observed=True).tail(1)
    lines = []
    for one in last.itertuples():
        if mark != CONFUSION or one.series == one.place:
            place = f"{one.x:.4g}"
            if isinstance(one.place, str):
                place = one.place
            words = filter(None, (one.panel, one.series, f"{x_label} {place}", y_label))
            interval = ""
            if one.n > 1:
                interval = f" [{one.low:.4g}, {one.high:.4g}]"
            lines.append(f"{', '.join(words)} {one.value:.4g}{interval}, n={one.n}")
    few, many = summary.n.min(), summary.n.max()
    note = READING[mark].format(counted(few, "run") if few == many else f"{few} to {many} runs")
    if request.smooth > 1:
        note += f" Running means over {request.smooth:g} rounds."
    title = f"{y_label.partition(' (')[0]} by {x_label.partition(' (')[0]}"
    numbers = csv_text(list(summary), summary.itertuples(index=False))
    return Drawing(made, title[0].upper() + title[1:], [note], lines, numbers), grid


def _placed(points: pd.DataFrame, x: str, y: str, request: PlotRequest) -> tuple[pd.DataFrame, str]:
    """Return ``points`` with drawn values ``x`` and ``y`` and the ``place`` of their mean, and the mark."""
    import pandas as pd

    is_number = pd.api.types.is_numeric_dtype
    values = typed_column(points[y])
    if not is_number(values):
        raise UserError("some runs have no numeric value of this key", y)
    if request.smooth > 1:
        values = values.groupby(level=0).transform(lambda own: own.rolling(int(request.smooth), 1, center=True).mean())
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
            raise UserError("some runs have no numeric value of this key. Use --mark=bar", x)
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
    """Return the estimate at each place of a series, in order.

    It is the mean ``value`` of ``n`` runs, its 95% interval (``low``, ``high``) and mean ``x``. For boxes, it is median
    and quartiles. Curves have estimates at the places that most runs of a series have.
    """
    import pandas as pd

    keys = ["panel", "series", "place"]
    rows = []
    for place, own in points.groupby(keys, observed=True):
        one = mean_estimate(own.y.groupby(level=0).mean().tolist(), top)  # a value for each run
        numbers = (one.mean, *one.band)
        if one.n == 1:
            numbers = (one.mean,) * 3
        if mark == "box":
            numbers = own.y.quantile([0.5, 0.25, 0.75])
        rows.append((*place, own.x.mean(), *numbers, one.n))
    summary = pd.DataFrame(rows, columns=[*keys, "x", "value", "low", "high", "n"]).astype(points.dtypes[keys])
    most = summary.groupby(keys[:2], observed=True).n.transform("max")
    if mark == "curve":
        summary = summary[summary.n == most]
    return summary
