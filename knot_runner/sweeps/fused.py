"""``hydra/launcher=fused``: all jobs of a sweep as one program.

Its jobs are threads of one process, the driver (``driver.py``), that share data, stages and workers; on a GPU,
training that fits together is merged into one stack. A driver that dies is begun again with what is left; a job that
was under way in two deaths then runs in a process of its own. Methods that bring workers of their own (distances,
coresets, probes) run one per process, as under the basic launcher.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.settings.families import family_of
from knot_runner.sweeps.plan import STOP, Plan, read_plan
from knot_runner.sweeps.state import read_failure
from knot_runner.sweeps.task import Outcome, cause_of, outcome, run_in_process, server
from knot_runner.util.messages import LOGGER
from knot_runner.util.processes import ended_along, start_process

#: Deaths of a driver that a job may have been under way in before it runs by itself.
MAX_DEATHS = 2


class Fused(Launcher):
    """``together``: jobs under way at once; 0 = what suits the hardware (``driver.window``)."""

    def __init__(self, together: int) -> None:
        self.together = together
        self.config: DictConfig | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """As Hydra asks."""
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Outcome]:
        """The outcome of every job, in their order."""
        assert self.config is not None
        plan = read_plan(Path(self.config.plan))
        jobs = [job_of(plan.config(name)) for (name,) in job_overrides]
        found = fuse(jobs, plan, self.together)
        return [found[job.run_id] for job in jobs]


def fuse(jobs: Sequence[ComposedJob], plan: Plan, together: int) -> dict[str, Outcome]:
    """Outcome by run id of every job."""
    left = {job.run_id: job for job in jobs}
    threads = {name: job.settings.hardware.threads for name, job in left.items() if family_of(job.method).fusable}
    first = next(iter(threads.values()), None)
    alone = {name for name in left if name not in threads or threads[name] != first}  # a process has one number of them
    found: dict[str, Outcome] = {}
    deaths: Counter[str] = Counter()
    while fusable := [job for name, job in left.items() if name not in alone and name not in found]:
        driver = _Driver(fusable, plan, together)
        found |= driver.outcomes()
        deaths.update(driver.under_way)
        alone |= {name for name, count in deaths.items() if count >= MAX_DEATHS}
        if not driver.died:
            break
        if not driver.under_way and not driver.ended:  # it does not even begin
            alone |= set(left) - set(found)
    return found | {name: run_in_process(left[name], plan) for name in left if name not in found}


class _Driver:
    """A driver's process, seen from the launcher: what its jobs' threads report."""

    def __init__(self, jobs: list[ComposedJob], plan: Plan, together: int) -> None:
        self._plan = plan
        self._folders = {job.run_id: job.folder for job in jobs}
        self._started = time.time()
        configs = [job.config for job in jobs]
        self._process, self._pipe = start_process(
            server(jobs[0]), in_driver, configs, str(plan.path), together, dict(os.environ)
        )
        self._began = dict.fromkeys(self._folders, time.monotonic())
        self.under_way: set[str] = set()
        self._resumed: set[str] = set()
        self.ended: dict[str, Outcome] = {}
        self.died = False

    def outcomes(self) -> dict[str, Outcome]:
        """Those of all jobs that ended, once the driver has."""
        with ended_along(self._process):  # an interrupted sweep takes its jobs along
            self._listen()
            self._process.join()
        code = self._process.exitcode or 0
        self.died = code != 0
        if self.died:
            self._hear_of_failures()
            LOGGER.info("fused: %s; its jobs go on from their last commits", cause_of(code)[1])
        return self.ended

    def _hear_of_failures(self) -> None:
        """Jobs whose failure is on record, but whose word was lost with the driver, have ended."""
        for name in sorted(self.under_way):
            failure = read_failure(self._folders[name])
            if failure is not None and failure.at >= self._started:
                self.under_way.discard(name)
                self.ended[name] = outcome(name, "failed", name in self._resumed, self._began[name])
                if self._plan.fail_fast:
                    self._plan.mark(STOP)

    def _listen(self) -> None:
        while True:
            try:
                name, state, resumed = self._pipe.recv()
            except EOFError:
                return
            if state == "begun":
                self.under_way.add(name)
                self._resumed |= {name} if resumed else set()
                self._began[name] = time.monotonic()
            else:
                self.under_way.discard(name)
                self.ended[name] = outcome(name, state, resumed, self._began[name])


def in_driver(*arguments: Any) -> None:
    """Imported in the driver's process only: torch is not for the launcher."""
    from knot_runner.sweeps.driver import drive

    drive(*arguments)
