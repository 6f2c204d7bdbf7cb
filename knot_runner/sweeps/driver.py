"""The driver process of a fused sweep: one thread per job; the jobs share data, engine and executor."""

from __future__ import annotations

import faulthandler
import functools
import os
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.settings import Settings
from knot_runner.data.shared import SharedTasks
from knot_runner.engine.execute import ExecutorPool
from knot_runner.engine.federated.engine_pool import EnginePool
from knot_runner.engine.hardware import choose_device
from knot_runner.pipelines.context import Services
from knot_runner.sweeps.job import carry_out
from knot_runner.sweeps.plan import Plan, read_plan
from knot_runner.util.errors import UserError
from knot_runner.util.messages import LOGGER, messages_to
from knot_runner.util.processes import begin_child, cores, ended_by_sigterm, redirect_output

#: Maximum number of concurrent jobs on a GPU: their training is merged into common stacks, but each holds its own
#: state.
MAX_TOGETHER = 256


def drive(pipe: Connection, configs: list[dict[str, Any]], plan_path: str, env: dict[str, str], together: int) -> None:
    """Main function of the driver: run all jobs of ``configs``, ``together`` at a time, and send each start and end on
    ``pipe``."""
    begin_child(env)
    with ended_by_sigterm():
        plan = read_plan(Path(plan_path))
        jobs = [_on_its_device(job_of(config), turn) for turn, config in enumerate(configs)]
        with (plan.folder / "driver.txt").open("a", encoding="utf-8", errors="replace") as log:
            redirect_output(log)
            faulthandler.enable(log)
            with messages_to(functools.partial(print, flush=True)):
                _all(jobs, plan, together or window(jobs[0].settings), pipe)
    sys.stdout.flush()
    os._exit(0)


def _on_its_device(job: ComposedJob, turn: int) -> ComposedJob:
    """Assign ``hardware.devices`` round-robin; jobs on the same device share its stacks."""
    hardware = job.settings.hardware
    if not hardware.devices:
        return job
    device = hardware.devices[turn % len(hardware.devices)]
    return replace(job, settings=replace(job.settings, hardware=replace(hardware, device=device)))


def window(settings: Settings) -> int:
    """Number of concurrent jobs for the hardware: on a CPU, enough to keep the workers busy while other jobs aggregate
    and evaluate; on a GPU, up to ``MAX_TOGETHER``."""
    try:
        device = choose_device(settings.hardware.device)
    except UserError:  # each job reports this error itself
        return 1
    workers = settings.hardware.workers or cores()
    return workers + 2 if device.type == "cpu" else MAX_TOGETHER


def _all(jobs: list[ComposedJob], plan: Plan, together: int, pipe: Connection) -> None:
    """Run all jobs in ``together`` threads; these are daemons, so that none outlives the main thread."""
    waiting, lock = iter(jobs), threading.Lock()
    engines, executors, tasks = EnginePool(LOGGER.info), ExecutorPool(), SharedTasks()
    others = min(together, len(jobs)) - 1
    services = Services(
        tasks.images, tasks.texts, engines.engine, executors.executor, others, unlabelled=tasks.unlabelled
    )

    def announce(message: tuple[str, str, bool]) -> None:
        with lock:
            pipe.send(message)

    def worker() -> None:
        while True:
            with lock:
                job = next(waiting, None)
            if job is None:
                return
            carry_out(job, plan, announce, services)

    threads = [threading.Thread(target=worker, daemon=True) for _ in range(min(together, len(jobs)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        engines.close()
        executors.close()
