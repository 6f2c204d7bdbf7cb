"""Figures of any finished runs: their settings and measures as one frame, its means over runs, and a mark that draws
them: curve, bar, scatter, box, heat map or confusion matrix."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.metrics import METRICS
from knot_runner.records import ROUNDS_FILE, has_record
from knot_runner.report.compare.best import identifying_keys
from knot_runner.report.compare.measures import is_share, known_measures, measure_title, resolve_measure, unit_of
from knot_runner.report.compare.notes import left_out, lines_on
from knot_runner.report.compare.settings import (
    GROUP_NAMES,
    key_names,
    resolve_key,
    row_numbers,
    short_names,
    sorted_texts,
    typed_column,
)
from knot_runner.report.confusion import confusion_counts, has_predictions, row_shares
from knot_runner.report.figures.style import (
    GRAY,
    PALETTE,
    Drawing,
    draw_band,
    draw_boxes,
    figure_of,
    label_text,
    limit_to_shares,
    log_scale,
    nth_color,
    panels,
    side_legend,
)
from knot_runner.report.frame import RunSet, name_few, run_set
from knot_runner.report.render.markup import csv_text
from knot_runner.report.render.table_model import display
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import Run, rounds
from knot_runner.report.series import Band, band_numbers
from knot_runner.report.statistics.intervals import mean_estimate
from knot_runner.results.base import BYTES, FLOPS
from knot_runner.util.errors import UserError, counted, nearest
from knot_runner.util.files import LogRow

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONFUSION = "confusion"
SHARE = "share of the true class"
#: Values of ``x`` that are axes of a training: (title, key of the unit, columns of rounds.jsonl that add up to it).
PROGRESS = {
    "round": ("rounds trained", "", ("round",)),
    "clock": ("virtual time", "seconds", ("clock",)),
    "seconds": ("training time", "seconds", ("seconds",)),
    "bytes": ("bytes sent and received", "costs.bytes", BYTES),
    "flops": ("computation", "costs.client_flops", FLOPS),
}
#: Those whose columns are totals already; others are summed over the rounds.
TOTALS = ("round", "clock")
#: Values of ``y`` with a share for each client: columns of rounds.jsonl, of which the last evaluated round is drawn.
CLIENTS = {
    "clients": "accuracy of each client",
    "before": "accuracy of each participant before training",
    "after": "accuracy of each participant after training",
}
#: Change of clients' accuracy when the server aggregates. Participants: the new model less the one just trained;
#: others: less the previous model of the server.
CHANGES = {"participants_change": "accuracy change of participants", "others_change": "accuracy change of others"}
#: A numeric setting with at least so many values is drawn as a curve, on a logarithmic axis from this ratio on.
FEWEST_ON_CURVE = 3
LOG_RATIO = 20.0
MOST_PANELS = 24
#: Inches: width of the whole figure, height of a panel alone and among others, and of a row of a heat map.
WIDTH = 8.0
HEIGHT = 3.6
LOW = 2.7
ROW = 0.36
#: Of a heat map: ticks of an axis, and columns with numbers in their cells.
MOST_TICKS = 20
MOST_WRITTEN = 12
LINES = ("-", "--", ":", "-.")
MARKERS = "os^Dv<>P"
#: Units of metrics as on axes.
UNITS = {"points": "%", "nats": "nats"}
READING = {
    "curve": "Lines: means over {}; bands: 95% t intervals.",
    "bar": "Bars: means over {}; whiskers: 95% t intervals.",
    "scatter": "Small points: a run each; large ones: means over {}.",
    "box": "Boxes: median and quartiles of the points, of {}; whiskers: at most 1.5 times the box.",
    "heatmap": "Means over {}.",
    "confusion": "Rows add up to 100%; means over {}.",
}


@dataclass(frozen=True)
class PlotRequest:
    """What is drawn of runs. Keys of settings and measures are as in ``compare``; commas separate several.

    ``x``: a key of :data:`PROGRESS` ("": round), a setting or a measure. ``y``: measures, with panels for each; by
    progress numbers of rounds.jsonl or :data:`CHANGES`; by setting also :data:`CLIENTS`; or ``confusion``. ``by``:
    settings with a line or color for each value; None: all that differ. ``row``, ``col``: a setting with a panel for
    each value. ``mark``: a key of :data:`MARKS`; "": the usual one. ``smooth``: rounds of a running mean.
    """

    x: str = ""
    y: str = "accuracy"
    by: str | None = None
    row: str = ""
    col: str = ""
    mark: str = ""
    smooth: int = 1

    @property
    def name(self) -> str:
        """The name of its file."""
        parts = [self.y.replace(",", "_"), f"by_{self.x or 'round'}" if self.y != CONFUSION else "", self.mark]
        return "_".join(filter(None, parts)).replace("/", "_")


@dataclass(frozen=True)
class Axis:
    """``scale``: drawn value of a stored 1; ``top``: largest drawn value of a share; ``names``: of the places 0, 1, ...
    on an axis of settings or classes."""

    title: str
    unit: str = ""
    scale: float = 1.0
    top: float | None = None
    names: Sequence[str] = ()

    @property
    def label(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title


def plotted(request: PlotRequest) -> Callable[..., list[str]]:
    """Return the figure of a preset that ``request`` describes."""

    @figure_of(one_task=False, reads=(ROUNDS_FILE,))
    def figure(runs: list[Run], command: str) -> Drawing:
        """Means over runs and their 95% intervals, by round, cost, setting or another measure."""
        return draw_runs(run_set(Path(), runs), request)[0]

    return figure


def draw_runs(runs: RunSet, request: PlotRequest) -> tuple[Drawing, list[Axes]]:
    """Draw the finished ``runs``; returns the drawing and the axes of its panels. Raises :class:`UserError`."""
    import pandas as pd

    done = runs.finished
    if done.runs.empty:
        raise UserError("none of the runs has finished, so there is nothing to draw", runs.out)
    known = done.keys()
    panel_keys = [resolve_key(key, known) for key in (request.row, request.col) if key]
    frames = {}
    ys = {}
    for name in key_names(request.y):
        frames[name], ys[name] = _values(done, request, name)
    points, x, x_keys, mark = _with_x(pd.concat(frames, names=["measure", "run"]), done, request)
    shown = done.only(done.runs.index.isin(points.index))
    used = [*panel_keys, *x_keys]
    if request.by is None:
        by = list(identifying_keys(shown.differing(), used))
    else:
        by = [resolve_key(key, known) for key in key_names(request.by)]
    if mark == CONFUSION:  # its series are the true classes
        points = points.join(_labels(shown, [*panel_keys, *by]).rename("panel"))
    else:
        points = points.join(_labels(shown, panel_keys).rename("panel")).join(_labels(shown, by).rename("series"))
    points.measure = points.measure.astype(pd.CategoricalDtype(list(ys)))
    across = shown.settings[panel_keys[-1]].nunique(dropna=False) if request.row and request.col else 3
    drawing, grid = _draw(points.reset_index(), x, ys, mark, across)
    keys = [*used, *by]
    row = row_numbers(shown.settings, keys)
    notes = [*_not_drawn(runs, done, shown), *lines_on(shown, row, row.nunique(), keys, ()), *left_out(runs)]
    return replace(drawing, notes=[*drawing.notes, *notes, *runs.lines]), grid


def _values(done: RunSet, request: PlotRequest, y: str) -> tuple[pd.DataFrame, Axis]:
    """The values ``y`` of the runs, indexed by run, in units of their axis; by progress and class with their ``x``."""
    if y == CONFUSION:
        points = _by_class(done)
        axis = Axis(SHARE, "%", 100.0, 100.0)
    elif (request.x or "round") in PROGRESS:
        points = _by_round(done, request.x or "round", y)
        points.y = points.y.groupby("run").transform(lambda own: own.rolling(request.smooth, 1, center=True).mean())
        axis = Axis(CHANGES[y], "points", 100.0) if y in CHANGES else _measure_axis(y, points.y)
    elif y in CLIENTS:
        points = _by_client(done, y)
        axis = Axis(CLIENTS[y], "%", 100.0, 100.0)
    else:
        key = resolve_measure(y, known_measures(done), "--y")
        points = done.values(key).to_frame("y")
        axis = _measure_axis(key, points.y)
    if points.empty:
        raise UserError("none of the finished runs has a value", f"--y={y}")
    return points.assign(y=points.y * axis.scale), axis


def _by_round(done: RunSet, x: str, y: str) -> pd.DataFrame:
    """``place`` (round), ``x`` (total until then) and ``y`` of each evaluated round."""
    import pandas as pd

    _, _, columns = PROGRESS[x]
    frames = {}
    seen: set[str] = set()
    for i, run in done.runs.record.items():
        rows = rounds(run) if has_record(run.folder, run.result, ROUNDS_FILE) else []
        log = pd.json_normalize(_with_changes(rows) if y in CHANGES else rows)
        seen.update(log.select_dtypes("number").columns)
        if {y, "round", *columns} <= set(log):
            spent = log[list(columns)].sum(axis=1, skipna=False)
            total = spent if x in TOTALS else spent.cumsum()
            frames[i] = pd.DataFrame({"place": log["round"], "x": total, "y": log[y]}).dropna()
    if y not in seen or not frames:
        missing = f"--y={y}" if y not in seen else f"--x={x}"
        hint = nearest(y, [*seen, *CHANGES]) if y not in seen else ""
        raise UserError(f"no finished run has it for each round{hint}", missing)
    return pd.concat(frames, names=["run"]).droplevel(1).astype(float)


def _with_changes(rows: Sequence[LogRow]) -> Iterator[LogRow]:
    """Yield ``rows`` with :data:`CHANGES`, of others from the second on, where the round before was evaluated, too."""
    before: Sequence[float | None] = ()
    for row in rows:
        now = row.get("clients", ())
        trained = dict(zip(row["participants"], row["after"], strict=True))
        absent = {k: value for k, value in enumerate(before) if k not in trained}
        changes = {}
        for name, last in zip(CHANGES, (trained, absent), strict=True):
            pairs = [(now[k], value) for k, value in last.items() if now and now[k] is not None and value is not None]
            changes[name] = np.mean([new - old for new, old in pairs]) if pairs else None
        yield row | changes
        before = now


def _by_client(done: RunSet, y: str) -> pd.DataFrame:
    """``y`` of each client in the last evaluated round."""
    import pandas as pd

    frames = {}
    for i, run in done.runs.record.items():
        rows = rounds(run) if has_record(run.folder, run.result, ROUNDS_FILE) else []
        lists = [row[y] for row in rows if y in row]
        if lists:
            frames[i] = pd.DataFrame({"y": lists[-1]}).dropna().astype(float)
    if not frames:
        raise UserError("no finished run has a value for each client", f"--y={y}")
    return pd.concat(frames, names=["run"]).droplevel(1)


def _by_class(done: RunSet) -> pd.DataFrame:
    """Share ``y`` of each true class (``series``) that is predicted as ``place``, over the test examples."""
    import pandas as pd

    frames = {}
    for i, run in done.runs.record.items():
        if has_predictions(run):
            shares = pd.DataFrame(row_shares(confusion_counts(run)), index=run.result.labels.names)
            frames[i] = (
                shares.rename_axis("series").melt(var_name="place", value_name="y", ignore_index=False).reset_index()
            )
    if not frames:
        raise UserError("no finished run keeps predictions of classes", f"--y={CONFUSION}")
    points = pd.concat(frames, names=["run"]).droplevel(1)
    names = list(dict.fromkeys(points.series))
    return points.assign(series=pd.Categorical(points.series, names), x=points.place)


def _with_x(points: pd.DataFrame, done: RunSet, request: PlotRequest) -> tuple[pd.DataFrame, Axis, list[str], str]:
    """(``points``, indexed by run, with ``place`` and ``x``; the x axis; its key if it is a setting; the mark)."""
    import pandas as pd

    points = points.reset_index("measure")
    if request.y == CONFUSION:
        if request.x:
            raise UserError("a confusion matrix has the predicted classes there. Leave it out", f"--x={request.x}")
        axis = Axis("predicted class", names=[label_text(name) for name in points.series.cat.categories])
        return points, axis, [], _mark(request, [CONFUSION])
    if (request.x or "round") in PROGRESS:
        title, unit_key, _ = PROGRESS[request.x or "round"]
        axis = replace(_measure_axis(unit_key, points.x), title=title)
        return points.assign(x=points.x * axis.scale), axis, [], _mark(request, ["curve"])
    measures = known_measures(done)
    key, is_setting = _setting_or_measure(request.x, done.keys(), measures)
    if not is_setting:
        values = done.values(key)
        axis = _measure_axis(key, values)
        points = points.join((values * axis.scale).rename("x"), how="inner")
        return points.assign(place=0), axis, [], _mark(request, ["scatter"])
    title = short_names([key])[key]
    numbers = typed_column(done.settings[key])
    is_numeric = pd.api.types.is_numeric_dtype(numbers) and numbers.notna().all()
    marks = ["bar", "curve", "box", "heatmap", "scatter"]
    if is_numeric and numbers.nunique() >= FEWEST_ON_CURVE:
        marks = ["curve", *marks]
    mark = _mark(request, ["box"] if set(key_names(request.y)) & set(CLIENTS) else marks)
    if mark in ("curve", "scatter"):
        if not is_numeric:
            raise UserError(f"{key} is not a number in every run. Use --mark=bar", f"--mark={mark}")
        points = points.join(numbers.astype(float).rename("x"))
        return points.assign(place=points.x if mark == "curve" else 0), Axis(title), [key], mark
    texts = done.settings[key].loc[points.index.unique()]
    names = sorted_texts(texts.unique())
    points = points.join(texts.fillna("(absent)").map(names.index).rename("x"))
    return points.assign(place=points.x), Axis(title, names=[plain(name) for name in names]), [key], mark


def _mark(request: PlotRequest, marks: Sequence[str]) -> str:
    """The requested mark, or the first of the possible ``marks``."""
    if request.mark and request.mark not in marks:
        raise UserError(f"does not fit --x and --y{nearest(request.mark, marks)}", f"--mark={request.mark}")
    return request.mark or marks[0]


def _setting_or_measure(name: str, known: Sequence[str], measures: Sequence[str]) -> tuple[str, bool]:
    """The full key of ``name``, and whether it is a setting. Raises :class:`UserError`."""
    try:
        return resolve_key(name, known), True
    except UserError as problem:
        no_setting = problem
    try:
        return resolve_measure(name, measures, "--x"), False
    except UserError:
        hint = nearest(name, [*PROGRESS, *known, *map(measure_title, measures)])
    if "did you mean" not in hint and "did you mean" in str(no_setting):
        raise no_setting
    hint = hint or f" (there is: {', '.join(PROGRESS)}, any setting, any number of a result)"
    raise UserError(f"no run has it{hint}", f"--x={name}")


def _measure_axis(key: str, values: Iterable[float]) -> Axis:
    """The axis of the measure ``key``; bytes and FLOPs with a prefix that suits the ``values``."""
    key = f"costs.{key}" if key in (*BYTES, *FLOPS) else key
    unit, size = unit_of(key, list(values))
    title = measure_title(key)
    group, _, rest = title.partition(".")
    if group in METRICS:
        metric = METRICS[group]
        title = f"{metric.title}, {rest}" if rest else metric.title
        scale = metric.scale
        return Axis(title, UNITS.get(metric.unit, ""), scale, scale if is_share(key) else None)
    return Axis(title, "s" if group == "seconds" else unit, 1 / size, 1.0 if is_share(key) else None)


def _labels(runs: RunSet, keys: Sequence[str]) -> pd.Series:
    """The values of ``keys`` of each run as text, in categories in the order of the values."""
    import pandas as pd

    short = short_names(keys)
    order = row_numbers(runs.settings, keys).sort_values(kind="stable").index
    texts = []
    for values in runs.settings.loc[order, list(keys)].itertuples(index=False):
        pairs = [pair for pair in zip(keys, values, strict=True) if isinstance(pair[1], str)]  # not NaN
        parts = [display(value) if key in GROUP_NAMES else f"{short[key]}={value}" for key, value in pairs]
        texts.append(plain(", ".join(parts) or " and ".join(f"no {name}" for name in short.values())))
    return pd.Series(pd.Categorical(texts, list(dict.fromkeys(texts))), order)


def _not_drawn(runs: RunSet, done: RunSet, shown: RunSet) -> list[str]:
    """Lines on runs that are not finished, and on finished ones without the numbers."""
    states = runs.runs.state[runs.runs.state != "done"].value_counts()
    lines = []
    if len(states):
        rest = ", ".join(f"{count} {state}" for state, count in states.items())
        lines.append(f"Not drawn: {rest} of {counted(len(runs.runs), 'run')}.")
    without = ["/".join(Path(folder).parts[-3:]) for folder in done.runs.folder.drop(shown.runs.index)]
    if without:
        lines.append(f"Not drawn, since they lack a number: {counted(len(without), 'run')}{name_few(without)}.")
    return lines


def _draw(points: pd.DataFrame, x: Axis, ys: dict[str, Axis], mark: str, across: int) -> tuple[Drawing, list[Axes]]:
    """Draw ``points`` (columns measure, panel, series, run, place, x, y), a panel for each measure and panel."""
    cells = list(points.groupby(["measure", "panel"], observed=True))
    names = points.series.cat.categories
    is_map = mark in ("heatmap", CONFUSION)
    most = len(PALETTE) * (2 if mark in ("curve", "scatter") else 1)
    if len(names) > most and not is_map:
        raise UserError(
            f"{len(names)} lines or colors are more than {most}. Select runs, or use --row or --col", "--by"
        )
    if len(cells) > MOST_PANELS:
        raise UserError(f"{len(cells)} panels are more than {MOST_PANELS}. Select runs", "--row, --col")
    across = min(len(cells), 2 if is_map else across)
    height = HEIGHT if len(cells) == 1 else LOW
    if is_map:
        height = max(height, ROW * len(names) + 1.2)
    made, grid = panels(len(cells), WIDTH / across, height, across, sharey=len(ys) == 1 and not is_map)
    bands = {}
    for axes, ((measure, panel), cell) in zip(grid, cells, strict=True):
        y = ys[measure]
        axes.set(xlabel=x.label, ylabel=y.label, title=panel)
        for name, band in MARKS[mark](axes, cell, x, y).items():
            bands[measure, panel, name] = band
        if y.top is not None and not is_map:
            limit_to_shares(axes, y.top)
    if len(names) > 1 and not is_map:
        side_legend(made, grid)
    _turn_names(made, grid)
    counts = {int(count) for band in bands.values() for count in band.seeds}
    runs = counted(max(counts), "run") if len(counts) == 1 else f"{min(counts)} to {max(counts)} runs"
    note = READING[mark].format(runs) if max(counts) > 1 or mark == "box" else "One run each, without intervals."
    title = f"{', '.join(axis.title for axis in ys.values())} by {x.title}"
    heads = ["measure", "panel", "series", x.title]
    if mark in ("scatter", "box"):
        rows = points[["measure", "panel", "series", "run", "x", "y"]].itertuples(index=False)
        numbers = csv_text([*heads[:3], "run", x.title, "y"], rows)
    else:
        numbers = band_numbers(heads, bands, digits=10, decimals=6)
    return Drawing(made, title[0].upper() + title[1:], [note], list(_lines(bands, x, ys)), numbers), grid


def _lines(bands: dict[tuple[str, str, str], Band], x: Axis, ys: dict[str, Axis]) -> Iterator[str]:
    """Yield the numbers of each band; by progress the last ones only."""
    for (measure, panel, name), band in bands.items():
        rows = list(zip(band.places, band.mean, band.low, band.high, band.seeds, strict=True))
        for place, mean, low, high, runs in rows if x.names else rows[-1:]:
            at = f"{x.title} {place if isinstance(place, str) else format(place, '.4g')}"
            if ys[measure].title == SHARE and place != name:
                continue  # of a confusion matrix the right ones only
            interval = f" [{low:.4g}, {high:.4g}]" if runs > 1 else ""
            words = filter(None, (panel, name, at, ys[measure].label))
            yield f"{', '.join(words)} {mean:.4g}{interval}, n={runs}"


def _turn_names(made: Figure, grid: list[Axes]) -> None:
    """Turn the names on x axes where they would overlap."""
    made.draw_without_rendering()
    for axes in grid:
        labels = [label for label in axes.get_xticklabels() if label.get_text()]
        boxes = [label.get_window_extent().padded(2) for label in labels]
        if any(one.overlaps(other) for one, other in itertools.pairwise(boxes)):
            axes.tick_params(axis="x", labelrotation=45)
            for label in labels:
                label.set(ha="right", rotation_mode="anchor")


# ------------------------------------------------------------------------------------------------------------- marks


def _estimate(own: pd.DataFrame, y: Axis) -> Band:
    """Mean ``y`` of a series and its 95% interval over runs at each of its places, in order, for which mean ``x``
    stands."""
    groups = own.groupby("place")
    estimates = [mean_estimate(values.tolist(), y.top) for _, values in groups.y]
    means = np.array([one.mean for one in estimates])
    ends = np.array([one.band if one.n > 1 else (one.mean, one.mean) for one in estimates])
    return Band(groups.x.mean().to_numpy(), means, *ends.T, np.array([one.n for one in estimates]))


def _named(band: Band, x: Axis) -> Band:
    """``band`` with the names of its places."""
    return replace(band, places=np.array(x.names, dtype=object)[band.places.astype(int)])


def _series(cell: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame]]:
    """Yield (number, name, points) of each series that has points; the number is the same in every panel."""
    for i, name in enumerate(cell.series.cat.categories):
        own = cell[cell.series == name]
        if len(own):
            yield i, name, own


def curve(axes: Axes, cell: pd.DataFrame, x: Axis, y: Axis) -> dict[str, Band]:
    """A line for the mean of each series, where most of its runs have a value, and a band for its interval."""
    bands = {}
    for i, name, own in _series(cell):
        counts = own.groupby("place").run.transform("nunique")
        bands[name] = _estimate(own[counts == counts.max()], y)
        turn = i + i // len(PALETTE)
        marker = MARKERS[turn % len(MARKERS)] if x.names or len(bands[name].places) == 1 else ""
        draw_band(axes, bands[name], nth_color(i), ls=LINES[turn % len(LINES)], marker=marker, label=name)
    axes.margins(x=0.02)
    if y.unit == "points":
        axes.axhline(0, color=GRAY, lw=0.8)
    if x.title == PROGRESS["round"][0]:
        axes.locator_params(axis="x", integer=True)
    if x.names:
        ticks = [float(name) for name in x.names]
        if ticks[0] > 0 and ticks[-1] >= LOG_RATIO * ticks[0]:
            log_scale(axes, "x")
        axes.set_xticks(ticks, x.names)
        axes.minorticks_off()
    return bands


def bar(axes: Axes, cell: pd.DataFrame, x: Axis, y: Axis) -> dict[str, Band]:
    """A bar for the mean of each series and value, and a whisker for its interval."""
    count = len(cell.series.cat.categories)
    bands = {}
    for i, name, own in _series(cell):
        band = _estimate(own, y)
        whiskers = np.array([band.mean - band.low, band.high - band.mean])
        at = band.places + 0.8 * ((i + 0.5) / count - 0.5)
        options = {"ecolor": GRAY, "capsize": 3}
        axes.bar(
            at, band.mean, 0.8 / count, yerr=whiskers, error_kw=options, color=nth_color(i), alpha=0.85, label=name
        )
        bands[name] = _named(band, x)
    axes.set_xticks(range(len(x.names)), x.names)
    return bands


def box(axes: Axes, cell: pd.DataFrame, x: Axis, y: Axis) -> dict[str, Band]:
    """A box of the values of each series, which are points, at each place; returns medians and quartiles."""
    count = len(cell.series.cat.categories)
    rng = np.random.default_rng(0)
    bands = {}
    for i, name, own in _series(cell):
        shift = 0.8 * ((i + 0.5) / count - 0.5)
        groups = own.groupby("place")
        places = np.array(list(groups.groups))
        values = [group.to_numpy() for _, group in groups.y]
        draw_boxes(axes, values, nth_color(i), 0.45, positions=places + shift, widths=0.64 / count)
        jitter = rng.uniform(-0.2, 0.2, len(own)) / count
        axes.plot(own.place + shift + jitter, own.y, ".", ms=3, color=nth_color(i), label=name)
        low, median, high = (groups.y.quantile(share).to_numpy() for share in (0.25, 0.5, 0.75))
        bands[name] = _named(Band(places, median, low, high, groups.run.nunique().to_numpy()), x)
    axes.set_xticks(range(len(x.names)), x.names)
    return bands


def scatter(axes: Axes, cell: pd.DataFrame, x: Axis, y: Axis) -> dict[str, Band]:
    """A small point for each run, a large one for the mean of each series."""
    bands = {}
    for i, name, own in _series(cell):
        marker = MARKERS[(i + i // len(PALETTE)) % len(MARKERS)]
        band = bands[name] = _estimate(own, y)
        axes.plot(own.x, own.y, marker, ms=4, alpha=0.5, color=nth_color(i))
        axes.plot(band.places, band.mean, marker, ms=9, color=nth_color(i), mec="white", label=name)
    axes.margins(0.1)
    return bands


def heat_map(axes: Axes, cell: pd.DataFrame, x: Axis, y: Axis, **look: Any) -> dict[str, Band]:
    """A row for each series and a cell for each place, colored by the mean, which is written where it fits."""
    names = list(cell.series.cat.categories)
    bands = {}
    means = np.full((len(names), len(x.names)), np.nan)
    for i, name, own in _series(cell):
        band = _estimate(own, y)
        means[i, band.places.astype(int)] = band.mean
        bands[name] = _named(band, x)
    image = axes.imshow(means, aspect="auto", **look)
    axes.figure.colorbar(image, ax=axes, label=y.label)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("true class" if y.title == SHARE else "")
    for put, texts in ((axes.set_xticks, x.names), (axes.set_yticks, names)):
        step = -(-len(texts) // MOST_TICKS)
        put(range(0, len(texts), step), texts[::step])
    if len(x.names) <= MOST_WRITTEN:
        for (i, j), mean in np.ndenumerate(means):
            red, green, blue, _ = image.cmap(image.norm(mean))
            color = "black" if red + 2 * green + blue > 2 else "white"
            axes.text(j, i, "" if np.isnan(mean) else f"{mean:.3g}", ha="center", va="center", size=8, color=color)
    return bands


#: How points are drawn: a function of axes, the points of their panel and both axes that returns what it drew.
MARKS: dict[str, Callable[..., dict[str, Band]]] = {
    "curve": curve,
    "bar": bar,
    "box": box,
    "scatter": scatter,
    "heatmap": functools.partial(heat_map, cmap="viridis", origin="lower"),
    CONFUSION: functools.partial(heat_map, cmap="Blues", vmin=0, vmax=100),
}
