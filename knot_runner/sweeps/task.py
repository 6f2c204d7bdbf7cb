"""One job of a sweep, as a launcher sees it: a function of a config that starts a process, waits, and never raises."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.settings.families import family_of
from knot_runner.sweeps.plan import STOP, Plan, read_plan
from knot_runner.sweeps.state import Kind, clear_failure, read_failure, status, write_failure
from knot_runner.util.errors import UserError
from knot_runner.util.processes import ended_along, prepared, start_process

#: What launchers return of a job: its run id, what became of it, whether it went on from a commit, seconds.
Outcome = dict[str, Any]


def run_task(config: Any, plan_path: str) -> Outcome:
    """Carry out the job of the plan that ``config`` names, in a process of its own, and say what became of it.

    However that process ends (an exception, ``SystemExit``, a signal, out of memory), it takes no other job with it.
    """
    plan = read_plan(Path(plan_path))
    return run_in_process(job_of(plan.config(config.run_id)), plan)


def run_in_process(job: ComposedJob, plan: Plan) -> Outcome:
    """:func:`run_task` of a composed job."""
    began, resumed = time.monotonic(), False
    if plan.stopped:
        return outcome(job.run_id, "skipped", False, began)
    try:
        process = JobsProcess(in_job, [job], plan)
        ended = process.outcomes()
        if job.run_id in ended:
            return ended[job.run_id]
        state, resumed = _died(job.folder, process.code), job.run_id in process.resumed
    except OSError as problem:  # no process can be had
        state = _failed(job.folder, "error", f"its process could not be started: {problem}")
    if state == "failed" and plan.fail_fast:
        plan.mark(STOP)
    return outcome(job.run_id, state, resumed, began)


def outcome(run_id: str, state: str, resumed: bool, began: float) -> Outcome:
    """As plain data, since launchers send it between processes. ``began``: ``time.monotonic()`` then."""
    return {"run_id": run_id, "state": state, "resumed": resumed, "seconds": time.monotonic() - began}


def _died(folder: Path, code: int) -> str:
    """The process ended without a word."""
    return lost(folder, *cause_of(code))


def lost(folder: Path, kind: Kind, cause: str) -> str:
    """What a job that ended without a word came to: on record, for it could not say so itself. It may have been done by
    then."""
    found = status(folder)
    if found is not None:
        clear_failure(folder)
        return found
    return _failed(folder, kind, cause)


def _failed(folder: Path, kind: Kind, cause: str) -> str:
    with contextlib.suppress(UserError):  # a full disk must not end the sweep
        write_failure(folder, kind, cause)
    return "failed"


def cause_of(code: int) -> tuple[Kind, str]:
    """What an exit code says of how a process ended."""
    if code >= 0:
        return "exit", f"the job's process ended by itself with exit code {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    hint = {
        "SIGKILL": " (out of memory, or killed by hand)",
        "SIGSEGV": " (a crash in native code; its stack is in log.txt)",
    }
    return "killed", f"the job's process was ended by {name}{hint.get(name, '')}"


# ------------------------------------------------------------------------------------------------- the process itself


def server(job: ComposedJob) -> BaseContext:
    """Where jobs' processes are forked from; it has imported what the first ``job`` needs."""
    return prepared(["knot_runner.sweeps.job", *family_of(job.method).preload])


def in_job(*arguments: Any) -> None:
    """Imported in the job's process only: torch is not for the launcher."""
    from knot_runner.sweeps.job import in_own_process

    in_own_process(*arguments)


class JobsProcess:
    """A process that carries out ``jobs``, seen from the launcher: it reports the begin and the end of each.

    ``under_way``, ``ended``, ``resumed``: what was heard of so far, by run id. ``code``: its exit code in the end.
    Raises OSError where no process can be had.
    """

    def __init__(self, target: Callable[..., None], jobs: list[ComposedJob], plan: Plan, *arguments: Any) -> None:
        self._plan, self._folders = plan, {job.run_id: job.folder for job in jobs}
        self._started = time.time()
        self._process, self._pipe = start_process(
            server(jobs[0]), target, [job.config for job in jobs], str(plan.path), dict(os.environ), *arguments
        )
        self._began = dict.fromkeys(self._folders, time.monotonic())
        self.under_way: set[str] = set()
        self.resumed: set[str] = set()
        self.ended: dict[str, Outcome] = {}
        self.code = 0

    def outcomes(self) -> dict[str, Outcome]:
        """Those of all jobs that ended, once the process has; an interrupted sweep takes it along."""
        with ended_along(self._process):
            self._listen()
            self._process.join()
        self.code = self._process.exitcode or 0
        self._process.close()
        if self.code:
            self._hear_of_failures()
        return self.ended

    def _listen(self) -> None:
        while True:
            try:
                name, state, resumed = self._pipe.recv()
            except (EOFError, OSError):
                return
            if state == "begun":
                self.under_way.add(name)
                self.resumed |= {name} if resumed else set()
                self._began[name] = time.monotonic()
            else:
                self.under_way.discard(name)
                self.ended[name] = outcome(name, state, resumed, self._began[name])

    def _hear_of_failures(self) -> None:
        """Jobs whose failure is on record, but whose word was lost with the process, have ended."""
        for name in sorted(self.under_way):
            failure = read_failure(self._folders[name])
            if failure is not None and failure.at >= self._started:
                self.under_way.discard(name)
                self.ended[name] = outcome(name, "failed", name in self.resumed, self._began[name])
                if self._plan.fail_fast:
                    self._plan.mark(STOP)
