"""Our Hydra sweeper: a launcher gets the jobs that are missing, those that another process is at once more in the end.

Jobs are composed and checked before Hydra begins (``launch.py``), so this sweeper reads them from the plan and expands
no grid itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from knot_runner.sweep.plan import PATIENT, PlannedJob, read_plan, write_outcomes
from knot_runner.sweep.task import Outcome


class Missing(Sweeper):
    """``plan``: the path of ``plan.json``; ``max_batch_size``: jobs handed over at once, None = all."""

    def __init__(self, plan: str | None, max_batch_size: int | None) -> None:
        self.plan, self.size = plan, max_batch_size
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """As Hydra asks."""
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        if self.size is None and type(self.launcher).__module__.endswith("submitit_launcher"):
            self.size = os.cpu_count()  # its local executor starts all jobs at once

    def sweep(self, arguments: list[str]) -> list[Outcome]:
        """The outcome of every job of the plan, written beside it, too: Hydra gives no sweeper's return value on."""
        assert self.plan is not None and self.launcher is not None
        plan = read_plan(Path(self.plan))
        outcomes = self._launch(plan.jobs, 0)
        busy = {outcome["run_id"] for outcome in outcomes if outcome["state"] == "busy"}
        if busy:
            plan.mark(PATIENT)
            outcomes = [outcome for outcome in outcomes if outcome["run_id"] not in busy]
            outcomes += self._launch([job for job in plan.jobs if job.run_id in busy], len(plan.jobs))
        write_outcomes(plan, outcomes)
        return outcomes

    def _launch(self, jobs: Sequence[PlannedJob], first: int) -> list[Outcome]:
        assert self.launcher is not None
        size, found = self.size or len(jobs), []
        for at in range(0, len(jobs), size):
            batch = [job.overrides for job in jobs[at : at + size]]
            found += [_value(one) for one in self.launcher.launch(batch, initial_job_idx=first + at)]
        return found


def _value(returned: Any) -> Outcome:
    """What the task returned; raises what kept it from returning."""
    return returned if isinstance(returned, dict) else returned.return_value


#: Hydra takes plug-ins of this package alone, which only an installed distribution could add to.
PLUGINS = "hydra_plugins.knot_runner"


def register() -> None:
    """Make our sweeper and launcher known to Hydra as ``hydra_plugins.knot_runner.Missing`` and ``...Fused``."""
    from knot_runner.sweep.fused import Fused

    for plugin in (Missing, Fused):
        own = plugin.__module__
        plugin.__module__ = PLUGINS  # the name it is registered by; pickled it is by its own
        Plugins.instance().register(plugin)
        plugin.__module__ = own
