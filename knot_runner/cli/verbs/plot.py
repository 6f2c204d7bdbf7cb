"""``knot-runner plot``: draws figures of presets, partitions and runs. ``confusion``: shows a confusion matrix."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from knot_runner.cli.parsers import parser_of
from knot_runner.cli.show import folder_for, print_figure, show_figure, show_partition
from knot_runner.cli.verbs.compare import selection
from knot_runner.cli.verbs.preset import typed_preset
from knot_runner.composing.commands import compose_all
from knot_runner.config.strict import build
from knot_runner.records import find_run
from knot_runner.report.confusion import confusion_table
from knot_runner.report.figures.output import FORMATS, FigureOutput, figure_output, parse_formats, parse_width
from knot_runner.report.figures.plot import PlotRequest, draw_runs
from knot_runner.report.figures.style import figure_settings, save
from knot_runner.report.frame import name_few, selected_runs
from knot_runner.report.render.terminal import output
from knot_runner.util.errors import UserError, nearest

#: Options of ``plot`` that apply only to runs selected by filters, not to presets.
OF_RUNS = ("x", "y", "by", "row", "col", "mark", "smooth", "out")


def plot_command(options: argparse.Namespace) -> int:
    """Draw the figures that ``options`` request, and print the plotted numbers. No job is run.

    Raises:
        UserError: An option is wrong, or there is nothing to draw.
    """
    width = None
    if options.width:
        width = parse_width(options.width)
    formats = parse_formats(options.formats)
    first = (options.words or [""])[0]
    given = {name: value for name, value in vars(options).items() if name in OF_RUNS and value is not None}
    of_runs = not first or (set("=<>") & set(first) and not first.lstrip("+").startswith("experiment="))
    if given and not of_runs:
        option, *_ = given
        raise UserError(f"supported only for runs selected by filters, not for the preset {first}", f"--{option}")
    if options.out:
        formats = (_format_of(options.out),)
    with figure_output(FigureOutput(formats, width)):
        if of_runs:
            _plot_runs(options.words, **given)
        elif first == "partition":
            jobs, _ = compose_all([*options.flags, *options.words[1:]])
            for job in jobs:
                show_partition(job)
        else:
            show_figure(typed_preset(options, "plot"))
    return 0


def _format_of(file: str) -> str:
    """Return the format of the figure ``file``. Raises :class:`UserError`, also if the folder does not exist."""
    path = Path(file).expanduser()
    form = path.suffix.removeprefix(".")
    if form not in FORMATS:
        raise UserError(f"unknown format{nearest(form, FORMATS)}", f"--out={file}")
    if not path.parent.is_dir():
        raise UserError(f"folder '{path.parent}' not found", f"--out={file}")
    return form


def _plot_runs(words: Sequence[str], out: str = "", **request: Any) -> None:
    asked = build(PlotRequest, request, "plot")
    runs = selected_runs(*selection(words))
    with figure_settings():
        drawing, _ = draw_runs(runs, asked)
        path = Path(out).expanduser() if out else folder_for(runs.out, "figures") / f"{asked.name}.png"
        save(drawing, path)
    print_figure(path, [*drawing.lines, *drawing.notes])


def confusion_command(options: argparse.Namespace) -> int:
    """Print the confusion matrix of a run. With ``--out``, also draw it. Raises :class:`UserError`."""
    if options.out:
        _format_of(options.out)  # before anything is read
    words = list(options.words)
    if words and not set("=<>") & set(words[0]):
        folder = find_run(words[0], selection(words[1:])[0]).resolve()
        words = [f"run_id={folder.name}", f"paths.output_dir={folder.parents[2]}"]
    runs = selected_runs(*selection(words)).finished
    if len(runs.runs) != 1:
        ids = name_few([f"run_id={run_id}" for run_id in runs.runs.run_id])
        raise UserError(f"expected one finished run, got {len(runs.runs)}{ids}", " ".join(options.words) or "RUN")
    output().print(confusion_table(runs.runs.run.iloc[0]))
    if options.out:
        plot_command(parser_of("plot").parse([*words, "--y=confusion", "--by=", f"--out={options.out}"]))
    return 0
