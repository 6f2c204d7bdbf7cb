"""``knot-runner plot PRESET``: draws its figure. ``plot partition``: draws the partition of images over clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knot_runner.cli.verbs.preset import PRESET_FLAGS, preset_of
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from knot_runner.report.figures.output import FigureOutput

PLOT_HELP = f"""\
knot-runner plot PRESET [overrides]: its figure, from the records, as PNG below paths.out
knot-runner plot partition [overrides]: who has which classes; trains nothing

  --formats=pdf,svg    files to write, of png, pdf and svg (default: png)
  --width=single       a journal's single (3.35 in) or double (7 in) column, or millimetres
  --no-caption         without the title above and the notes below
{PRESET_FLAGS}

  knot-runner plot chill_fig4 task=femnist
  knot-runner plot chill_fig4 task=femnist --formats=pdf --width=single --no-caption
  knot-runner plot partition task=femnist partition=small partition.alpha=0.1"""
PLOT_FLAGS = ("--formats", "--width", "--no-caption")


def plot_command(arguments: list[str]) -> int:
    """Draw the figure below ``<out>/figures`` and print the plotted numbers; trains nothing. Raises
    :class:`UserError`."""
    flags = [word for word in arguments if word.partition("=")[0] in PLOT_FLAGS]
    words = [word for word in arguments if word not in flags]
    if not flags:
        return _plot(words)
    from knot_runner.report.figures.output import figure_output

    with figure_output(_output(flags)):
        return _plot(words)


def _plot(words: list[str]) -> int:
    if words[:1] == ["partition"]:
        from knot_runner.cli.show import show_partition
        from knot_runner.composing.commands import compose_all

        jobs, _ = compose_all(words[1:])
        for job in jobs:
            show_partition(job)
        return 0
    preset = preset_of(words, "plot", PLOT_FLAGS)
    from knot_runner.cli.show import show_figure

    show_figure(preset.name, preset.jobs, preset.command)
    return 0


def _output(flags: list[str]) -> FigureOutput:
    """The figure output from the flags; the last of repeated flags counts. Raises :class:`UserError`."""
    from knot_runner.report.figures.output import FigureOutput, parse_formats, parse_width

    defaults = FigureOutput()
    formats, width, captioned = defaults.formats, defaults.width, defaults.captioned
    for flag in flags:
        name, equals, value = flag.partition("=")
        if name == "--no-caption":
            if equals:
                raise UserError(f"{flag}: takes no value")
            captioned = False
        elif not value:
            raise UserError(f"{flag}: needs a value, {name}={'pdf,svg' if name == '--formats' else 'single'}")
        elif name == "--formats":
            formats = parse_formats(value)
        else:
            width = parse_width(value)
    return FigureOutput(formats, width, captioned)
