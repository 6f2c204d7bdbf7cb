"""``hydra/launcher=fused``: all jobs of a sweep as one program.

The jobs are threads of one process, the driver (``driver.py``), that share data, stages and workers; on a GPU,
compatible training is merged into one stack. A driver that dies is restarted with the remaining jobs; a job that was
running in two such deaths then runs in a process of its own. Methods with workers of their own (distances, coresets,
probes) run one per process, as under the basic launcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.settings.families import family_of
from knot_runner.sweeps.plan import Plan, read_plan
from knot_runner.sweeps.task import JobsProcess, Outcome, cause_of, run_in_process
from knot_runner.util.messages import LOGGER

#: Number of driver deaths during a job after which it runs in a process of its own.
MAX_DEATHS = 2


class Fused(Launcher):
    """The fused launcher. ``together``: number of concurrent jobs; 0 = chosen for the hardware (``driver.window``)."""

    def __init__(self, together: int) -> None:
        self.together = together
        self.config: DictConfig | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's launcher interface."""
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Outcome]:
        """Run all jobs and return their outcomes in the same order."""
        assert self.config is not None
        plan = read_plan(Path(self.config.plan))
        jobs = [job_of(plan.config(name)) for (name,) in job_overrides]
        found = fuse(jobs, plan, self.together)
        return [found[job.run_id] for job in jobs]


def fuse(jobs: Sequence[ComposedJob], plan: Plan, together: int) -> dict[str, Outcome]:
    """Run all jobs and return their outcomes by run id."""
    left = {job.run_id: job for job in jobs}
    threads = {name: job.settings.hardware.threads for name, job in left.items() if family_of(job.method).fusable}
    first = next(iter(threads.values()), None)
    alone = {name for name in left if name not in threads or threads[name] != first}  # one thread count per process
    found: dict[str, Outcome] = {}
    deaths: Counter[str] = Counter()
    while fusable := [job for name, job in left.items() if name not in alone and name not in found]:
        driver = _drive(fusable, plan, together)
        found |= driver.ended
        deaths.update(driver.under_way)
        alone |= {name for name, count in deaths.items() if count >= MAX_DEATHS}
        if not driver.code:
            break
        if not driver.under_way and not driver.ended:  # it does not even start
            alone |= set(left) - set(found)
    return found | {name: run_in_process(left[name], plan) for name in left if name not in found}


def _drive(jobs: list[ComposedJob], plan: Plan, together: int) -> JobsProcess:
    """Run ``jobs`` in a driver and return its handle once it has ended."""
    driver = JobsProcess(in_driver, jobs, plan, together)
    driver.outcomes()
    if driver.code:
        LOGGER.info("fused: %s; its jobs go on from their last commits", cause_of(driver.code)[1])
    return driver


def in_driver(*arguments: Any) -> None:
    """Run :func:`drive`; imported only here, in the driver's process, so that the launcher does not load torch."""
    from knot_runner.sweeps.driver import drive

    drive(*arguments)
