"""Verbs for presets: ``knot-runner claims PRESET`` and ``knot-runner table PRESET``.

``claims`` judges the claims of the paper, and ``table`` shows our numbers next to the published numbers. No job is run.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knot_runner.util.config_yaml import Config, choices, unquoted
from knot_runner.util.errors import LOGGER, UserError, unknown

if TYPE_CHECKING:
    from knot_runner.composing.job import ComposedJob

#: Key of the planned number of seeds, which fixes the interim analyses. Changing the plan after seeing results would
#: bias the verdicts.
SEEDS_KEY = "report.seeds"


@dataclass(frozen=True)
class Preset:
    """A preset with its jobs.

    Attributes:
        name: Name of the preset.
        jobs: The jobs.
        command: Command line that runs the jobs.
    """

    name: str
    jobs: list[ComposedJob]
    command: str

    @property
    def spec(self) -> Config:
        """Return the section ``report:`` of the preset. It defines the tables, figures and claims."""
        return self.jobs[0].settings.report or {}

    @property
    def out(self) -> Path:
        """Return ``paths.output_dir``."""
        return self.jobs[0].out


def typed_preset(options: argparse.Namespace, verb: str) -> Preset:
    """Return the composed preset of the command line ``knot-runner VERB PRESET [KEY=VALUE ...]``.

    Raises:
        UserError: The preset is unknown, or an override is wrong.
    """
    name, *overrides = options.words or [""]
    name = unquoted(name.lstrip("+").removeprefix("experiment="))
    if not name or "=" in name:
        raise UserError("expected a preset", verb, hint="Run 'knot-runner ls experiment' to list the presets")
    return preset_of(name, [*options.flags, *overrides])


def preset_of(name: str, arguments: list[str]) -> Preset:
    """Compose and return a preset. Warn if finished runs of the preset used another version of the code.

    Args:
        name: Name of the preset.
        arguments: Flags and overrides.

    Raises:
        UserError: The preset is unknown, or an argument is wrong.
    """
    from knot_runner import provenance
    from knot_runner.cli.show import check_shown
    from knot_runner.composing.commands import compose_all
    from knot_runner.composing.hydra_compose import read_flags
    from knot_runner.records import read_result

    known = choices("experiment", read_flags(arguments).config_dir)
    if name not in known:
        raise unknown("experiment", name, known, "knot-runner ls experiment")
    for word in arguments:
        if word.lstrip("+~").startswith(SEEDS_KEY):
            raise UserError("can be set only in the YAML file of the preset, not on the command line", SEEDS_KEY)
        if word.startswith("experiment="):
            raise UserError("only one preset is allowed. Remove this preset or the other one", word)
    jobs, _ = compose_all([f"experiment={name}", *arguments])
    check_shown(jobs)
    results = [read_result(job.folder) for job in jobs]
    for line in provenance.staleness_line([provenance.code_changes(result.made_by) for result in results if result]):
        LOGGER.info("%s", line)
    return Preset(name, jobs, shlex.join(["knot-runner", f"experiment={name}", *arguments]))


def table_command(options: argparse.Namespace) -> int:
    """Print the preset's table and write it below ``<out>/tables``. Raises :class:`UserError`."""
    preset = typed_preset(options, "table")
    from knot_runner.cli.show import show_table

    show_table(preset)
    return 0


def claims_command(options: argparse.Namespace) -> int:
    """Print the verdicts on the preset's claims and write them below ``<out>/claims``.

    Raises:
        UserError: The preset has no claims, or no run is finished.
    """
    preset = typed_preset(options, "claims")
    from knot_runner.cli.show import folder_for, references, verdicts_of
    from knot_runner.report.claims.view import claims_table, write_claims
    from knot_runner.report.render.terminal import output
    from knot_runner.report.run_folders import readable

    verdicts = verdicts_of(preset)
    readable(references(preset.jobs), command=preset.command)  # raises if no run is finished
    title = f"Claims of {preset.name}"
    output().print(claims_table(title, verdicts))
    for path in write_claims(title, verdicts, folder_for(preset.out, "claims"), preset.name):
        print(path)
    return 0
