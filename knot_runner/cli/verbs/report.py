"""``knot-runner report PRESET [overrides]``: writes an HTML page of a preset's results from its records."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from knot_runner.cli.verbs.preset import PRESET_FLAGS, preset_of

if TYPE_CHECKING:
    from knot_runner.report.page.build import Standing

REPORT_HELP = f"""\
knot-runner report PRESET [overrides]: all of a preset on one HTML page below paths.out, from the records

{PRESET_FLAGS}

  knot-runner report knot/table3 task.missing=skip"""


def report_command(arguments: list[str]) -> int:
    """Write ``<out>/reports/<preset>.html``; print its path and the runs it is based on. Raises :class:`UserError`."""
    preset = preset_of(arguments, "report")
    from knot_runner.cli.show import folder_for, references
    from knot_runner.report.page.build import PageRequest, write_page

    page = shlex.join(["knot-runner", "report", *arguments])
    request = PageRequest(preset.name, _about(preset.name, arguments[1:]), preset.spec, preset.command, page)
    path = folder_for(preset.out, "reports") / f"{preset.name}.html"
    standings = {job.run_id: _standing(job.folder) for job in preset.jobs}
    made = write_page(path, request, references(preset.jobs), standings)
    print(", ".join(f"{number} {state}" for state, number in made.counts.items()) + f" of {len(made.jobs)} runs")
    for problem in made.problems:
        print(f"left out: {problem}")
    print(path)
    return 0


def _about(name: str, rest: list[str]) -> str:
    """The preset's description, from the head of its YAML file (ours or below ``--config-dir``)."""
    from knot_runner.util.config_yaml import config_folder, headline

    own = [Path(flag.partition("=")[2]) for flag in rest if flag.startswith("--config-dir=")]
    paths = [folder / "experiment" / f"{name}.yaml" for folder in (*own, config_folder())]
    return next((headline(path) for path in paths if path.is_file()), "") or name


def _standing(folder: Path) -> Standing:
    """State of a run without a result."""
    from knot_runner.report.page.build import Standing
    from knot_runner.sweeps.state import read_failure, read_progress

    at_work, failure = read_progress(folder), read_failure(folder)
    if at_work is not None:
        return Standing("running", f"{at_work.stage}: {at_work.done} of {at_work.total}")
    if failure is not None:
        return Standing("failed", f"{failure.cause} ({failure.kind}, attempts: {failure.attempts})")
    return Standing("missing")
