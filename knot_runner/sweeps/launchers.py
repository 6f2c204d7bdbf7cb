"""Run the jobs of a plan with one of Hydra's launchers.

Jobs are composed once, before the sweep begins, and their configs are stored in the plan. Edits of config files during
the sweep therefore have no effect.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Sequence

from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime, setup_globals
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from knot_runner.composing.job import ComposedJob
from knot_runner.sweeps.plan import PATIENT, Plan
from knot_runner.sweeps.task import Outcome, run_task
from knot_runner.util.processes import begin_child, cores

#: Class of submitit's launcher for this machine. The processes of submitit's launcher for SLURM outlive the command.
SUBMITIT_LOCAL = "LocalLauncher"


class PlannedConfigs:
    """A replacement for Hydra's config loader. A launcher requests the config of each job from this object.

    Each config holds only ``run_id`` and ``hydra``, because the plan stores the complete configs.
    """

    def load_sweep_config(self, master: DictConfig, overrides: Sequence[str]) -> DictConfig:
        """Return a copy of ``master`` with a job's run id. The run id is the only item of ``overrides``."""
        config = copy.deepcopy(master)
        (config.run_id,) = overrides
        return config


def launch(plan: Plan, jobs: Sequence[ComposedJob], hydra: DictConfig) -> list[Outcome]:
    """Run ``jobs``, which are part of ``plan``, and return their outcomes.

    Jobs that are locked by another process are run last. An exception of the launcher is not caught.
    """
    launcher = _launcher(plan, hydra)
    size = hydra.sweeper.max_batch_size
    if size is None and type(launcher).__name__ == SUBMITIT_LOCAL:
        size = cores()  # the launcher starts all jobs at once

    def start(jobs: Sequence[ComposedJob], first: int) -> list[Outcome]:
        step = size or len(jobs)
        outcomes: list[Outcome] = []
        for at in range(0, len(jobs), step):
            batch = jobs[at : at + step]
            for ended in launcher.launch([[job.run_id] for job in batch], initial_job_idx=first + at):
                outcomes.append(ended.return_value)  # raises the exception that ended the job, if any
        return outcomes

    outcomes = start(jobs, 0)
    busy = {outcome.run_id for outcome in outcomes if outcome.state == "busy"}
    if busy:
        plan.mark(PATIENT)
        outcomes = [outcome for outcome in outcomes if outcome.run_id not in busy]
        outcomes += start([job for job in jobs if job.run_id in busy], len(jobs))
    return outcomes


def _launcher(plan: Plan, hydra: DictConfig) -> Launcher:
    """Return Hydra's launcher for the jobs of ``plan``."""
    setup_globals()
    JobRuntime.instance().set("name", "knot-runner")
    out = plan.folder.parent.parent
    dirs = {"run": {"dir": str(out)}, "sweep": {"dir": str(out / ".sweep")}, "job": {"name": "knot-runner"}}
    master = OmegaConf.create({"run_id": None, "hydra": OmegaConf.merge(hydra, dirs)})
    context = HydraContext(config_loader=PlannedConfigs(), callbacks=Callback())  # type: ignore[arg-type]
    task = functools.partial(run_task, plan=plan)
    launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=master)
    if type(launcher).__name__ == SUBMITIT_LOCAL:
        launcher.task_function = functools.partial(task, parent=os.getpid())
    elif type(launcher).__name__ == "JoblibLauncher":
        launcher.joblib.update(initializer=begin_child, initargs=(os.getpid(),))
        # joblib deletes the remains of killed commands, with a warning for each
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    return launcher
