"""``hydra/launcher=fused``: all jobs of a sweep as one program.

Its jobs are threads of one process, the driver (``driver.py``), that share data, stages and workers; on a GPU,
training that fits together is merged into one stack. A driver that dies is begun again with what is left; a job that
was under way in two deaths then runs in a process of its own. Methods that bring workers of their own (distances,
coresets, probes) run one per process, as under the basic launcher.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from knot_runner.composing.job import run_folder
from knot_runner.config.settings import Settings, build_run, run_id
from knot_runner.config.settings.families import family_of
from knot_runner.sweeps.plan import STOP, Plan, read_plan
from knot_runner.sweeps.state import read_failure
from knot_runner.sweeps.task import Outcome, cause_of, end, outcome, run_in_process, server
from knot_runner.util.processes import on_sigterm

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
        names = [name for (name,) in job_overrides]
        found = fuse([plan.config(name) for name in names], plan, self.together)
        return [found[name] for name in names]


def fuse(configs: Sequence[dict[str, Any]], plan: Plan, together: int) -> dict[str, Outcome]:
    """Outcome by run id of every job of ``configs`` (plain)."""
    left = {run_id(config): config for config in configs}
    alone = {name for name, config in left.items() if not family_of(build_run(config)[1]).fusable}
    threads = next((config["hardware"]["threads"] for name, config in left.items() if name not in alone), None)
    alone |= {name for name, config in left.items() if config["hardware"]["threads"] != threads}  # a process has one
    found: dict[str, Outcome] = {}
    deaths: Counter[str] = Counter()
    while fusable := [config for name, config in left.items() if name not in alone and name not in found]:
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

    def __init__(self, configs: list[dict[str, Any]], plan: Plan, together: int) -> None:
        settings: Settings = build_run(configs[0])[0]
        context = server(settings)
        self._plan = plan
        self._folders = {run_id(config): run_folder(settings, run_id(config)) for config in configs}
        self._pipe, theirs = context.Pipe(duplex=False)
        arguments = (configs, str(plan.path), together, dict(os.environ), theirs)
        self._process = context.Process(target=in_driver, args=arguments)
        self._started = time.time()
        self._process.start()
        theirs.close()  # so that the driver's death ends our end
        self._began = {run_id(config): time.monotonic() for config in configs}
        self.under_way: set[str] = set()
        self._resumed: set[str] = set()
        self.ended: dict[str, Outcome] = {}
        self.died = False

    def outcomes(self) -> dict[str, Outcome]:
        """Those of all jobs that ended, once the driver has."""
        try:
            with on_sigterm(functools.partial(end, self._process)):
                self._listen()
                self._process.join()
        except BaseException:  # an interrupted sweep takes its jobs along
            end(self._process)
            raise
        code = self._process.exitcode or 0
        self.died = code != 0
        if self.died:
            self._hear_of_failures()
            print(f"fused: {cause_of(code)[1]}; its jobs go on from their last commits", file=sys.stderr)
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


def in_driver(configs: list[dict[str, Any]], plan: str, together: int, env: dict[str, str], pipe: Connection) -> None:
    """Imported in the driver's process only: torch is not for the launcher."""
    from knot_runner.sweeps.driver import drive

    drive(configs, plan, together, env, pipe)
