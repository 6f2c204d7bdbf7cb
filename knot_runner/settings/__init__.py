"""Settings: one dataclass per config group, built strictly (:mod:`knot_runner.strict`) from the composed YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from knot_runner.errors import UserError, nearest
from knot_runner.settings.groups import (
    HardwareSettings,
    ModelSettings,
    PathSettings,
    StageSettings,
    TrackerSettings,
    TrainingSettings,
)
from knot_runner.settings.method import (
    LOSS_SETTINGS,
    METHOD_SETTINGS,
    BiasSettings,
    EntropySettings,
    KnotSettings,
    SinkhornSettings,
    TeachersSettings,
)
from knot_runner.settings.task import (
    Columns,
    DatasetSettings,
    EmbeddedSource,
    File,
    HubSource,
    Labels,
    LocalSource,
    Role,
    Split,
    TaskSettings,
)
from knot_runner.strict import build, digest, rule

__all__ = [
    "BiasSettings",
    "Columns",
    "DatasetSettings",
    "EmbeddedSource",
    "EntropySettings",
    "File",
    "HardwareSettings",
    "HubSource",
    "KnotSettings",
    "LOSS_SETTINGS",
    "Labels",
    "LocalSource",
    "METHOD_SETTINGS",
    "ModelSettings",
    "PathSettings",
    "Role",
    "Settings",
    "SinkhornSettings",
    "Split",
    "StageSettings",
    "TaskSettings",
    "TeachersSettings",
    "TrackerSettings",
    "TrainingSettings",
    "build",
    "build_run",
    "digest",
    "rule",
    "run_id",
]

#: Groups and keys that do not change the numbers, so they are left out of the run id.
NOT_IN_RUN_ID = ("hardware", "tracker", "paths", "sweep", "report")


@dataclass
class Settings:
    """One run, whole."""

    seed: int
    task: TaskSettings
    model: ModelSettings
    method: dict[str, Any]
    training: TrainingSettings
    hardware: HardwareSettings
    tracker: TrackerSettings
    paths: PathSettings
    #: Python modules or files that add losses, weightings, ... to the tables; imported before anything runs
    plugins: list[str]
    #: a preset's grid, and how ``table`` and ``plot`` show it; neither is part of a run
    sweep: dict[str, Any] | None = None
    report: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        rule(self.seed >= 0, "seed", f"{self.seed} is negative")


def build_run(config: dict[str, Any]) -> tuple[Settings, Any]:
    """The settings of one run, and its method's own settings (one of ``METHOD_SETTINGS``), from the composed config.

    A loss that is not in ``LOSS_SETTINGS`` is left to the run, which knows the plug-ins.
    """
    settings = build(Settings, config, "")
    algorithm = settings.method.get("algorithm")
    if algorithm not in METHOD_SETTINGS:
        raise UserError(f"method.algorithm: no algorithm {algorithm!r}{nearest(str(algorithm), METHOD_SETTINGS)}")
    method = build(METHOD_SETTINGS[algorithm], settings.method, "method")
    if isinstance(method, KnotSettings):
        if "name" not in method.loss:
            raise UserError("method.loss.name: is not set")
        if method.loss["name"] in LOSS_SETTINGS:
            build(LOSS_SETTINGS[method.loss["name"]], method.loss, "method.loss")
    for party in settings.model.per_party:
        if party not in settings.task.datasets:
            raise UserError(
                f"model.per_party.{party}: task {settings.task.name} has no such data set"
                f"{nearest(party, settings.task.datasets)}"
            )
    return settings, method


def run_id(config: dict[str, Any]) -> str:
    """Name of a run's folder: hash of all settings that can change its numbers.

    What is not in use does not count: the other sources of a data set, the hub's revision of a local run.
    """
    counted = {key: value for key, value in config.items() if key not in NOT_IN_RUN_ID}
    task = dict(counted["task"])
    unused = {"embedded", "local", "hub"} - {task["source"]}
    task["datasets"] = {
        name: {key: value for key, value in data.items() if key not in unused}
        for name, data in task["datasets"].items()
    }
    model = dict(counted["model"])
    if "hub" not in (model["weights"], model["vocab"]):
        del model["hub_id"], model["revision"]
    if model["vocab"] != "train":
        del model["vocab_size"]
    return digest({**counted, "task": task, "model": model}, 12)
