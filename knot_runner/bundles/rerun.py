"""Rerun of a bundled run with the recorded settings, except for paths, hardware and trackers.

A bundle from a stranger may be malicious. Plug-ins and files outside ``paths.data_dir`` are therefore refused, and
trackers are disabled. The user must allow downloads from the Hugging Face hub. :class:`RerunEnvironment` limits the
number of steps and the memory.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from knot_runner.bundles.unpack import BundledRun
from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.devices import DEVICES, is_host
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.config.settings.run_id import run_id
from knot_runner.config.strict import dotted_leaves, without
from knot_runner.data.preflight import no_data
from knot_runner.pipelines.context import Note, Progress, run_context
from knot_runner.pipelines.run import complete_run
from knot_runner.provenance import code_version
from knot_runner.records import CONFIG_FILE, ROUNDS_FILE
from knot_runner.results import RunResult
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError
from knot_runner.util.files import LogRow
from knot_runner.util.processes import cores, memory_limit

#: Value of a setting that selects the Hugging Face hub.
HUB = "hub"
#: Keys whose value may be :data:`HUB`.
HUB_KEYS = ("source", "weights", "vocab")
#: Settings that multiply the work of a run, such as numbers of rounds and epochs.
_STEPS = re.compile(r"(rounds|epochs|steps|iterations|generations)$")


@dataclass(frozen=True)
class RerunEnvironment:
    """Paths, limits and permissions for reruns on this machine.

    Attributes:
        data: Value of ``paths.data_dir`` for the reruns.
        out: Folder for the reruns.
        network: Whether the Hugging Face hub may be used.
        max_steps: Largest allowed value of a setting that counts repetitions, such as rounds or epochs.
        memory: Memory limit of a process in GB. It applies only to reruns on the CPU.
    """

    data: str | None
    out: Path
    network: bool = False
    max_steps: int = 5000
    memory: int = 16


def job_here(config: Config, environment: RerunEnvironment, rounds: int | None = None) -> ComposedJob:
    """Return the job that reruns a bundled run on this machine.

    Args:
        config: Settings of the bundled run.
        environment: Permissions of the job, and paths that replace the paths in ``config``.
        rounds: Number of rounds of the rerun; None for all rounds.

    Raises:
        UserError: A setting is invalid, or is not allowed in a bundle. The message names the key of the setting.
    """
    if config.get("plugins"):
        raise UserError("the run uses custom code, which 'verify' does not execute", "plugins")
    for key, value in dotted_leaves(without(config, "paths")):
        if isinstance(value, str) and _leads_out(value):
            raise UserError(f"{value!r:.80} is outside paths.data_dir, but 'verify' reads only files inside it", key)
        if value == HUB and key.rpartition(".")[2] in HUB_KEYS and not environment.network:
            raise UserError("requires a download from the Hugging Face hub. Use --network to allow it", key)
    hardware = config.get("hardware")
    if not isinstance(hardware, dict):
        raise UserError("required, but not set", "hardware")
    here = {
        **without(config, "sweep", "report"),
        "paths": {"data_dir": environment.data, "output_dir": str(environment.out)},
        "tracker": {"name": "none", "project": "", "mode": "offline"},
        "hardware": {**hardware, **_hardware_here(hardware)},
    }
    if rounds is not None:
        here["training"] = {**here["training"], "rounds": rounds}
    job = job_of(here)
    if problem := no_data([job.settings]):
        raise UserError(problem)
    return job


def whole_because(job: ComposedJob) -> str:
    """Return the reason why the run of ``job`` cannot be shortened to its first rounds; "" if it can be shortened.

    One reason is a temperature schedule that depends on the total number of rounds.
    """
    if not isinstance(job.method, FederatedSettings):
        return "has no rounds"
    if reason := job.method.by_all_rounds:
        return reason
    privacy = job.settings.privacy
    if privacy is not None and privacy.epsilon is not None:
        return "derives its noise from the number of rounds (privacy.epsilon)"
    return ""


def settings_problem(run: BundledRun) -> str:
    """Compare the run id and seed of the settings with those of the recorded result.

    Return "" if both agree. If only the run ids differ and the code has changed since the run, return a message.

    Raises:
        UserError: The seeds differ, or the run ids differ although the code has not changed.
    """
    actual = run_id(run.config)
    seed = run.config.get("seed")
    named = run.result.run_id
    recorded_seed = run.result.seed
    if (actual, seed) == (named, recorded_seed):
        return ""
    problem = f"{CONFIG_FILE}: has the settings of run {actual}, seed {seed}, but the result is from run {named}"
    if seed != recorded_seed or run.result.code == code_version():
        raise UserError(f"{problem}, seed {recorded_seed}")
    return problem


def made_again(
    job: ComposedJob, environment: RerunEnvironment, progress: Progress, note: Note
) -> tuple[RunResult, list[LogRow]]:
    """Run ``job`` in this process, within the limits of ``environment``. Return the result and the log rows.

    Raises:
        UserError: The run fails, or a setting exceeds ``environment.max_steps``.
    """
    for key, value in dotted_leaves(job.own_config):
        if _STEPS.search(key) and isinstance(value, int) and value > environment.max_steps:
            hint = "Use --max-steps=N to raise the limit, or --rounds=N to rerun the first N rounds of a federated run"
            raise UserError(f"{value} is more than {environment.max_steps}, the limit of 'verify'", key, hint=hint)
    on_cpu = is_host(job.settings.hardware.device)
    with memory_limit(environment.memory) if on_cpu else contextlib.nullcontext():
        result = complete_run(run_context(job, progress, note))
    log = job.folder / ROUNDS_FILE
    if not log.exists():
        return result, []
    return result, [json.loads(line) for line in log.read_bytes().splitlines()]


def _hardware_here(hardware: Config) -> Config:
    """Return the hardware of a rerun on this machine.

    A run recorded on a GPU is rerun on a GPU if this machine has one, otherwise on the CPU. An engine other than loop,
    lean and stacked becomes ``auto``. Processes and threads are limited to the number of cores.
    """
    kind = str(hardware.get("device")).partition(":")[0]
    device = "cpu"
    engine = hardware.get("engine")
    if kind in DEVICES and DEVICES[kind].count():
        device = kind
    if engine not in ("loop", "lean", "stacked"):
        engine = "auto"
    here: Config = {"device": device, "devices": [], "engine": engine}
    for key in ("num_workers", "threads"):
        if key in hardware:
            here[key] = min(hardware[key], cores())
    return here


def _leads_out(value: str) -> bool:
    """Return whether a setting is a path that is absolute, starts with ``~`` or contains ``..``."""
    path = PurePosixPath(value)
    outside = path.is_absolute() or value.startswith("~")
    return ".." in path.parts or (outside and len(value) > 1)  # a class may be called "/" or "~"
