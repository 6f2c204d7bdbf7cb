"""One job of a sweep on the launcher's side: a function of a config that starts a process, waits, and never raises."""

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

#: What launchers return for a job: run id, final state, whether it was resumed from a checkpoint, seconds.
Outcome = dict[str, Any]


def run_task(config: Any, plan_path: str) -> Outcome:
    """Run the job of the plan that ``config`` names in a process of its own and return its outcome.

    However that process ends (an exception, ``SystemExit``, a signal, out of memory), other jobs are not affected.
    """
    plan = read_plan(Path(plan_path))
    return run_in_process(job_of(plan.config(config.run_id)), plan)


def run_in_process(job: ComposedJob, plan: Plan) -> Outcome:
    """:func:`run_task` for an already composed job."""
    began, resumed = time.monotonic(), False
    if plan.stopped:
        return outcome(job.run_id, "skipped", False, began)
    try:
        process = JobsProcess(in_job, [job], plan)
        ended = process.outcomes()
        if job.run_id in ended:
            return ended[job.run_id]
        state, resumed = lost(job.folder, *cause_of(process.code)), job.run_id in process.resumed
    except OSError as problem:  # the process cannot be started
        state = _failed(job.folder, "error", f"its process could not be started: {problem}")
    if state == "failed" and plan.fail_fast:
        plan.mark(STOP)
    return outcome(job.run_id, state, resumed, began)


def outcome(run_id: str, state: str, resumed: bool, began: float) -> Outcome:
    """An outcome as plain data, since launchers send it between processes. ``began``: ``time.monotonic()`` at the
    start."""
    return {"run_id": run_id, "state": state, "resumed": resumed, "seconds": time.monotonic() - began}


def lost(folder: Path, kind: Kind, cause: str) -> str:
    """Final state of a job whose process died without reporting one: that of its result if it had already written one,
    else "failed", which is recorded in its folder."""
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
    """Kind and description of a process's end, from its exit code (negative: the signal)."""
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
    """The fork server for job processes, with the modules the first ``job`` needs already imported."""
    return prepared(["knot_runner.sweeps.job", *family_of(job.method).preload])


def in_job(*arguments: Any) -> None:
    """Run :func:`in_own_process`; imported only here, in the job's process, so that the launcher does not load
    torch."""
    from knot_runner.sweeps.job import in_own_process

    in_own_process(*arguments)


class JobsProcess:
    """The launcher's handle on a process that runs ``jobs`` and reports the start and end of each.

    ``under_way``, ``ended``, ``resumed``: the jobs reported so far, by run id. ``code``: the exit code, once it has
    ended. Raises OSError if the process cannot be started.
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
        """Wait for the process and return the outcomes of all jobs that ended; interrupting the sweep ends the process,
        too."""
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
        """Count jobs as ended whose failure is recorded in their folder but was not reported before the process
        died."""
        for name in sorted(self.under_way):
            failure = read_failure(self._folders[name])
            if failure is not None and failure.at >= self._started:
                self.under_way.discard(name)
                self.ended[name] = outcome(name, "failed", name in self.resumed, self._began[name])
                if self._plan.fail_fast:
                    self._plan.mark(STOP)
