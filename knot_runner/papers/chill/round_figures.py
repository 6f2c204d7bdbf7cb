"""Figures over the rounds of federated runs, by temperature: accuracy and loss (FLex&Chill Fig. 4, 5), and what
aggregation does to clients' accuracy (Fig. 6)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.metrics import ACCURACY, SCORE
from knot_runner.records import ROUNDS_FILE
from knot_runner.report.figures.rounds import RoundRows, Series, label_rounds, of_row
from knot_runner.report.figures.style import (
    GRAY,
    Drawing,
    draw_bands,
    figure_of,
    limit_to_shares,
    log_scale,
    panels,
    seeds_note,
    side_legend,
    temperature_colors,
)
from knot_runner.report.paper_tables import read_printed
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import Job, Run, rounds
from knot_runner.report.run_rows import Cases, RowSetting, case_of, case_rows, measured_line
from knot_runner.report.series import Band, band, band_numbers, smoothed
from knot_runner.util.config_yaml import Config
from knot_runner.util.files import LogRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: (panel, row of it, quantity) -> its mean over seeds and its band. A panel is a case and what else sets runs apart.
Bands = dict[tuple[str, RowSetting, str], Band]
#: Fig. 6 is smoothed over this share of the rounds; per round it is mostly noise.
WINDOW = 1 / 20
#: A loss that spans more than this is drawn on a logarithmic axis.
LINEAR_SPAN = 8.0
CURVE_AXES = {"accuracy": "accuracy (%)", "macro F1": "macro F1", "loss at T": "test loss at T"}
CHANGE_NOTE = "Participants: new model less the one just trained; others: less the previous model of the server."


@figure_of(one_task=False, reads=(ROUNDS_FILE,))
def curves(runs: list[Run], command: str) -> Drawing:
    """Accuracy on the test examples, and loss at T, after each round (Fig. 4, 5); macro F1 in the place of accuracy
    where all tasks are scored by it.

    Lines are means over seeds, bands are 95% t intervals; dashed: T=1 at rate lr/T. The numbers
    go into a CSV beside the PNG; the last round's come back as lines.
    """
    score = "accuracy"
    top = 100.0
    unit = "%"
    digits = 2
    read = {score: of_row(ACCURACY, 100)}
    if {run.setting("task.score") for run in runs} == {SCORE}:
        score = "macro F1"
        top = 1.0
        unit = ""
        digits = 3
        read = {score: of_row(SCORE, 1)}
    read["loss at T"] = of_row("tempered_loss", 1)
    found = _bands(runs, read, {score: top})
    names = list(dict.fromkeys(name for name, _, _ in found))
    made, grid = panels(2 * len(names), 4.2 if len(names) < 3 else 3.6, 3.1, across=max(2, len(names)))
    for axes, (what, name) in zip(grid, itertools.product(read, names), strict=True):
        values = _draw_rows(axes, found, name, what)
        axes.set(title=plain(name), ylabel=CURVE_AXES[what])
        if what == score:
            limit_to_shares(axes, top)
        elif len(values) and values.min() > 0 and values.max() / values.min() > LINEAR_SPAN:
            log_scale(axes, "y")
    lines = []
    for (name, key, what), one in found.items():
        if what == score and len(one.places):
            last = f"{score} {one.mean[-1]:.{digits}f}{unit}, loss at T {found[name, key, 'loss at T'].mean[-1]:.3f}"
            lines.append(f"{name}, {key.name}: after {one.places[-1]} rounds {last}")
    title = "Accuracy after each round, by training temperature"
    return _drawing(made, title, runs, found, measured_line(runs), lines)


@figure_of(one_task=False, reads=(ROUNDS_FILE,))
def aggregation(runs: list[Run], command: str) -> Drawing:
    """Change of clients' accuracy on their own test images when the server aggregates (Fig. 6), in points.

    Participants: the new model less the one each has just trained. Others: the new model less the previous one. Lines
    are means over clients, seeds and some rounds; those of each round are in the CSV; means over all come back.
    """
    read = {"participants": participants_change, "others": others_change}
    found = _bands(runs, read)
    longest = max(len(one.places) for (_, _, what), one in found.items() if what == "participants")
    window = 1 + 2 * round(WINDOW * longest / 2)  # odd, so that it is centered
    smooth = _bands(runs, read, window=window)
    shown = dict.fromkeys((name, what) for (name, _, what), one in found.items() if len(one.places))
    one_case = len({name for name, _, _ in found}) == 1
    made, grid = panels(len(shown), 4.6, 3.4 if one_case else 2.9, across=2)
    for axes, (name, what) in zip(grid, shown, strict=True):
        axes.axhline(0, color=GRAY, lw=0.8)
        _draw_rows(axes, smooth, name, what)
        axes.set(title=plain(f"{name}: {what}"), ylabel="accuracy change (points)")
    lines = []
    for (name, key, what), one in found.items():
        mean = f"{np.mean(one.mean):+.2f} points" if len(one.mean) else "none"
        lines.append(f"{name}, {key.name}: {what} {mean}")
    title = "Change of accuracy at aggregation"  # short, since it stands beside the legend where there is one panel
    notes = [CHANGE_NOTE]
    if window > 1:
        notes.append(f"Running means over {window} rounds.")
    return _drawing(made, title, runs, found, notes, lines)


def participants_change(rows: RoundRows) -> Series:
    """Rounds trained -> mean over participants of accuracy(aggregated) - accuracy(own, just trained), in points."""
    made: Series = {}
    for row in rows:
        if "clients" in row:
            own = zip(row["participants"], row["after"], strict=True)
            made |= _mean_change(row, [(row["clients"][k], trained) for k, trained in own])
    return made


def others_change(rows: RoundRows) -> Series:
    """Rounds trained -> mean over the other clients of accuracy(aggregated) - accuracy(previous model), in points; from
    the second on, and only where the round before was measured."""
    made: Series = {}
    for last, row in zip(rows, rows[1:], strict=False):
        if "clients" in row and "clients" in last:
            absent = set(range(len(row["clients"]))) - set(row["participants"])
            made |= _mean_change(row, [(row["clients"][k], last["clients"][k]) for k in absent])
    return made


def _mean_change(row: LogRow, pairs: Iterable[tuple[float | None, float | None]]) -> Series:
    changes = [100 * (new - old) for new, old in pairs if new is not None and old is not None]
    return {row["round"]: float(np.mean(changes))} if changes else {}


def _bands(
    runs: list[Run],
    read: Mapping[str, Callable[[RoundRows], Series]],
    tops: Mapping[str, float] = {},
    window: int = 1,
) -> Bands:
    """``tops``: of quantities that are shares, their largest value; ``window``: rounds over which each run's series is
    smoothed."""
    made: Bands = {}
    for (case, key), own in case_rows(runs, figure_cases(runs)).groupby(["case", "key"], sort=False):
        logs = [rounds(run) for run in own["run"]]
        name = f"{case} ({key.other})" if key.other else case
        for what, of in read.items():
            made[name, key, what] = band([smoothed(of(log), window) for log in logs], top=tops.get(what))
    return made


def figure_cases(jobs: Iterable[Job]) -> Cases:
    """Cases of FLex&Chill's Table 1 by their names, others by task and model; told apart by partition where a case has
    several."""
    known = {name: facts.settings for name, facts in read_printed("chill/table1").cases.items()}
    kinds: dict[str, dict[str, Config]] = {}
    for job in jobs:
        facts = {"task.name": job.task, "model.name": job.setting("model.name")}
        name = case_of(job, known)
        kind = job.setting("partition.kind")
        kinds.setdefault(name, {})[kind] = {**known.get(name, facts), "partition.kind": kind}
    cases: dict[str, Config] = {}
    for name, found in kinds.items():
        cases |= {name if len(found) == 1 else f"{name}, {kind}": settings for kind, settings in found.items()}
    return cases


def _draw_rows(axes: Axes, found: Bands, panel: str, quantity: str) -> np.ndarray:
    """Returns all means that are drawn."""
    rows = {key: one for (name, key, what), one in found.items() if (name, what) == (panel, quantity)}
    colors = temperature_colors(key.temperature for key in rows)
    looks: dict[RowSetting, dict[str, Any]] = {}
    for key in rows:
        looks[key] = {"color": colors[key.temperature]}
        if key.control:
            looks[key] |= {"lw": 1.1, "ls": "--", "filled": False}
    draw_bands(axes, rows, looks)
    label_rounds(axes)
    return np.concatenate([one.mean for one in rows.values()])


def _drawing(made: Figure, title: str, runs: list[Run], found: Bands, notes: list[str], lines: list[str]) -> Drawing:
    """The figure ``made`` with its legend, ``notes`` after that on the seeds, and the numbers in ``found``."""
    colors = temperature_colors(key.temperature for _, key, _ in found)
    shown = {f"T={value:g}": {"color": colors[value], "lw": 2} for value in sorted(colors, reverse=True)}
    seeds = seeds_note(runs)
    if any(key.control for _, key, _ in found):
        shown["T=1,\nrate lr/T"] = {"color": GRAY, "lw": 1.1, "ls": "--"}
        seeds += " Dashed: T=1 at rate lr/T, in the color of T."
    side_legend(made, shown)
    bands = {(name, key.head, key.settings, what): one for (name, key, what), one in found.items()}
    numbers = band_numbers(("case", "T", "settings", "quantity", "round"), bands, digits=10, decimals=6)
    return Drawing(made, title, [seeds, *notes], lines, numbers)
