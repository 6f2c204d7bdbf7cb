"""``hydra/launcher=fused``: all jobs of a sweep as one program.

Its jobs are threads of one process, the driver (``driver.py``), that share data, stages and workers; on a GPU,
training that fits together is merged into one stack. A driver that dies is begun again with what is left; a job that
was under way in two deaths then runs in a process of its own. Methods that bring workers of their own (distances,
coresets, probes) run one per process, as under the basic launcher.
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
        driver = _drive(fusable, plan, together)
        found |= driver.ended
        deaths.update(driver.under_way)
        alone |= {name for name, count in deaths.items() if count >= MAX_DEATHS}
        if not driver.code:
            break
        if not driver.under_way and not driver.ended:  # it does not even begin
            alone |= set(left) - set(found)
    return found | {name: run_in_process(left[name], plan) for name in left if name not in found}


def _drive(jobs: list[ComposedJob], plan: Plan, together: int) -> JobsProcess:
    """A driver that has ended."""
    driver = JobsProcess(in_driver, jobs, plan, together)
    driver.outcomes()
    if driver.code:
        LOGGER.info("fused: %s; its jobs go on from their last commits", cause_of(driver.code)[1])
    return driver


def in_driver(*arguments: Any) -> None:
    """Imported in the driver's process only: torch is not for the launcher."""
    from knot_runner.sweeps.driver import drive

    drive(*arguments)
