"""``knot-runner verify BUNDLE``: reruns the runs of a bundle on this machine, and compares the results."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from knot_runner.bundles.compare import compare_rounds, compare_whole
from knot_runner.bundles.unpack import BundledRun, quoted, read_bundle
from knot_runner.cli.parsers import names_and_keys
from knot_runner.cli.progress import Live
from knot_runner.provenance import code_changes
from knot_runner.report.render.text import first_few
from knot_runner.results import RunResult
from knot_runner.util.errors import UserError, counted, messages_to
from knot_runner.util.processes import temporary_folder

if TYPE_CHECKING:
    from knot_runner.bundles.rerun import RerunEnvironment


def verify_command(options: argparse.Namespace) -> int:
    """Rerun the runs of a bundle, and print a verdict on each run.

    Returns:
        The exit code: 1 if a run has the verdict ``not the same``, 2 if a run could not be rerun, otherwise 0.

    Raises:
        UserError: An argument is wrong, or the bundle is damaged.
    """
    names, keys = names_and_keys(options.words, ("paths.data_dir", "paths.output_dir"))
    if len(names) != 1:
        raise UserError("expected one bundle", "verify", hint="Run this command: knot-runner verify FILE.tar.gz")
    for name in ("rounds", "memory"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError("expected at least 1", f"--{name}={value}")
    with temporary_folder() as folder:
        runs = read_bundle(Path(names[0]).expanduser(), folder / "bundle")
        out = Path(keys.get("paths.output_dir", f"{folder}/runs")).expanduser()
        if out.exists() and (not out.is_dir() or any(out.iterdir())):  # else a run is compared with itself
            raise UserError("not an empty folder. Use a new folder for the reruns", f"paths.output_dir={out}")
        from knot_runner.bundles.rerun import RerunEnvironment  # imports torch

        data = keys.get("paths.data_dir") or os.environ.get("KNOT_DATA")
        environment = RerunEnvironment(data, out, options.network, options.max_steps, options.memory)
        counts = Counter(_answered(run, options.rounds, environment) for run in runs)
    print(f"{counted(len(runs), 'run')}: {', '.join(f'{n} {name}' for name, n in counts.items())}")
    if "not the same" in counts:
        return 1
    if NOT_MADE in counts:
        return 2
    return 0


#: The verdict on a run that was refused or failed here.
NOT_MADE = "not rerun"


def _answered(run: BundledRun, rounds: int | None, environment: RerunEnvironment) -> str:
    """Print the verdict on one run with its evidence, and return it."""
    try:
        answer, lines = _compared(run, rounds, environment)
    except UserError as problem:
        answer = NOT_MADE
        lines = [str(problem)]
    except Exception as problem:  # a config may hold anything; continue with the other runs
        answer = NOT_MADE
        lines = [f"{type(problem).__name__}: {problem}"]
    print(quoted(f"{run.folder}, seed {run.result.seed}: {answer}"))
    for line in lines:
        print(f"  {quoted(line)}")
    return answer


def _compared(run: BundledRun, rounds: int | None, environment: RerunEnvironment) -> tuple[str, list[str]]:
    """Return (the verdict, lines of evidence). Raises :class:`UserError` if the run cannot be rerun here."""
    from knot_runner.bundles.rerun import job_here, made_again, settings_problem, whole_because

    rows = run.rows()
    job = job_here(run.config, environment)
    cut = None
    lines = []
    if problem := settings_problem(run):
        lines.append(problem)
    if rounds is not None and (why := whole_because(job)):
        lines.append(f"the whole run is rerun, since it {why}")
    elif rounds is not None and rounds < len(rows):
        cut = rounds
        job = job_here(run.config, environment, cut)
    with Live(Console(stderr=True)) as live, messages_to(lambda text: live.note(quoted(text))):
        now, new_rows = made_again(
            job, environment, lambda name, *step: live.watch(quoted(name), *step), lambda _: None
        )
    if cut is None:
        comparison = compare_whole(run.result, rows, now, new_rows)
    else:
        comparison = compare_rounds(run.result, rows[:cut], new_rows[:cut])
    log = "no log"
    if rows:
        log = f"{len(rows[:cut])} of {len(rows)} rows of the log"
    lines += [f"compared: {log}{comparison.extent}", *comparison.differences, *comparison.intervals]
    return comparison.likeness, lines + _differences(run.result, now)


def _differences(was: RunResult, now: RunResult) -> list[str]:
    """Return the lines on data, code and device that differ from the record."""
    lines = []
    if was.data != now.data:
        lines.append(f"different data: {_data_text(was, now)}")
    lines += [f"different code: {change}" for change in code_changes(was.made_by)]
    for key in ("device", "engine"):
        then = getattr(was, key, None)
        today = getattr(now, key, None)
        if then != today:
            lines.append(f"recorded on {then}, rerun on {today}")
    return lines


def _data_text(was: RunResult, now: RunResult) -> str:
    """Return the names of data files whose digests differ; if all files match, the digest of the data."""

    def digests(result: RunResult) -> set[tuple[str, str]]:
        return {(file["path"], file["sha256"]) for file in result.files}

    if unlike := sorted({path for path, _ in digests(was) ^ digests(now)}):
        return f"{first_few(unlike, 4)} differ"
    return f"digest {was.data[:12]} recorded, {now.data[:12]} now"
