"""Launching: all jobs are composed and checked first; one runs here, several as a sweep, by the launcher asked for."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import hydra
from rich.console import Console

from knot_runner import leftovers, stale
from knot_runner.compose import ComposedJob, as_yaml, check_launch, compose_all
from knot_runner.errors import UserError
from knot_runner.files import locked, require_writable
from knot_runner.listing import config_folder
from knot_runner.progress import Live
from knot_runner.records import lock_of, lock_of_sweep, read_result
from knot_runner.report.summary import summary_table
from knot_runner.show import show
from knot_runner.sweep.board import Board
from knot_runner.sweep.plan import Plan, PlannedJob, new_plan, read_outcomes, write_plan
from knot_runner.sweep.state import clear_failure, status
from knot_runner.sweep.summary import FAILED, summary
from knot_runner.sweep.task import Outcome, run_task

#: Hydra's flags that show something instead of running.
HYDRA_ONLY = ("--hydra-help", "--cfg", "--resolve", "--package", "--info")


def run_jobs(arguments: list[str]) -> int:
    """Compose and check every job first; then carry out what is missing. Returns the exit code.

    ``--stale=keep|rerun``: what becomes of finished runs whose code or data have changed since; without it those of
    other code are kept, and those of other data refused.
    """
    if any(a.startswith(HYDRA_ONLY) for a in arguments):
        _hydra(arguments, lambda _: None)
        return 0
    stale_runs, arguments = _stale_flag(arguments)
    jobs, expanded = compose_all(arguments)
    check_launch(expanded)
    console = Console(stderr=True)
    _look_for_stale(jobs, stale_runs, console)
    leftovers.clear(Path(jobs[0].settings.paths.out))
    code = stale.code_version() if stale_runs == "rerun" else None
    asked = {"-m", "--multirun"} & set(expanded) or any(a.startswith("hydra/launcher=") for a in expanded)
    exit_code = (
        _sweep(jobs, expanded, code, console)
        if len(jobs) > 1 or asked
        else _single(jobs[0], code, stale_runs == "keep", console)
    )
    if exit_code == 0 and jobs[0].settings.report:
        preset = next(a.split("=", 1)[1] for a in arguments if a.startswith("experiment="))
        show(preset, jobs, f"knot-runner {' '.join(arguments)}", stale_runs == "keep")
    return exit_code


def _hydra(arguments: list[str], task: Any) -> None:
    sys.argv = [sys.argv[0], *arguments]
    hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(task)()


# ---------------------------------------------------------------------------------------------------------- one run


def _single(job: ComposedJob, code: str | None, keep: bool, console: Console) -> int:
    """One run, in this process. ``keep``: a finished one of other data is shown."""
    if read_result(job.folder) is None:
        require_writable(Path(job.settings.paths.out), "paths.out")
        console.print(f"{job.title}  ->  {job.folder}", highlight=False, soft_wrap=True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from knot_runner.pipelines.errand import Errand, Means  # torch: only now, and not for a mistyped key
        from knot_runner.run import run

        with Live(console) as live:
            text = as_yaml(job.config)
            run(
                Errand(
                    job.settings, job.method, job.folder, text, job.run_id, live.watch, live.say, Means(), code, keep
                )
            )
    except UserError:
        raise
    except Exception as problem:  # a bug or a broken machine: on record
        with contextlib.suppress(OSError):  # a broken disk may be the problem itself
            job.folder.mkdir(parents=True, exist_ok=True)
            with (job.folder / "log.txt").open("a", encoding="utf-8") as log:
                traceback.print_exc(file=log)
        print(f"knot-runner: {type(problem).__name__}: {problem} (see {job.folder}/log.txt)", file=sys.stderr)
        return FAILED
    clear_failure(job.folder)
    result = read_result(job.folder)
    if result["status"] != "done":
        print(f"knot-runner: {result['status']}", file=sys.stderr)
        return FAILED
    Console().print(summary_table(result))
    print(job.folder)
    return 0


# ----------------------------------------------------------------------------------------------------------- a sweep


def _sweep(jobs: list[ComposedJob], expanded: list[str], code: str | None, console: Console) -> int:
    """All jobs that are not done, by Hydra's launcher; their states and causes in the end."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    unlike = list({job.run_id: job for job in jobs}.values())
    states = {job.run_id: status(job.folder) for job in unlike}
    planned = [_planned(job) for job in unlike if states[job.run_id] is None]
    there = [job for job in unlike if states[job.run_id] is not None]
    outcomes: list[Outcome] = []
    for out in dict.fromkeys(job.settings.paths.out for job in unlike if states[job.run_id] is None):
        require_writable(Path(out), "paths.out")
    if planned:
        plan = new_plan(Path(jobs[0].settings.paths.out), planned, jobs[0].settings.fail_fast, code)
        with locked(lock_of_sweep(plan.folder)):
            write_plan(plan)
            with Board(planned, len(unlike) - len(planned), console):
                outcomes = _launched(plan, expanded, console)
    diverged = [_planned(job) for job in there if states[job.run_id] == "diverged"]
    lines, exit_code = summary(planned + diverged, len(there) - len(diverged), outcomes, len(jobs) - len(unlike))
    for line in lines:
        print(line, file=sys.stderr)
    return exit_code


def _planned(job: ComposedJob) -> PlannedJob:
    own = [override for override in job.overrides if not override.startswith(("hydra.", "hydra/"))]
    return PlannedJob(own, job.run_id, str(job.folder), job.title)


def _launched(plan: Plan, expanded: list[str], console: Console) -> list[Outcome]:
    """What the launcher returned; none where it broke, which is said: the records then tell the rest."""
    from knot_runner.sweep.sweeper import register

    register()
    path = str(plan.path)
    fixed = [a for a in expanded if a.startswith(("-", "hydra.", "hydra/")) and a not in ("-m", "--multirun")]
    arguments = ["-m", *fixed, *plan.jobs[0].overrides, f"hydra.sweeper.plan={path}"]
    try:
        _hydra(arguments, lambda config: run_task(config, path))
    except SystemExit as stop:  # Hydra has said why
        console.print(f"the launcher ended early (exit code {stop.code})", highlight=False)
    return read_outcomes(plan)


# ------------------------------------------------------------------------------------------------------- stale results


def _stale_flag(arguments: list[str]) -> tuple[str, list[str]]:
    """``keep``, ``rerun`` or "" (not said), and the other arguments. Raises :class:`UserError`."""
    given = [a for a in arguments if a.startswith("--stale")]
    for flag in given:
        if flag not in ("--stale=keep", "--stale=rerun"):
            raise UserError(f"{flag}: --stale=keep or --stale=rerun would be right")
    asked = given[-1].partition("=")[2] if given else ""
    return asked, [a for a in arguments if a not in given]


def _look_for_stale(jobs: list[ComposedJob], asked: str, console: Console) -> None:
    """Say which finished runs were made with other code or data; with ``asked`` "rerun" set them aside, to be made
    anew. Raises :class:`UserError` on other data where nothing is asked: their numbers are not those of this data."""
    now = stale.Now()
    unlike = {job.run_id: job for job in jobs}.values()
    results = [(job, result) for job in unlike if (result := read_result(job.folder))]
    found = [(job, reasons) for job, result in results if (reasons := stale.reasons(result, job.settings, now))]
    changed = [(job.title, job.folder, own) for job, reasons in found if (own := stale.on_data(reasons))]
    if changed and not asked:
        raise UserError(stale.refusal(changed, len(results)))
    rerun = asked == "rerun"
    for job, _ in found if rerun else []:
        with locked(lock_of(job.settings.paths.out, job.run_id)):
            if _reasons(job, now):  # no other command has made it anew meanwhile
                stale.set_aside(job.folder)
    lines = [f"{len(found)} finished runs are set aside (.stale) and made anew"] if rerun and found else []
    for line in lines or stale.summary([(job.title, reasons) for job, reasons in found]):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _reasons(job: ComposedJob, now: stale.Now) -> list[str]:
    result = read_result(job.folder)
    return stale.reasons(result, job.settings, now) if result else []
