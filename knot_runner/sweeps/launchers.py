"""Runs the jobs of a plan with one of Hydra's launchers, or on Ray. A Hydra launcher receives run ids as overrides.

Jobs are composed once, before the sweep begins, and their configs are stored in the plan. Edits during the sweep
therefore have no effect. The config's ``hydra`` part, composed at the same time, selects and configures the launcher.

``hydra/launcher=ray``: each job is a task of a Ray cluster and runs in a separate process. The published launcher
(hydra-ray-launcher 1.2.2) works with Hydra 1.3, but collects its jobs with ``ray.get`` one after another, so the first
lost worker ends the sweep. The published launcher also sends Hydra's state with each job, which the plan makes
unnecessary, and requires boto3. With our launcher, a job whose worker is lost restarts and resumes from its commit. If
this job fails, other jobs are not affected.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime, setup_globals
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.composing.overrides import is_ray
from knot_runner.sweeps.plan import PATIENT, STOP, Plan
from knot_runner.sweeps.task import Outcome, lost, run_in_process, run_task
from knot_runner.util.errors import LOGGER, UserError, first_line
from knot_runner.util.processes import begin_child, cores
from knot_runner.util.ray_cluster import connected

_KEY = "hydra/launcher=ray"
#: Number of times that Ray restarts a job whose worker is lost. The job resumes from its last commit.
RESTARTS = 1


def launch_on_ray(plan: Plan, jobs: Sequence[ComposedJob], settings: DictConfig) -> list[Outcome]:
    """Run ``jobs`` on Ray and return their outcomes in the same order.

    ``settings``: ``hydra.launcher``, with the ``address`` of the cluster (:func:`connected`) and the resources that Ray
    reserves for each job.
    """
    if any(job.settings.hardware.engine == "ray" for job in jobs):
        raise UserError(
            f"{_KEY} and hardware.engine=ray conflict: the jobs would occupy the cores that the actors need. "
            "Remove one of the two"
        )
    ray = connected(_KEY, settings.address)
    for resource, wanted in (("CPU", settings.num_cpus), ("GPU", settings.num_gpus)):
        available = ray.cluster_resources().get(resource, 0)
        if wanted > available:  # not an error: the cluster may scale up
            LOGGER.info(
                "%s: jobs need %g %s each, but the cluster has %g, so they wait", _KEY, wanted, resource, available
            )
    outcomes = run_on_ray(ray, jobs, plan, {"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus})
    return [outcomes[job.run_id] for job in jobs]


def run_on_worker(run_id: str, plan: Plan, folder: str) -> Outcome:
    """Run a job in a separate process on a Ray worker; ``folder``: base of relative paths.

    Raises:
        OSError: The worker cannot read the folder.
        UserError: The worker cannot read the plan.
    """
    os.chdir(folder)
    return run_in_process(job_of(plan.config(run_id)), plan)


def run_on_ray(ray: Any, jobs: Sequence[ComposedJob], plan: Plan, kept: dict[str, float]) -> dict[str, Outcome]:
    """Run all jobs and return the outcomes by run id. Ray starts jobs in this order, as resources become free."""
    task = ray.remote(max_retries=RESTARTS, **kept)(run_on_worker)
    under_way = {task.remote(job.run_id, plan, str(Path.cwd())): job for job in jobs}
    outcomes: dict[str, Outcome] = {}
    while under_way:
        (ended,), _ = ray.wait(list(under_way), num_returns=1)
        job = under_way.pop(ended)
        try:
            outcomes[job.run_id] = ray.get(ended)
            continue
        except ray.exceptions.RayTaskError as problem:  # the worker is alive but lacks the folder, plan or program
            cause = f"{_KEY}: a worker could not start the job: {first_line(problem.cause)}"
        except ray.exceptions.RayError as problem:
            cause = f"{_KEY}: the worker was lost ({first_line(problem)})"
        state = lost(job.folder, "killed", cause)  # the job itself could not report the failure
        if state == "failed" and job.settings.fail_fast:
            plan.mark(STOP)
        outcomes[job.run_id] = Outcome(job.run_id, state)
    return outcomes


#: Class of submitit's launcher for this machine. The processes of submitit's launcher for SLURM outlive the command.
SUBMITIT_LOCAL = "LocalLauncher"


class PlannedConfigs:
    """A replacement for Hydra's config loader.

    The launcher calls this object for the config of each job, and gets only the ``hydra`` part and the run id.
    """

    def load_sweep_config(self, master: DictConfig, overrides: Sequence[str]) -> DictConfig:
        """Return ``master`` with the job's run id, the only item of ``overrides``."""
        config = copy.deepcopy(master)
        (config.run_id,) = overrides
        return config


def launch(plan: Plan, jobs: Sequence[ComposedJob], hydra: DictConfig) -> list[Outcome]:
    """Run the plan's ``jobs`` and return their outcomes. Jobs locked by another process come last.

    Raises the exceptions of the launcher.
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
            if launcher is None:
                outcomes += launch_on_ray(plan, batch, hydra.launcher)
                continue
            # reading a job's return value raises the exception that ended the job, if any
            ended = launcher.launch([[job.run_id] for job in batch], initial_job_idx=first + at)
            outcomes += [one.return_value for one in ended]
        return outcomes

    outcomes = start(jobs, 0)
    busy = {outcome.run_id for outcome in outcomes if outcome.state == "busy"}
    if busy:
        plan.mark(PATIENT)
        outcomes = [outcome for outcome in outcomes if outcome.run_id not in busy]
        outcomes += start([job for job in jobs if job.run_id in busy], len(jobs))
    return outcomes


def _launcher(plan: Plan, hydra: DictConfig) -> Launcher | None:
    """Return Hydra's launcher; None for Ray."""
    if is_ray(hydra):
        return None
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
