"""Reruns a bundled run here with its settings, except for paths, hardware and settings that are unsafe from strangers.

A foreign config may name code (``plugins``), any files, a download of any size and an account: plug-ins and files
outside ``paths.data`` are refused, the hub is used only if allowed, and trackers are disabled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.settings import FederatedSettings
from knot_runner.config.settings.methods.algorithms import federated_algorithm
from knot_runner.config.strict import dotted_leaves, without
from knot_runner.data.preflight import no_data
from knot_runner.pipelines.context import Note, Progress, run_context
from knot_runner.pipelines.runs.single_run import complete_run
from knot_runner.records import ROUNDS_FILE
from knot_runner.util.errors import UserError
from knot_runner.util.processes import cores

#: Value by which a setting selects the Hugging Face hub.
HUB = "hub"
#: Keys whose value may be :data:`HUB`.
HUB_KEYS = ("source", "weights", "vocab")


@dataclass(frozen=True)
class RerunPlace:
    """Environment for reruns: ``data`` (``paths.data``, None: none) and the folder ``out``; ``network``: whether the
    hub may be used; ``cuda``: whether there is a CUDA device."""

    data: str | None
    out: Path
    network: bool = False
    cuda: bool = False


@dataclass(frozen=True)
class MadeAgain:
    """A finished rerun: its ``result`` and log ``rows``."""

    result: dict[str, Any]
    rows: list[dict[str, Any]]


def job_here(config: dict[str, Any], place: RerunPlace, rounds: int | None = None) -> ComposedJob:
    """The job of a bundled run's ``config`` with the paths of ``place``, limited to the first ``rounds`` rounds.

    Raises :class:`UserError` naming a key that a bundle must not set or that is invalid.
    """
    if config.get("plugins"):
        raise UserError("names code that is not in the bundle, and verify runs nobody's; [] is right", "plugins")
    for key, value in dotted_leaves(without(config, "paths")):
        if _leads_out(value):
            raise UserError(f"{value!r:.80} lies outside paths.data; verify reads files below it alone", key)
        if value == HUB and key.rpartition(".")[2] in HUB_KEYS and not place.network:
            raise UserError("asks for a download from the Hugging Face hub; --network allows it", key)
    hardware = config.get("hardware")
    if not isinstance(hardware, dict):
        raise UserError("is not set", "hardware")
    own = {
        **without(config, "sweep", "report"),
        "paths": {"data": place.data, "out": str(place.out)},
        "tracker": {"name": "none"},
        "hardware": {**hardware, **_device(hardware, place), "devices": []},
    }
    if rounds is not None:
        own["training"] = {**own["training"], "rounds": rounds}
    job = job_of(own)
    if problem := no_data([job.settings]):
        raise UserError(problem)
    return job


def whole_because(job: ComposedJob) -> str:
    """Why the first rounds of a run depend on its number of rounds, so that it must be rerun completely; "" if not.

    A temperature schedule depends on the rounds, and personalisation follows the last round.
    """
    if not isinstance(job.method, FederatedSettings):
        return "has no rounds of its own"
    if reason := federated_algorithm(job.method.algorithm).by_all_rounds:
        return reason
    privacy = job.settings.privacy
    if privacy is not None and privacy.epsilon is not None:
        return "finds its noise for all rounds (privacy.epsilon)"
    return ""


def made_again(job: ComposedJob, progress: Progress, note: Note) -> MadeAgain:
    """Run ``job`` in this process. Raises :class:`UserError`."""
    result = complete_run(run_context(job, progress, note))
    log = job.folder / ROUNDS_FILE
    lines = log.read_bytes().splitlines() if log.exists() else []
    return MadeAgain(result, [json.loads(line) for line in lines])


def _device(hardware: dict[str, Any], place: RerunPlace) -> dict[str, Any]:
    """``hardware`` with the recorded device if available here, else the CPU, and no more processes than cores."""
    recorded, workers = str(hardware.get("device")), hardware.get("workers")
    here = recorded if recorded.startswith("cuda") and place.cuda else "cpu"
    return {"device": here, "workers": min(workers, cores()) if isinstance(workers, int) else 1}


def _leads_out(value: Any) -> bool:
    """Whether a setting is a path that is absolute, starts with ``~`` or contains ``..``."""
    if not isinstance(value, str) or "/" not in value:
        return False
    path = PurePosixPath(value)
    return (path.is_absolute() and len(path.parts) > 1) or ".." in path.parts or value.startswith("~")
