"""Figures over the rounds of federated runs, by temperature: accuracy and loss (FLex&Chill Fig. 4, 5), and what
aggregation does to clients' accuracy (Fig. 6)."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.report import paper_tables, run_folders
from knot_runner.report.figure_style import GREY, figure_of, panels, save
from knot_runner.report.figures.temperature_probe import temperature_colours
from knot_runner.report.row_keys import Cases, Grid, RowSetting, case_of, lookup, runs_by_case
from knot_runner.report.run_folders import Job, Run
from knot_runner.report.series import Band, band, series_csv, smoothed
from knot_runner.report.text import plain
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A value per round of one run, where there is one; by how many rounds were trained.
Series = dict[int, float]
RoundRows = list[dict[str, Any]]
#: Panel (case, and other settings in which its runs differ) -> row of it -> quantity -> mean over seeds and its band.
Bands = dict[str, dict[RowSetting, dict[str, Band]]]
#: Fig. 6 is smoothed over this share of the rounds; per round it is mostly noise.
WINDOW = 1 / 20
#: A loss that spans more than this is drawn on a logarithmic axis.
PANEL_WIDTH_INCHES = 8.0


@functools.partial(figure_of, one_task=False, reads=(run_folders.ROUNDS,))
def curves(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """Accuracy of the global model on the test set, and its loss at T, after each round (Fig. 4, 5).

    Lines are means over seeds, bands reach from the lowest to the highest seed; dashed: T=1 at rate lr/T. The numbers
    go into a CSV beside the PNG; the last round's come back as lines.
    """
    read = {"accuracy": _of_row("accuracy", 100), "loss at T": _of_row("tempered_loss", 1)}
    found = _bands(runs, read, command)
    drawing = [(name, "accuracy", "accuracy (%)") for name in found]
    drawing += [(name, "loss at T", "test loss at T") for name in found]
    made, grid_of_axes = panels(len(drawing), 4.2 if len(found) < 3 else 3.6, 3.1, across=max(2, len(found)))
    for axes, (name, quantity, label) in zip(grid_of_axes, drawing, strict=True):
        _draw(axes, found[name], quantity)
        axes.set_title(plain(name))
        axes.set_ylabel(label)
        if quantity == "loss at T":
            _scale(axes, found[name])
    _legend(made, found)
    said = _band_note(runs, found)
    save(made, path, "Global model after each round, by training temperature", [*said, *notes])
    write_atomic(path.with_suffix(".csv"), series_csv(_flat(found)))
    return [
        f"{name}, {key.name}: after {bands['accuracy'].rounds[-1]} rounds accuracy "
        f"{bands['accuracy'].mean[-1]:.2f}%, loss at T {bands['loss at T'].mean[-1]:.3f}"
        for name, rows in found.items()
        for key, bands in rows.items()
        if len(bands["accuracy"].rounds)
    ]


@functools.partial(figure_of, one_task=False, reads=(run_folders.ROUNDS,))
def aggregation(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """Change of clients' accuracy on their own test images when the server aggregates (Fig. 6), in points.

    Participants: the new model less the one each has just trained. Others: the new model less the previous one. Lines
    are means over clients, seeds and some rounds; those of each round are in the CSV; means over all come back.
    """
    read = {"participants": participants_change, "others": others_change}
    found = _bands(runs, read, command)
    longest = max(len(bands["participants"].rounds) for rows in found.values() for bands in rows.values())
    window = 1 + 2 * round(WINDOW * longest / 2)  # odd, so that it is centred
    even = {what: functools.partial(_smoothed_change, of, window) for what, of in read.items()}
    smooth = _bands(runs, even, command)
    made, grid_of_axes = panels(2 * len(found), 4.6, 3.4 if len(found) == 1 else 2.9, across=2)
    drawing = [(name, what) for name in found for what in read]
    for axes, (name, what) in zip(grid_of_axes, drawing, strict=True):
        axes.axhline(0, color=GREY, lw=0.8)
        _draw(axes, smooth[name], what)
        axes.set_title(plain(f"{name}: {what}"))
        axes.set_ylabel("accuracy change (points)")
    _legend(made, found)
    said = [f"Running means over {window} rounds. " + _band_note(runs, found)[0]]
    said.append("Participants: new model less the one just trained; others: less the previous model of the server.")
    save(made, path, "Change of clients' accuracy at aggregation, by training temperature", [*said, *notes])
    write_atomic(path.with_suffix(".csv"), series_csv(_flat(found)))
    return [
        f"{name}, {key.name}: " + ", ".join(f"{what} {_mean(bands[what])}" for what in read)
        for name, rows in found.items()
        for key, bands in rows.items()
    ]


# ------------------------------------------------------------------------------------------------------- numbers


def participants_change(rows: RoundRows) -> Series:
    """Rounds trained -> mean over participants of accuracy(aggregated) - accuracy(own, just trained), in points."""
    made = {}
    for row in rows:
        if "clients" in row:
            own = zip(row["participants"], row["after"], strict=True)
            made |= _mean_change(row, [(row["clients"][k], trained) for k, trained in own])
    return made


def others_change(rows: RoundRows) -> Series:
    """Rounds trained -> mean over the other clients of accuracy(aggregated) - accuracy(previous model), in points; from
    the second on, and only where the round before was measured."""
    made = {}
    for last, row in zip(rows, rows[1:], strict=False):
        if "clients" in row and "clients" in last:
            absent = set(range(len(row["clients"]))) - set(row["participants"])
            made |= _mean_change(row, [(row["clients"][k], last["clients"][k]) for k in absent])
    return made


def _smoothed_change(read: Callable[[RoundRows], Series], window: int, rows: RoundRows) -> Series:
    return smoothed(read(rows), window)


def _mean_change(row: dict[str, Any], pairs: Iterable[tuple[float | None, float | None]]) -> Series:
    changes = [100 * (new - old) for new, old in pairs if new is not None and old is not None]
    return {row["round"] + 1: float(np.mean(changes))} if changes else {}


def _of_row(measure: str, scale: float) -> Callable[[RoundRows], Series]:
    return lambda rows: {row["round"] + 1: scale * row[measure] for row in rows if measure in row}


def _bands(runs: Sequence[Run], read: dict[str, Callable[[RoundRows], Series]], command: str) -> Bands:
    made: Bands = defaultdict(dict)
    found: Grid = runs_by_case(runs, figure_cases([run.job for run in runs]))
    for case, rows in found.items():
        for key, seeds in rows.items():
            logs = [run_folders.rounds(run, command) for run in seeds.values()]
            name = f"{case} ({key.other})" if key.other else case
            made[name][key] = {what: band([of(log) for log in logs]) for what, of in read.items()}
    return dict(made)


def figure_cases(jobs: Sequence[Job]) -> Cases:
    """Cases of FLex&Chill's Table 1 by their names, others by task and model; told apart by partition where a case has
    several."""
    known = {name: facts["settings"] for name, facts in paper_tables.read_printed("chill_table1")["cases"].items()}
    kinds: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for job in jobs:
        facts = {"task.name": job.task, "model.name": lookup(job.config, "model.name")}
        name, kind = case_of(job, known), lookup(job.config, "partition.kind")
        kinds[name][kind] = {**known.get(name, facts), "partition.kind": kind}
    return {
        name if len(found) == 1 else f"{name}, {kind}": settings
        for name, found in kinds.items()
        for kind, settings in found.items()
    }


def _flat(found: Bands) -> list[tuple[tuple[str, str, str, str], Band]]:
    return [
        ((name, key.head, key.settings, what), one)
        for name, rows in found.items()
        for key, bands in rows.items()
        for what, one in bands.items()
    ]


def _mean(one: Band) -> str:
    return f"{np.mean(one.mean):+.2f} points" if len(one.mean) else "none"


# ------------------------------------------------------------------------------------------------------- drawing


def _draw(axes: Axes, rows: dict[RowSetting, dict[str, Band]], quantity: str) -> None:
    colours = temperature_colours(key.temperature for key in rows)
    for key, bands in rows.items():
        one, colour = bands[quantity], colours[key.temperature]
        axes.plot(one.rounds, one.mean, color=colour, lw=1.1 if key.control else 1.6, ls="--" if key.control else "-")
        if not key.control:
            axes.fill_between(one.rounds, one.low, one.high, color=colour, alpha=0.15, lw=0)
    axes.set_xlabel("rounds trained")
    axes.margins(x=0.01)


def _scale(axes: Axes, rows: dict[RowSetting, dict[str, Band]]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    values = np.concatenate([bands["loss at T"].mean for bands in rows.values()])
    if len(values) and values.min() > 0 and values.max() / values.min() > PANEL_WIDTH_INCHES:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, (1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(made: Figure, found: Bands) -> None:
    from matplotlib.lines import Line2D

    keys = {key for rows in found.values() for key in rows}
    colours = temperature_colours(key.temperature for key in keys)
    hottest_first = sorted(colours, reverse=True)
    handles = [Line2D([], [], color=colours[value], lw=2, label=f"T={value:g}") for value in hottest_first]
    if any(key.control for key in keys):
        handles.append(Line2D([], [], color=GREY, lw=1.1, ls="--", label="T=1,\nrate lr/T"))
    made.legend(handles=handles, loc="outside right upper")


def _band_note(runs: Sequence[Run], found: Bands) -> list[str]:
    seeds = sorted({run.job.seed for run in runs})
    controlled = any(key.control for rows in found.values() for key in rows)
    dashed = " Dashed: T=1 at rate lr/T, in the colour of T." if controlled else ""
    if len(seeds) == 1:
        return [f"Seed {seeds[0]}.{dashed}"]
    return [f"Lines: mean over seeds {', '.join(map(str, seeds))}; bands: lowest to highest seed.{dashed}"]
