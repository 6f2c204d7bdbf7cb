"""Tables, figures and verdicts of a preset, computed from the finished runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from knot_runner import provenance
from knot_runner.cli.verbs.preset import Preset
from knot_runner.composing.job import ComposedJob
from knot_runner.composing.named_values import without_arm
from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.run import ARM
from knot_runner.report.check import check_report
from knot_runner.report.claims.verdicts import Verdict, judge
from knot_runner.report.figures import registry as figures
from knot_runner.report.figures.output import current_output
from knot_runner.report.figures.registry import figures_of
from knot_runner.report.render.markup import write_table
from knot_runner.report.render.terminal import TerminalTable, output
from knot_runner.report.run_folders import Job
from knot_runner.report.tables.build import preset_table
from knot_runner.util.errors import LOGGER, ReadOnlyError, UserError
from knot_runner.util.files import require_writable
from knot_runner.util.processes import temporary_folder


def show_table(preset: Preset, keep: bool = False) -> None:
    """Print the table of ``preset`` and write it as Markdown, CSV and LaTeX below ``<out>/tables``.

    ``keep``: whether to include runs whose data have changed (see :func:`references`).
    """
    if preset.spec.get("kind") in figures.FIGURES:
        raise UserError(f"table {preset.name}: this preset is a figure. Run this command: {_verb(preset, 'plot')}")
    table = preset_table(references(preset.jobs, keep), preset.spec, preset.command)
    output().print(TerminalTable(table))
    for path in write_table(table, folder_for(preset.out, "tables"), preset.name):
        print(path)


def show_figure(preset: Preset, keep: bool = False) -> None:
    """Draw all figures of ``preset``, and print the plotted numbers.

    The figures are written below ``<out>/figures``. ``keep``: whether to include runs whose data have changed (see
    :func:`references`).
    """
    name = preset.name
    requested = figures_of(preset.spec)
    if not requested:
        raise UserError(f"plot {name}: this preset is a table. Run this command: {_verb(preset, 'table')}")
    jobs = references(preset.jobs, keep)
    notes = preset.spec.get("notes", [])
    for drawn, figure in requested.items():
        file = name
        if len(requested) > 1:
            file = f"{name}_{drawn}"
        path = folder_for(preset.out, "figures") / f"{file}.png"
        print_figure(path, figure(jobs, path, notes=notes, command=preset.command))


def _verb(preset: Preset, verb: str) -> str:
    """Return the command line that shows ``preset`` with ``verb``."""
    return preset.command.replace(f"experiment={preset.name}", f"{verb} {preset.name}", 1)


def show_partition(job: ComposedJob) -> None:
    """Plot the number of training examples per party and class. Write the plot and a CSV file to ``<out>/figures``."""
    from knot_runner.cli.preview import inspected
    from knot_runner.data.counts import TRAIN
    from knot_runner.report.figures.partition import draw_partition

    settings = job.settings
    name = settings.task.name
    seed = settings.seed
    if settings.partition is None:
        chosen = f"task={name} method={settings.method.name}"
        raise UserError(f"plot partition: {chosen} has no partition over clients. Use, for example, task=femnist")
    with temporary_folder() as folder:
        seen = inspected(job, folder)
    assert seen.counts is not None
    labeled = {}
    for party, splits in seen.counts.parties.items():
        if TRAIN in splits and splits[TRAIN][:-1].any():
            labeled[party] = splits[TRAIN][:-1]
    path = folder_for(job.out, "figures")
    path /= f"partition_{name}_{settings.partition.kind}_seed{seed}.png"
    title = f"{name}: {settings.partition.kind} partition, seed {seed}"
    rows = np.stack(list(labeled.values()))
    print_figure(path, draw_partition(rows, list(labeled), seen.counts.classes, path, title, seen.notes))


def print_figure(path: Path, numbers: Iterable[str]) -> None:
    """Print the plotted numbers of a figure, and the path of its file in each format.

    Args:
        path: Path of the figure. The suffix is replaced by the suffix of each format.
        numbers: Lines with the plotted numbers.
    """
    for line in numbers:
        print(line)
    for form in current_output().formats:
        print(path.with_suffix(f".{form}"))


def check_shown(jobs: list[ComposedJob]) -> None:
    """Check the section ``report:`` in the settings of ``jobs``, the jobs of one preset. Raises :class:`UserError`."""
    load_plugins(jobs[0].settings.plugins)  # plug-ins may add kinds of tables, figures and measures
    check_report(jobs[0].settings.report or {})


def show(preset: Preset, keep: bool) -> None:
    """Show the figure of ``preset`` if ``report.kind`` names a figure; otherwise show the table."""
    if preset.spec.get("kind") in figures.FIGURES:
        show_figure(preset, keep)
    else:
        show_table(preset, keep)


def folder_for(out: Path, name: str) -> Path:
    """Create the folder ``<out>/<name>`` and return it.

    If ``out`` is read-only, create a temporary folder instead, and log its path.

    Raises:
        UserError: The folder cannot be created for another reason, such as a full disk.
    """
    folder = out / name
    try:
        require_writable(folder, "paths.output_dir")
    except ReadOnlyError:
        folder = Path(tempfile.mkdtemp(prefix="knot-runner-")) / name
        folder.mkdir()
        LOGGER.info("%s is read-only, so files are written to %s", out, folder)
    return folder


def verdicts_of(preset: Preset) -> list[Verdict]:
    """Return the verdicts on the claims of ``preset``.

    Raises:
        UserError: The preset has no claims, or the claims cannot be judged.
    """
    if not preset.spec.get("claims"):
        raise UserError("the preset has no claims (report.claims)", f"experiment={preset.name}")
    return judge(references(preset.jobs), preset.spec, preset.command)


def references(jobs: list[ComposedJob], keep: bool = False) -> list[Job]:
    """Convert each job to a reference to its run. Tables and figures use these references.

    By default, tables and figures leave out runs whose data have changed. If ``keep`` is true, they include these runs.
    """
    data = None
    if not keep:
        data = provenance.CurrentData(jobs[0].settings.paths.data_dir)
    return [_reference(job, data) for job in jobs]


def _reference(job: ComposedJob, data: provenance.CurrentData | None) -> Job:
    """Return ``job`` for reports: the name of an arm replaces the method's name and becomes the setting ``arm``."""
    settings = job.settings
    config = job.config
    label = job.label
    method = job.settings.method.name
    if job.arm:
        config = {**config, ARM: job.arm}
        method = job.arm
        label = ", ".join(without_arm(label.split(", ")))
    return Job(job.run_id, job.folder, settings.task.name, method, settings.seed, label, config, data)
