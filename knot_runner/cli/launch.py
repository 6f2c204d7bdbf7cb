"""Runs the unfinished jobs of a command line.

A single job runs in this process. The jobs of a sweep run with the selected launcher.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import traceback
from dataclasses import replace

from omegaconf import DictConfig
from rich.console import Console

from knot_runner import provenance
from knot_runner.cli.progress import Live
from knot_runner.composing.commands import Command, compose_all
from knot_runner.composing.hydra_compose import plain_content
from knot_runner.composing.job import ComposedJob, plain_yaml
from knot_runner.config.devices import is_host
from knot_runner.config.plugins import no_exit
from knot_runner.config.settings.families import family_of
from knot_runner.config.strict import by_key, without
from knot_runner.data.preflight import no_data
from knot_runner.records import lock_of, read_result, recorded_config
from knot_runner.report.records.run_summary import summary_table
from knot_runner.report.render.terminal import output
from knot_runner.sweeps.board import EXIT_FAILED, EXIT_USER_ERROR, Board, sweep_summary
from knot_runner.sweeps.plan import RECOMPUTE, Plan, write_plan
from knot_runner.sweeps.state import clear_failure, status
from knot_runner.sweeps.task import Outcome
from knot_runner.util.errors import LOGGER, UserError, counted, messages_to
from knot_runner.util.files import locked, require_writable, writable
from knot_runner.util.processes import begin_server, cores

#: Exit codes for several presets, sorted by increasing severity: a failed run is more severe than a user's mistake.
WORSE = (0, EXIT_USER_ERROR, EXIT_FAILED)


def run_jobs(options: argparse.Namespace) -> int:
    """Compose and check all jobs, run the unfinished jobs, and return the exit code.

    Args:
        options: Options of the command line. If ``options.cfg`` is set, the composed config is printed and nothing is
            run. ``options.stale`` is "keep", "rerun" or "". Finished runs whose code or data have changed are rerun
            only with "rerun".

    Raises:
        UserError: A setting is wrong, or data have changed and ``options.stale`` is empty.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    arguments = [*options.flags, *options.words]
    if options.cfg:
        _print_composed(arguments, options.cfg)
        return 0
    jobs, commands = compose_all(arguments)
    _look_for_stale(jobs, options.stale)
    codes = [_carried_out(command, options.stale, alone=len(commands) == 1) for command in commands]
    return max(codes, key=WORSE.index)


def _print_composed(arguments: list[str], part: str) -> None:
    """Print the complete settings of the first job, Hydra's settings, or both, as ``part`` selects.

    ``part`` is ``job``, ``hydra`` or ``all``.
    """
    (job, *_), (command, *_) = compose_all(arguments, first=True)
    if part != "job":
        print(plain_yaml({"hydra": without(plain_content(command.hydra), "help", "hydra_help")}), end="")
    if part != "hydra":
        print(plain_yaml(job.config), end="")


def _carried_out(command: Command, stale_runs: str, alone: bool) -> int:
    """Run a command that has at most one preset, and show the preset's report; return the exit code.

    With ``alone=False``, the command is one of several, and an error is printed but does not stop the others.
    """
    has_report = command.jobs[0].settings.report
    try:
        if has_report:
            from knot_runner.cli.show import check_shown, show  # tables and figures, which a single run does not need
            from knot_runner.cli.verbs.preset import Preset

            check_shown(command.jobs)
        exit_code = _sweep(command, stale_runs) if command.sweep else _single(command.jobs[0], stale_runs)
        if exit_code == 0 and has_report:
            line = shlex.join(["knot-runner", *command.arguments])
            show(Preset(str(command.preset), command.jobs, line), keep=stale_runs == "keep")
    except UserError as problem:
        if alone:
            raise
        LOGGER.warning("experiment=%s: %s", command.preset, problem)
        return EXIT_USER_ERROR
    return exit_code


# ---------------------------------------------------------------------------------------------------------- one run


def _single(job: ComposedJob, stale_runs: str) -> int:
    """Run one run in this process; return the exit code."""
    console = Console(stderr=True)
    if read_result(job.folder) is None:
        if problem := no_data([job.settings]):
            raise UserError(problem)
        require_writable(job.out, "paths.output_dir")
        console.print(f"{job.title}  ->  {job.folder}", highlight=False, soft_wrap=True)
        hardware = job.settings.hardware
        family = family_of(job.method)
        if family.trains and is_host(hardware.device) and (hardware.num_workers or cores()) > 1:
            begin_server(list(family.preload))
    try:
        from knot_runner.pipelines.context import run_context
        from knot_runner.pipelines.run import complete_run  # imports torch, so only after all checks

        with no_exit(job.settings.plugins), Live(console) as live, messages_to(live.note):
            keep = stale_runs == "keep"  # show a finished run even if its data have changed
            code = None
            if stale_runs == "rerun":
                code = provenance.code_version()
            result = complete_run(run_context(job, live.watch, LOGGER.info, code=code, keep=keep))
    except UserError:
        raise
    except Exception as problem:  # a bug or a broken machine: record it
        with contextlib.suppress(OSError):  # the problem may be a broken disk
            job.folder.mkdir(parents=True, exist_ok=True)
            with writable(job.folder / "log.txt").open("a", encoding="utf-8") as log:
                traceback.print_exc(file=log)
        LOGGER.error("%s: %s (see %s/log.txt)", type(problem).__name__, problem, job.folder)
        return EXIT_FAILED
    clear_failure(job.folder)
    if result.status != "done":
        LOGGER.error("%s", result.status)
        return EXIT_FAILED
    notes = [note for note in result.notes if note not in live.noted]
    output().print(summary_table(replace(result, notes=notes)))
    print(job.folder)
    return 0


# ----------------------------------------------------------------------------------------------------------- a sweep


def _sweep(command: Command, stale_runs: str) -> int:
    """Run all unfinished jobs with the launcher, then print their states and the causes of failures."""
    unlike = {job.run_id: job for job in command.jobs}
    by_state = by_key((status(job.folder), job) for job in unlike.values())
    to_do = by_state.get(None, [])
    diverged = by_state.get("diverged", [])
    finished = len(unlike) - len(to_do)
    outcomes: list[Outcome] = []
    if problem := no_data(job.settings for job in to_do):
        raise UserError(problem)  # one error, instead of a failure of every job
    for out in dict.fromkeys(job.out for job in to_do):
        require_writable(out, "paths.output_dir")
    if to_do:
        plan = write_plan(command.jobs[0].out, to_do)
        if stale_runs == "rerun":
            plan.mark(RECOMPUTE)
        with Board(to_do, finished, Console(stderr=True)) as board, messages_to(board.note):
            outcomes = _launched(plan, to_do, command.hydra)
    duplicates = len(command.jobs) - len(unlike)
    lines, exit_code = sweep_summary(to_do + diverged, finished - len(diverged), outcomes, duplicates)
    for line in lines:
        LOGGER.info("%s", line)
    return exit_code


def _launched(plan: Plan, jobs: list[ComposedJob], launcher: DictConfig) -> list[Outcome]:
    """Run the launcher and return its outcomes.

    If the launcher crashes, log a warning and return an empty list, because the records of the runs hold the outcomes.

    Raises:
        UserError: A dependency of the launcher is missing.
    """
    from knot_runner.sweeps.launchers import launch

    try:
        return launch(plan, jobs, launcher)
    except UserError:
        raise
    except Exception as problem:  # problems of the launcher's settings, queue or workers
        LOGGER.info("the launcher failed: %s: %s", type(problem).__name__, " ".join(str(problem).split()))
        return []


# ------------------------------------------------------------------------------------------------------- stale results


def _look_for_stale(jobs: list[ComposedJob], stale: str) -> None:
    """Report finished runs that used a different code version or different data, or whose files changed.

    If ``stale`` is "rerun", move these runs to ``.stale`` so that they are rerun.

    Raises:
        UserError: ``stale`` is empty, and data or files changed.
    """
    now = provenance.Now()
    finished = {job.run_id: job for job in jobs if read_result(job.folder)}
    stale_runs: list[ComposedJob] = []
    causes = []
    changed = []
    for job in finished.values():
        if reasons := _reasons(job, now):
            stale_runs.append(job)
            causes.append(reasons)
            if why := provenance.blocking(reasons):
                changed.append((job.title, job.folder, why))
    if changed and not stale:
        raise UserError(provenance.refusal(changed, len(finished)))
    if stale_runs and stale == "rerun":
        for job in stale_runs:
            with locked(lock_of(job.out, job.run_id)):
                if _reasons(job, now):  # unless another command has rerun it meanwhile
                    provenance.set_aside(job.folder)
        LOGGER.info("moved %s to .stale, to be rerun", counted(len(stale_runs), "finished run"))
    else:
        for line in provenance.staleness_line(causes):
            LOGGER.info("%s", line)
    tracker = jobs[0].settings.tracker.name
    if tracker != "none":
        untracked = 0
        for job in finished.values():
            if read_result(job.folder):  # unless the run was moved
                untracked += recorded_config(job.folder)["tracker"]["name"] != tracker
        if untracked:
            LOGGER.info("tracker=%s does not show %s that finished without it", tracker, counted(untracked, "run"))


def _reasons(job: ComposedJob, now: provenance.Now) -> list[str]:
    result = read_result(job.folder)
    if result is None:
        return []
    return provenance.reasons(job.folder, result, job.settings, now)
