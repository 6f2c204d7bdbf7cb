"""Functions that a launcher calls to run one job of a sweep in a separate process.

They raise no error if the job fails.
"""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.settings.families import family_of
from knot_runner.sweeps.plan import STOP, Plan
from knot_runner.sweeps.state import Kind, clear_failure, status, write_failure
from knot_runner.util.processes import Surroundings, begin_child, ended_along, prepared, start_process


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job.

    Attributes:
        run_id: Run id of the job.
        state: The final state of the job.
        resumed: Whether the job continued from a checkpoint.
    """

    run_id: str
    state: str
    resumed: bool = False


def run_task(config: Any, plan: Plan, parent: int | None = None) -> Outcome:
    """Run one job of ``plan`` in a separate process, and return the outcome of the job. A crash affects only this job.

    Args:
        config: Config with the ``run_id`` of the job.
        plan: The plan of the sweep.
        parent: Id of a process, or None. If the process ``parent`` ends, the calling process ends, too.
    """
    if parent is not None:
        begin_child(parent)
    return run_in_process(job_of(plan.config(config.run_id)), plan)


def run_in_process(job: ComposedJob, plan: Plan) -> Outcome:
    """Run ``job``, which is part of ``plan``, in a separate process. Return the outcome of the job."""
    if plan.has(STOP):
        return Outcome(job.run_id, "skipped")
    resumed = (job.folder / "commit.json").exists()
    try:
        process, pipe = start_process(server(job), in_job, job.config, plan, Surroundings())
        with ended_along(process):
            state = _received(pipe)
            process.join()
        if not state:
            state = _lost(job.folder, *cause_of(process.exitcode or 0))
    except OSError as problem:  # the process cannot be started
        state = write_failure(job.folder, "error", f"the process could not be started: {problem}")
    if state == "failed" and job.settings.fail_fast:
        plan.mark(STOP)
    return Outcome(job.run_id, state, resumed)


def _received(pipe: Connection) -> str:
    """Return the state that a job's process sends; "" if the process ends without sending a state."""
    with contextlib.closing(pipe), contextlib.suppress(EOFError, OSError):
        return str(pipe.recv())
    return ""


def _lost(folder: Path, kind: Kind, cause: str) -> str:
    """Return the final state of a job whose process died without reporting one.

    If the job has a result, return the state of the result. Otherwise record the failure in the job's folder and return
    "failed".
    """
    state = status(folder)
    if state is not None:
        clear_failure(folder)
        return state
    return write_failure(folder, kind, cause)


def cause_of(code: int) -> tuple[Kind, str]:
    """Return the kind and a description of a job's failure, derived from the exit ``code`` of the job's process.

    The exit code -n means that signal n ended the process.
    """
    if code >= 0:
        return "exit", f"the process of the job ended with exit code {code}"
    name = f"signal {-code}"
    if -code in signal.valid_signals():
        name = signal.Signals(-code).name
    hints = {
        "SIGKILL": " (out of memory, or killed by a user)",
        "SIGSEGV": " (a crash in native code; its stack is in log.txt)",
    }
    return "killed", f"the process of the job was ended by {name}{hints.get(name, '')}"


# ------------------------------------------------------------------------------------------------- the process itself


def server(job: ComposedJob) -> BaseContext:
    """Return the multiprocessing context of the fork server that starts the processes of jobs.

    When the server starts, it imports the modules that ``job`` needs. After its start, it imports no other modules.
    """
    return prepared(["knot_runner.sweeps.job", *family_of(job.method).preload])


def in_job(*arguments: Any) -> None:
    """Call :func:`in_own_process`. That function is imported here, so that the sweep's process does not load torch."""
    from knot_runner.sweeps.job import in_own_process

    in_own_process(*arguments)
