"""Verbs that take a preset: ``knot-runner claims PRESET``, which of the paper's claims hold; ``plot PRESET``, its
figure (``plot partition``: the partition of images over clients); ``table PRESET``, our numbers beside the paper's.

All read records. Their preset argument, also that of ``report`` and ``reproduce``, has a name, jobs and a command.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.util.config_yaml import PLAIN_NAME
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from knot_runner.composing.job import ComposedJob
    from knot_runner.report.figures.output import FigureOutput


#: Part of the verbs' help on the arguments after the preset.
PRESET_FLAGS = """\
  --config-dir=DIR     YAML of your own, as when it ran
  overrides            as when it ran: what sets other runs apart from the preset's"""
#: Flags of every verb that takes a preset.
OF_ALL = ("-m", "--multirun", "--config-dir")
#: Key of the planned looks at claims; changing them after the runs would let results select their own verdicts.
SEEDS_KEY = "report.seeds"


@dataclass(frozen=True)
class Preset:
    """A preset with its jobs. ``command``: the command line that runs them."""

    name: str
    jobs: list[ComposedJob]
    command: str

    @property
    def spec(self) -> dict[str, Any]:
        """The preset's ``report:`` section, which defines its output."""
        return self.jobs[0].settings.report or {}

    @property
    def out(self) -> Path:
        """``paths.out``."""
        return Path(self.jobs[0].settings.paths.out)


def _check_one_name(arguments: list[str], verb: str) -> None:
    """Check that the first argument is one plain name and that no other argument is a second one."""
    first = arguments[0] if arguments else ""
    typed = first.lstrip("+").removeprefix("experiment=")
    if typed != first and re.fullmatch(PLAIN_NAME, typed):
        raise UserError(f"{first}: {verb} takes the name alone, as in 'knot-runner {verb} {typed}'")
    names = [*first.split(","), *(word for word in arguments[1:] if re.fullmatch(PLAIN_NAME, word))]
    if len(names) > 1 and all(re.fullmatch(PLAIN_NAME, name) for name in names):
        raise UserError(f"{verb}: takes one preset at a time, not {' and '.join(names)}")
    if not re.fullmatch(PLAIN_NAME, first):
        raise UserError(f"{verb}: needs the name of a preset, as in 'knot-runner {verb} knot/table3' (ls lists them)")


def preset_of(arguments: list[str], verb: str, flags: Sequence[str] = ()) -> Preset:
    """The preset ``arguments[0]`` with the overrides after it. Raises :class:`UserError`.

    The name must be plain, since files are named after it. ``flags``: others of the verb than those of every preset,
    for messages.
    """
    from knot_runner.composing.overrides import config_dir_of, no_such_flag

    typed = [word for word in arguments if word.startswith("-")]
    for flag in typed:
        if flag.partition("=")[0] not in OF_ALL:
            raise UserError(no_such_flag(flag, [*flags, "--config-dir=DIR"], verb))
    config_dir_of(typed)
    _check_one_name(arguments, verb)
    if any(argument.lstrip("+~").startswith(SEEDS_KEY) for argument in arguments[1:]):
        raise UserError(f"{SEEDS_KEY}: is planned before the runs, so it is set in the preset's YAML alone")
    if any(word.lstrip("+~").startswith("experiment=") for word in arguments[1:]):
        raise UserError(f"experiment: {verb} {arguments[0]} names the preset already; without experiment=... is right")
    from knot_runner.composing.commands import compose_all
    from knot_runner.config.plugins import load_plugins

    experiment = f"experiment={arguments[0]}"
    jobs, _ = compose_all([experiment, *arguments[1:]])
    out = Path(jobs[0].settings.paths.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"paths.out: {out}: is not a folder; the one that the runs were written to is right")
    load_plugins(jobs[0].settings.plugins)  # a plug-in may add the requested figure
    return Preset(arguments[0], jobs, shlex.join(["knot-runner", experiment, *arguments[1:]]))


TABLE_HELP = f"""\
knot-runner table PRESET [overrides]: ours beside the paper's, from the records; Markdown, CSV and LaTeX below paths.out

{PRESET_FLAGS}

  knot-runner table knot/table3 task.missing=skip"""


def table_command(arguments: list[str]) -> int:
    """Print the preset's table and write it below ``<out>/tables``. Raises :class:`UserError`."""
    preset = preset_of(arguments, "table")
    from knot_runner.cli.show import show_table

    show_table(preset.name, preset.jobs, preset.command)
    return 0


CLAIMS_HELP = f"""\
knot-runner claims PRESET [overrides]: which of the paper's claims hold, with intervals, from the records

{PRESET_FLAGS}

  knot-runner claims chill/table1 task=femnist"""


def claims_command(arguments: list[str]) -> int:
    """Print the verdicts on the preset's claims and write them below ``<out>/claims``.

    Raises :class:`UserError`, also for a preset without claims.
    """
    preset = preset_of(arguments, "claims")
    if not preset.spec.get("claims"):
        raise UserError(f"claims {preset.name}: its YAML has no report.claims; a list of them is what is judged")
    from knot_runner.cli.show import folder_for, references
    from knot_runner.report.claims.verdicts import judge
    from knot_runner.report.claims.view import claims_table, write_claims
    from knot_runner.report.render.terminal import output

    verdicts = judge(references(preset.jobs), preset.spec, preset.command)
    title = f"Claims of {preset.name}"
    output().print(claims_table(title, verdicts))
    for path in write_claims(title, verdicts, folder_for(preset.out, "claims"), preset.name):
        print(path)
    return 0


PLOT_HELP = f"""\
knot-runner plot PRESET [overrides]: its figure, from the records, as PNG below paths.out
knot-runner plot partition [overrides]: who has which classes; trains nothing

  --formats=pdf,svg    files to write, of png, pdf and svg (default: png)
  --width=single       for print, without title and notes: single (3.35 in), double (7 in) or millimetres
{PRESET_FLAGS}

  knot-runner plot chill/fig4 task=femnist
  knot-runner plot chill/fig4 task=femnist --formats=pdf --width=single
  knot-runner plot partition task=femnist partition=small partition.alpha=0.1"""
PLOT_FLAGS = ("--formats", "--width")


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

    made = FigureOutput()
    for flag in flags:
        name, _, value = flag.partition("=")
        if not value:
            raise UserError(f"{flag}: needs a value, {name}={'pdf,svg' if name == '--formats' else 'single'}")
        if name == "--formats":
            made = dataclasses.replace(made, formats=parse_formats(value))
        else:
            made = dataclasses.replace(made, width=parse_width(value))
    return made
