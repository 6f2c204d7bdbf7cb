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
from knot_runner.report.figure_style import (
    GREY,
    draw_band,
    figure_of,
    log_scale,
    panels,
    save,
    seeds_note,
    side_legend,
    temperature_colours,
)
from knot_runner.report.row_keys import Cases, RowSetting, case_of, lookup, runs_by_case
from knot_runner.report.run_folders import Job, Run
from knot_runner.report.series import BAND_HEADS, Band, band, band_rows, smoothed, write_csv
from knot_runner.report.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A value per round of one run, where there is one; by how many rounds were trained.
Series = dict[int, float]
RoundRows = list[dict[str, Any]]
#: Row of a panel -> quantity -> mean over seeds and its band.
PanelBands = dict[RowSetting, dict[str, Band]]
#: Panel: case, and other settings in which its runs differ.
Bands = dict[str, PanelBands]
#: Fig. 6 is smoothed over this share of the rounds; per round it is mostly noise.
WINDOW = 1 / 20
#: A loss that spans more than this is drawn on a logarithmic axis.
LINEAR_SPAN = 8.0
CHANGE_NOTE = "Participants: new model less the one just trained; others: less the previous model of the server."


@figure_of(one_task=False, reads=(run_folders.ROUNDS,))
def curves(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """Accuracy of the global model on the test set, and its loss at T, after each round (Fig. 4, 5).

    Lines are means over seeds, bands reach from the lowest to the highest seed; dashed: T=1 at rate lr/T. The numbers
    go into a CSV beside the PNG; the last round's come back as lines.
    """
    read = {"accuracy": _of_row("accuracy", 100), "loss at T": _of_row("tempered_loss", 1)}
    found = _bands(runs, read, command)
    made, grid = panels(2 * len(found), 4.2 if len(found) < 3 else 3.6, 3.1, across=max(2, len(found)))
    for name, accuracy, loss in zip(found, grid[: len(found)], grid[len(found) :], strict=True):
        _draw_rows(accuracy, found[name], "accuracy")
        _draw_rows(loss, found[name], "loss at T")
        accuracy.set(title=plain(name), ylabel="accuracy (%)")
        loss.set(title=plain(name), ylabel="test loss at T")
        values = np.concatenate([bands["loss at T"].mean for bands in found[name].values()])
        if len(values) and values.min() > 0 and values.max() / values.min() > LINEAR_SPAN:
            log_scale(loss, "y")
    said = [_band_note(runs, found), *notes]
    _finish(made, path, "Global model after each round, by training temperature", found, said)
    lines = []
    for name, rows in found.items():
        for key, bands in rows.items():
            accuracy, loss = bands["accuracy"], bands["loss at T"]
            if len(accuracy.places):
                last = f"accuracy {accuracy.mean[-1]:.2f}%, loss at T {loss.mean[-1]:.3f}"
                lines.append(f"{name}, {key.name}: after {accuracy.places[-1]} rounds {last}")
    return lines


@figure_of(one_task=False, reads=(run_folders.ROUNDS,))
def aggregation(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """Change of clients' accuracy on their own test images when the server aggregates (Fig. 6), in points.

    Participants: the new model less the one each has just trained. Others: the new model less the previous one. Lines
    are means over clients, seeds and some rounds; those of each round are in the CSV; means over all come back.
    """
    read = {"participants": participants_change, "others": others_change}
    found = _bands(runs, read, command)
    longest = max(len(bands["participants"].places) for rows in found.values() for bands in rows.values())
    window = 1 + 2 * round(WINDOW * longest / 2)  # odd, so that it is centred
    even = {what: functools.partial(_smoothed_change, of, window) for what, of in read.items()}
    smooth = _bands(runs, even, command)
    made, grid = panels(2 * len(found), 4.6, 3.4 if len(found) == 1 else 2.9, across=2)
    for axes, (name, what) in zip(grid, [(name, what) for name in found for what in read], strict=True):
        axes.axhline(0, color=GREY, lw=0.8)
        _draw_rows(axes, smooth[name], what)
        axes.set(title=plain(f"{name}: {what}"), ylabel="accuracy change (points)")
    said = [f"Running means over {window} rounds. {_band_note(runs, found)}", CHANGE_NOTE, *notes]
    _finish(made, path, "Change of clients' accuracy at aggregation, by training temperature", found, said)
    return [
        f"{name}, {key.name}: " + ", ".join(f"{what} {_mean_points(bands[what])}" for what in read)
        for name, rows in found.items()
        for key, bands in rows.items()
    ]


# ------------------------------------------------------------------------------------------------------------ numbers


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
    for case, rows in runs_by_case(runs, figure_cases([run.job for run in runs])).items():
        for key, seeds in rows.items():
            logs = [run_folders.rounds(run, command) for run in seeds.values()]
            name = f"{case} ({key.other})" if key.other else case
            made[name][key] = {what: band([of(log) for log in logs]) for what, of in read.items()}
    return made


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


def _mean_points(one: Band) -> str:
    return f"{np.mean(one.mean):+.2f} points" if len(one.mean) else "none"


# ------------------------------------------------------------------------------------------------------------ drawing


def _draw_rows(axes: Axes, rows: PanelBands, quantity: str) -> None:
    colours = temperature_colours(key.temperature for key in rows)
    for key, bands in rows.items():
        look = {"lw": 1.1, "ls": "--"} if key.control else {}
        draw_band(axes, bands[quantity], colours[key.temperature], filled=not key.control, **look)
    axes.set_xlabel("rounds trained")
    axes.margins(x=0.01)


def _band_note(runs: Sequence[Run], found: Bands) -> str:
    controlled = any(key.control for rows in found.values() for key in rows)
    dashed = " Dashed: T=1 at rate lr/T, in the colour of T." if controlled else ""
    return seeds_note(runs, "lowest to highest seed") + dashed


def _finish(made: Figure, path: Path, title: str, found: Bands, notes: Sequence[str]) -> None:
    """Legend, PNG and CSV: a line per case, temperature, settings, quantity and round."""
    keys = {key for rows in found.values() for key in rows}
    colours = temperature_colours(key.temperature for key in keys)
    shown = {f"T={value:g}": {"color": colours[value], "lw": 2} for value in sorted(colours, reverse=True)}
    if any(key.control for key in keys):
        shown["T=1,\nrate lr/T"] = {"color": GREY, "lw": 1.1, "ls": "--"}
    side_legend(made, shown)
    save(made, path, title, notes)
    rows = []
    for name, panel in found.items():
        for key, bands in panel.items():
            for what, one in bands.items():
                rows += band_rows((name, key.head, key.settings, what), one)
    write_csv(path, ("case", "T", "settings", "quantity", "round", *BAND_HEADS), rows, digits=10, decimals=6)
