"""One run's settings, whole: the groups of the composed YAML that fit together, and the hash that names the run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from knot_runner.errors import UserError, nearest
from knot_runner.settings.federated import FEDERATED_ALGORITHMS, FederatedSettings, FederatedTraining
from knot_runner.settings.groups import HardwareSettings, ModelSettings, PathSettings, TrackerSettings, TrainingSettings
from knot_runner.settings.images import ImageTaskSettings
from knot_runner.settings.method import LOSS_SETTINGS, KnotSettings, TeachersSettings
from knot_runner.settings.networks import NETWORK_SETTINGS, ImageModel
from knot_runner.settings.partition import PARTITION_SETTINGS
from knot_runner.settings.probe import ProbeSettings
from knot_runner.settings.task import TaskSettings
from knot_runner.strict import build, digest, rule

#: Groups and keys that do not change the numbers, so they are left out of the run id.
NOT_IN_RUN_ID = ("hardware", "tracker", "paths", "sweep", "report")
#: Keys of ``hardware`` that do, in federated runs: engines agree up to rounding only.
HARDWARE_IN_RUN_ID = ("engine", "precision")
#: ``method.algorithm`` -> its settings. Those of images are federated, the others distil texts.
METHOD_SETTINGS: dict[str, type] = {
    "knot": KnotSettings,
    "teachers": TeachersSettings,
    **dict.fromkeys(FEDERATED_ALGORITHMS, FederatedSettings),
    "temperature_probe": ProbeSettings,
}
#: The settings of methods that distil texts.
TEXT_METHODS = (KnotSettings, TeachersSettings)


@dataclass
class Settings:
    """One run, whole."""

    seed: int
    task: TaskSettings | ImageTaskSettings
    model: ModelSettings | ImageModel
    method: dict[str, Any]
    training: TrainingSettings | FederatedTraining
    hardware: HardwareSettings
    tracker: TrackerSettings
    paths: PathSettings
    #: Python modules or files that add losses, weightings, ... to the tables; imported before anything runs
    plugins: list[str]
    #: how images are dealt to clients, one of ``PARTITION_SETTINGS``; null for texts
    partition: Any = None
    #: a preset's grid, and how ``table`` and ``plot`` show it; neither is part of a run
    sweep: dict[str, Any] | None = None
    report: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        rule(self.seed >= 0, "seed", f"{self.seed} is negative")

    @property
    def on_images(self) -> bool:
        """Whether the task is one of images, so that clients train in rounds."""
        return isinstance(self.task, ImageTaskSettings)


def build_run(config: dict[str, Any]) -> tuple[Settings, Any]:
    """The settings of one run, and its method's own settings (one of ``METHOD_SETTINGS``), from the composed config.

    A loss that is not in ``LOSS_SETTINGS`` is left to the run, which knows the plug-ins; so is a federated algorithm
    that is not in ``METHOD_SETTINGS``, where there are plug-ins. Raises :class:`UserError`.
    """
    for group in ("task", "model", "method", "training"):
        if not isinstance(config.get(group), dict):
            raise UserError(f"{group}: is not set; {group}=NAME chooses one ('knot-runner ls' shows them)")
    on_images = config["task"].get("kind") == "images"
    kind = _method_settings(config, on_images)
    _fit_together(config, kind, on_images)
    for group in ("task", "method"):  # these names are folders below paths.out
        name = config[group].get("name")
        if not re.fullmatch(r"\w[\w .+-]*", str(name)):
            raise UserError(f"{group}.name: {name!r} is not a plain name of letters, digits, . + - _")
    parts = _image_parts(config) if on_images else _text_parts(config)
    settings = build(Settings, {**config, **parts}, "")
    method = build(kind, settings.method, "method")
    if isinstance(method, KnotSettings):
        if "name" not in method.loss:
            raise UserError("method.loss.name: is not set")
        if method.loss["name"] in LOSS_SETTINGS:
            build(LOSS_SETTINGS[method.loss["name"]], method.loss, "method.loss")
    if not on_images:
        _check_parties(settings)
    return settings, method


def _method_settings(config: dict[str, Any], on_images: bool) -> type:
    algorithm = config["method"].get("algorithm")
    if isinstance(algorithm, str) and algorithm in METHOD_SETTINGS:
        return METHOD_SETTINGS[algorithm]
    if isinstance(algorithm, str) and on_images and config.get("plugins"):
        return FederatedSettings
    raise UserError(f"method.algorithm: no algorithm {algorithm!r}{nearest(str(algorithm), METHOD_SETTINGS)}")


def _fit_together(config: dict[str, Any], method: type, on_images: bool) -> None:
    """Whether task, method, model, training and partition are of one family; the first that is not is named."""
    name = config["task"].get("name")
    if on_images == (method in TEXT_METHODS):
        what, fits = ("images", "fedavg") if on_images else ("texts", "sinkhorn_e")
        raise UserError(f"method={config['method'].get('name')}: task={name} has {what}; method={fits} would fit")
    if on_images != (str(config["model"].get("kind")) in NETWORK_SETTINGS):
        fits = "femnist_dnn" if on_images else "bert_tiny"
        raise UserError(f"model={config['model'].get('name')}: does not read task={name}; model={fits} would fit")
    if on_images != ("rounds" in config["training"]):
        fits = "chill" if on_images else "small"
        raise UserError(
            f"training={config['training'].get('name')}: is not for method={config['method'].get('name')}; "
            f"training={fits} would fit"
        )
    if on_images != (config.get("partition") is not None):
        what = "needs clients; partition=dirichlet would fit" if on_images else "has texts; partition=null is right"
        raise UserError(f"partition: task={name} {what}")


def _text_parts(config: dict[str, Any]) -> dict[str, Any]:
    """Groups whose kind depends on the task, built first so that errors name their keys."""
    return {
        "task": build(TaskSettings, config["task"], "task"),
        "model": build(ModelSettings, config["model"], "model"),
        "training": build(TrainingSettings, config["training"], "training"),
    }


def _image_parts(config: dict[str, Any]) -> dict[str, Any]:
    """As :func:`_text_parts`, for a task of images."""
    kind = config["partition"].get("kind") if isinstance(config["partition"], dict) else config["partition"]
    if not isinstance(kind, str) or kind not in PARTITION_SETTINGS:
        raise UserError(f"partition.kind: no partition {kind!r}{nearest(str(kind), PARTITION_SETTINGS)}")
    return {
        "task": build(ImageTaskSettings, config["task"], "task"),
        "model": build(NETWORK_SETTINGS[config["model"]["kind"]], config["model"], "model"),
        "training": build(FederatedTraining, config["training"], "training"),
        "partition": build(PARTITION_SETTINGS[kind], config["partition"], "partition"),
    }


def _check_parties(settings: Settings) -> None:
    for party in settings.model.per_party:
        if party not in settings.task.datasets:
            raise UserError(
                f"model.per_party.{party}: task {settings.task.name} has no such data set"
                f"{nearest(party, settings.task.datasets)}"
            )


def run_id(config: dict[str, Any]) -> str:
    """Name of a run's folder: hash of all settings that can change its numbers.

    What is not in use does not count: the other sources of a data set, the hub's revision of a local run, the rate
    control of a run at T=1.
    """
    counted = {key: value for key, value in config.items() if key not in NOT_IN_RUN_ID}
    counted = _used_of_images(config, counted) if config["task"].get("kind") == "images" else _used_of_texts(counted)
    return digest(counted, 12)


def _used_of_images(config: dict[str, Any], counted: dict[str, Any]) -> dict[str, Any]:
    unused = {"local", "hub"} - {counted["task"]["source"]}
    task = {key: value for key, value in counted["task"].items() if key not in unused}
    method = dict(counted["method"])
    chilled = any(method.get(key) is not None for key in ("schedule", "stragglers", "hard_temperature"))
    if not chilled and method.get("temperature") == 1:
        method["lr_control"] = False
    hardware = {key: config["hardware"][key] for key in HARDWARE_IN_RUN_ID}
    if hardware["engine"] in ("stacked", "auto"):  # float32 convolutions round differently by the width of the stack
        hardware["stack"] = config["hardware"]["stack"]
    return {**counted, "task": task, "method": method, "hardware": hardware}


def _used_of_texts(counted: dict[str, Any]) -> dict[str, Any]:
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
    return {key: value for key, value in counted.items() if key != "partition"} | {"task": task, "model": model}
