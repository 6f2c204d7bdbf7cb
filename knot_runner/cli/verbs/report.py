"""``knot-runner report PRESET``: writes the results of a preset as an HTML page. No job is run."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from knot_runner.cli.show import folder_for, references
from knot_runner.cli.verbs.preset import typed_preset
from knot_runner.report.page.build import PageRequest, Standing, write_page
from knot_runner.sweeps.state import read_failure, read_progress
from knot_runner.util.config_yaml import headline, yaml_files
from knot_runner.util.errors import counted


def report_command(options: argparse.Namespace) -> int:
    """Write the page ``<out>/reports/<preset>.html``. Print the number of runs in each state, and the page's path.

    Raises:
        UserError: The preset has no finished run.
    """
    preset = typed_preset(options, "report")
    about = headline(yaml_files("experiment", options.config_dir)[preset.name]) or preset.name
    page = shlex.join(["knot-runner", "report", *options.words, *options.flags])
    request = PageRequest(preset.name, about, preset.spec, preset.command, page)
    path = folder_for(preset.out, "reports") / f"{preset.name}.html"
    standings = {job.run_id: _standing(job.folder) for job in preset.jobs}
    written = write_page(path, request, references(preset.jobs), standings)
    states = ", ".join(f"{number} {state}" for state, number in written.counts.items())
    print(f"{states} of {counted(len(written.jobs), 'run')}")
    for problem in written.problems:
        print(f"left out: {problem}")
    print(path)
    return 0


def _standing(folder: Path) -> Standing:
    """Return the state of a run without a result."""
    if at_work := read_progress(folder):
        return Standing("running", f"{at_work.stage}: {at_work.done} of {at_work.total}")
    if failure := read_failure(folder):
        return Standing("failed", f"{failure.cause} ({failure.kind}, attempts: {failure.attempts})")
    return Standing("missing")
