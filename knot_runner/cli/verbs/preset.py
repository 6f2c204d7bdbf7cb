"""The preset argument of ``claims``, ``plot``, ``report`` and ``table``: its name, jobs and command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.util.errors import UserError
from knot_runner.util.messages import LOGGER

if TYPE_CHECKING:
    from knot_runner.composing.job import ComposedJob

#: Part of the verbs' help on the arguments after the preset.
PRESET_FLAGS = """\
  --config-dir=DIR     YAML of your own, as when it ran
  overrides            as when it ran: what sets other runs apart from the preset's"""
#: Flags of every verb that takes a preset.
OF_ALL = ("-m", "--multirun", "--config-dir")
#: Key of the planned looks at claims; changing them after the runs would let results select their own verdicts.
SEEDS_KEY = "report.seeds"
#: A plain name, which files can be named after.
_NAME = r"\w[\w.-]*"


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


def _say_unsealed(jobs: list[ComposedJob]) -> None:
    """Log a line on results without seals, whose other files cannot be checked."""
    from knot_runner.records import BEFORE_SEALS, is_sealed, read_result

    results = [result for job in jobs if (result := read_result(job.folder))]
    unsealed = sum(not is_sealed(result) for result in results)
    if unsealed:
        LOGGER.info("%d of %d results were %s", unsealed, len(results), BEFORE_SEALS)


def _check_one_name(arguments: list[str], verb: str) -> None:
    """Check that the first argument is one plain name and that no other argument is a second one."""
    first = arguments[0] if arguments else ""
    typed = first.lstrip("+").removeprefix("experiment=")
    if typed != first and re.fullmatch(_NAME, typed):
        raise UserError(f"{first}: {verb} takes the name alone, as in 'knot-runner {verb} {typed}'")
    names = [*first.split(","), *(word for word in arguments[1:] if re.fullmatch(_NAME, word))]
    if len(names) > 1 and all(re.fullmatch(_NAME, name) for name in names):
        raise UserError(f"{verb}: takes one preset at a time, not {' and '.join(names)}")
    if not re.fullmatch(_NAME, first):
        raise UserError(f"{verb}: needs the name of a preset, as in 'knot-runner {verb} knot_table3' (ls lists them)")


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
    _say_unsealed(jobs)
    return Preset(arguments[0], jobs, shlex.join(["knot-runner", experiment, *arguments[1:]]))
