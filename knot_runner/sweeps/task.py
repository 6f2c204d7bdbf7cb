"""One job of a sweep, as a launcher sees it: a function of a config that starts a process, waits, and never raises."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.settings.families import family_of
from knot_runner.sweeps.plan import STOP, Plan, read_plan
from knot_runner.sweeps.state import EXIT, Kind, clear_failure, status, write_failure
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
    began, resumed = time.monotonic(), (job.folder / "commit.json").exists()
    if plan.stopped:
        return outcome(job.run_id, "skipped", False, began)
    try:
        process, _ = start_process(server(job), in_job, job.config, str(plan.path), dict(os.environ))
        code = _exit_code(process)
        state = _STATES.get(code) or _died(job.folder, code)
    except OSError as problem:  # no process can be had
        state = _failed(job.folder, "error", f"its process could not be started: {problem}")
    if state == "failed" and plan.fail_fast:
        plan.mark(STOP)
    return outcome(job.run_id, state, resumed, began)


def outcome(run_id: str, state: str, resumed: bool, began: float) -> Outcome:
    """As plain data, since launchers send it between processes. ``began``: ``time.monotonic()`` then."""
    return {"run_id": run_id, "state": state, "resumed": resumed, "seconds": time.monotonic() - began}


#: Exit code of a job's process -> what became of the job; of a run that ended, its result says more.
_STATES = {code: state for state, code in EXIT.items() if code}


def _died(folder: Path, code: int) -> str:
    """The process ended without a word: on record, for it could not say so itself. It may have been done by then."""
    found = status(folder)
    if found is not None:
        clear_failure(folder)
        return found
    return _failed(folder, *cause_of(code))


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


def in_job(pipe: Connection, *arguments: Any) -> None:
    """Imported in the job's process only: torch is not for the launcher."""
    from knot_runner.sweeps.job import in_own_process

    in_own_process(*arguments)


def _exit_code(process: BaseProcess) -> int:
    """Of a job's process, once it has ended; an interrupted sweep takes its job along."""
    with ended_along(process):
        process.join()
    code = process.exitcode
    process.close()
    return code if code is not None else 1
