"""One job of a sweep, in its own process.

The process holds the job's lock, writes the job's log, and records failures in the job's folder. If the settings list
several GPUs, the process uses one of them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.settings.run import Settings
from knot_runner.pipelines.context import run_context
from knot_runner.pipelines.run import finished_result, run_locked
from knot_runner.provenance import code_version
from knot_runner.records import lock_of
from knot_runner.sweeps.plan import PATIENT, RECOMPUTE, Plan
from knot_runner.sweeps.state import JOB_LOG, Kind, SweepState, clear_failure, progress_file, write_failure
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import DiskError, UserError
from knot_runner.util.files import BusyError, disk_errors, locked, writable, write_atomic
from knot_runner.util.processes import Surroundings, begin_child, ended_by_signals, redirect_output


def in_own_process(pipe: Connection, config: Config, plan: Plan, surroundings: Surroundings) -> None:
    """Run a job. This is the main function of the job's process.

    The final state of the job is sent through ``pipe``. On SIGTERM, the process ends with exit code 143.
    """
    surroundings.adopt()
    begin_child()
    with ended_by_signals():
        pipe.send(attempt(job_of(config), plan))
    sys.stdout.flush()
    os._exit(0)  # a running thread of a library must not block the sweep


def attempt(job: ComposedJob, plan: Plan) -> SweepState:
    """Run ``job`` while holding its lock, and return the final state of the job. A job that is already done is not run.

    A failure raises no error. The failure is recorded in ``failed.json`` and ``log.txt`` in the job's folder.
    """
    try:
        with (
            disk_errors(job.out),
            locked(lock_of(job.out, job.run_id), wait=plan.has(PATIENT)),
            leased(job.settings) as device,
        ):
            hardware = replace(job.settings.hardware, device=device)
            job = replace(job, settings=replace(job.settings, hardware=hardware))
            # another command may have finished the job since this sweep began; raises UserError if its data differ
            if done := finished_result(run_context(job, lambda *_: None, lambda _: None)):
                return done.status
            return _carried_out(job, plan)
    except BusyError:
        return "busy"
    except UserError as problem:  # the job's folder is not writable: record this if possible
        return write_failure(job.folder, _fault(problem), str(problem))


def _fault(problem: UserError) -> Kind:
    if isinstance(problem, DiskError):
        return "disk"
    return "user"


def _carried_out(job: ComposedJob, plan: Plan) -> SweepState:
    with _log(job.folder) as log, progress_file(job.folder) as progress:

        def note(text: str) -> None:
            with contextlib.suppress(OSError):  # disk full: the run itself reports this when it commits
                print(time.strftime("%H:%M:%S"), text, file=log, flush=True)

        code = None
        if plan.has(RECOMPUTE):
            code = code_version()
        context = run_context(job, progress, note, code=code)
        # written first, so that the job's settings are known even if the job is killed
        write_atomic(job.folder / "config.yaml", context.config_yaml)
        note(f"begin {job.run_id} on {job.settings.hardware.device}, process {os.getpid()}")
        try:
            state: SweepState = run_locked(context).status
        except UserError as problem:
            return _failed(job.folder, _fault(problem), str(problem), log)
        except SystemExit as stop:
            return _failed(job.folder, "exit", f"SystemExit({stop.code!r}) was raised in the job", log)
        except Exception as problem:  # a bug or a broken machine: record it and continue the sweep
            name = type(problem).__name__  # torch's error class, without importing torch
            kind: Kind = "error"
            if isinstance(problem, MemoryError) or name == "OutOfMemoryError":
                kind = "memory"
            return _failed(job.folder, kind, f"{name}: {problem}", log)
        clear_failure(job.folder)
        note(state)
        return state


def _failed(folder: Path, kind: Kind, cause: str, log: TextIO) -> SweepState:
    with contextlib.suppress(OSError):
        if kind not in ("user", "disk"):
            traceback.print_exc(file=log)
        print(f"failed: {cause}", file=log, flush=True)
    return write_failure(folder, kind, cause)


@contextlib.contextmanager
def _log(folder: Path) -> Iterator[TextIO]:
    """Open ``log.txt`` for appending. The file receives all output of the process, and the stack of a crash."""
    folder.mkdir(parents=True, exist_ok=True)
    with writable(folder / JOB_LOG).open("a", encoding="utf-8", errors="replace") as log:
        redirect_output(log)
        faulthandler.enable(log)
        yield log


@contextlib.contextmanager
def leased(settings: Settings) -> Iterator[str]:
    """Yield the device for a job. Inside the block, the job counts as running on this device.

    The device is the entry of ``hardware.devices`` with the fewest running jobs. In a tie, the first entry is chosen.
    Jobs on other machines or with another ``paths.output_dir`` are not counted. If ``hardware.devices`` is empty, the
    device is ``hardware.device``.
    """
    devices = settings.hardware.devices
    if not devices:
        yield settings.hardware.device
        return
    folder = Path(settings.paths.output_dir) / ".locks" / "devices"
    with contextlib.ExitStack() as stack:
        yield _take_device(stack, devices, folder)


def _take_device(stack: contextlib.ExitStack, devices: list[str], folder: Path) -> str:
    """Return the entry of ``devices`` with the fewest locks in ``folder``, and add a lock until ``stack`` closes."""
    turn = 0
    while True:
        for device in devices:
            path = folder / f"{socket.gethostname()}-{device.replace(':', '')}-{turn}"
            with contextlib.suppress(BusyError):
                stack.enter_context(locked(path, wait=False))
                return device
        turn += 1
