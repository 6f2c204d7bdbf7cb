"""Runs a plan with one of Hydra's launchers, which gets run ids instead of overrides.

Jobs are composed once, before the sweep begins, and their configs are stored in the plan, so edits made during the
sweep have no effect. The config's ``hydra`` part, composed at the same time, selects and configures the launcher.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Sequence
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from knot_runner.composing.job import ComposedJob
from knot_runner.sweeps.launchers import Fused, RayLauncher
from knot_runner.sweeps.plan import PATIENT, Plan, write_outcomes
from knot_runner.sweeps.task import Outcome, run_task

#: Hydra accepts plug-ins from the package ``hydra_plugins`` only, which only an installed distribution can extend.
PLUGINS = "hydra_plugins.knot_runner"


class PlannedConfigs:
    """Replaces Hydra's config loader for the launcher: returns the config's ``hydra`` part and the run id."""

    def load_sweep_config(self, master: DictConfig, overrides: Sequence[str]) -> DictConfig:
        """Interface of Hydra's loader; ``overrides``: the run id only."""
        config = copy.deepcopy(master)
        (config.run_id,) = overrides
        return config


def launch(plan: Plan, jobs: Sequence[ComposedJob], hydra: DictConfig) -> list[Outcome]:
    """Run the plan's ``jobs``; return their outcomes and write them beside the plan. Jobs locked by another process
    come last.

    Raises whatever the launcher raises.
    """
    launcher = _launcher(plan, hydra)
    size = hydra.sweeper.max_batch_size
    if size is None and type(launcher).__module__.endswith("submitit_launcher"):
        size = os.cpu_count()  # its local executor starts all jobs at once
    outcomes = _launch(launcher, jobs, 0, size)
    busy = {outcome["run_id"] for outcome in outcomes if outcome["state"] == "busy"}
    if busy:
        plan.mark(PATIENT)
        outcomes = [outcome for outcome in outcomes if outcome["run_id"] not in busy]
        outcomes += _launch(launcher, [job for job in jobs if job.run_id in busy], len(jobs), size)
    write_outcomes(plan, outcomes)
    return outcomes


def _launcher(plan: Plan, hydra: DictConfig) -> Launcher:
    register_launchers()
    setup_globals()
    JobRuntime.instance().set("name", "knot-runner")
    master = OmegaConf.create({"run_id": None, "plan": str(plan.path)})
    with open_dict(master):
        master.hydra = copy.deepcopy(hydra)
    with open_dict(master.hydra):
        master.hydra.run.dir = str(plan.out)
        master.hydra.sweep.dir = str(plan.out / ".sweep")
        master.hydra.job.name = "knot-runner"
    context = HydraContext(config_loader=PlannedConfigs(), callbacks=Callbacks())  # type: ignore[arg-type]
    task = functools.partial(run_task, plan_path=str(plan.path))
    return Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=master)


def _launch(launcher: Launcher, jobs: Sequence[ComposedJob], first: int, size: int | None) -> list[Outcome]:
    size, found = size or len(jobs), []
    for at in range(0, len(jobs), size):
        batch = [[job.run_id] for job in jobs[at : at + size]]
        found += [_value(one) for one in launcher.launch(batch, initial_job_idx=first + at)]
    return found


def _value(returned: Any) -> Outcome:
    """The task's return value; raises the exception that ended the task, if any."""
    return returned if isinstance(returned, dict) else returned.return_value


def register_launchers() -> None:
    """Make our launchers known to Hydra as ``hydra_plugins.knot_runner.Fused`` and ``.RayLauncher``."""
    for launcher in (Fused, RayLauncher):
        own = launcher.__module__
        launcher.__module__ = PLUGINS  # it is registered under this name but pickled under its own
        Plugins.instance().register(launcher)
        launcher.__module__ = own
