"""One run's settings, whole: the groups of the composed YAML, and whether they fit together."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.families import METHOD_SETTINGS, family_of, family_of_algorithm
from knot_runner.config.settings.federated import FederatedSettings, FederatedTraining
from knot_runner.config.settings.fedwad import GaussiansSettings, ImageSetsSettings
from knot_runner.config.settings.groups import (
    HardwareSettings,
    ModelSettings,
    PathSettings,
    TrackerSettings,
    TrainingSettings,
)
from knot_runner.config.settings.images import IMAGE_FORMATS, ImageTaskSettings
from knot_runner.config.settings.method import LOSS_SETTINGS, KnotSettings
from knot_runner.config.settings.networks import NETWORK_SETTINGS, CustomSettings, ImageModel
from knot_runner.config.settings.partition import PARTITION_SETTINGS, SHARE_KEYS, PartyShares, party_shares
from knot_runner.config.settings.run_id import kind_of
from knot_runner.config.settings.secrets import refuse_secrets
from knot_runner.config.settings.sizes import NOT_NEGATIVE, Seed
from knot_runner.config.settings.task import TEXT_FORMATS, TaskSettings
from knot_runner.config.strict import build, shorten, without
from knot_runner.util.errors import UserError, nearest

#: Kind of task -> a method that would fit it.
FITTING_METHODS = {
    "texts": "sinkhorn_e",
    "images": "fedavg",
    "gaussians": "federated_distance",
    "image_sets": "dataset_distance",
}
#: (Kind of task, what its method's family trains in) -> a training that would fit them.
FITTING_TRAININGS = {
    ("images", "rounds"): "chill",
    ("images", "stages"): "image_stages",
    ("texts", "rounds"): "texts",
    ("texts", "stages"): "small",
}
#: Kind of task -> what it has, where its name does not say so.
WHAT_IS_IN = {"gaussians": "samples of Gaussians", "image_sets": "sets of images"}
#: Kinds of task on which nothing is trained, so that there is neither model, training nor partition -> their settings.
UNTRAINED_TASKS: dict[str, type] = {"gaussians": GaussiansSettings, "image_sets": ImageSetsSettings}


class Misfit(UserError):
    """Groups that are right by themselves do not fit together."""


@dataclass
class Settings:
    """One run, whole."""

    seed: Annotated[Seed, NOT_NEGATIVE]
    task: TaskSettings | ImageTaskSettings | GaussiansSettings | ImageSetsSettings
    method: dict[str, Any]
    hardware: HardwareSettings
    tracker: TrackerSettings
    paths: PathSettings
    #: Python modules or files that add losses, weightings, ... to the tables; imported before anything runs
    plugins: list[str]
    #: null where nothing is trained
    model: ModelSettings | ImageModel | None = None
    training: TrainingSettings | FederatedTraining | None = None
    #: how examples are dealt to clients, one of ``PARTITION_SETTINGS``; null where data sets of texts are distilled
    partition: Any = None
    #: of methods that distil images; null otherwise
    shares: PartyShares | None = None
    #: a preset's grid, and how ``table`` and ``plot`` show it; neither is part of a run
    sweep: dict[str, Any] | None = None
    #: a sweep begins no more jobs after one has failed
    fail_fast: bool = False
    report: dict[str, Any] | None = None

    @property
    def on_images(self) -> bool:
        """Whether the task is one of images, so that clients train in rounds."""
        return isinstance(self.task, ImageTaskSettings)


def build_run(config: dict[str, Any]) -> tuple[Settings, Any]:
    """The settings of one run, and its method's own settings (one of ``METHOD_SETTINGS``), from the composed config.

    A loss that is not in ``LOSS_SETTINGS`` is left to the run, which knows the plug-ins; so is a federated algorithm
    that is not in ``METHOD_SETTINGS``, where there are plug-ins. Raises :class:`UserError`.
    """
    refuse_secrets(config)
    for group in ("task", "method"):
        _require(config, group)
    task_kind = kind_of(config["task"])
    kind = _method_settings(config, task_kind)
    _fit_together(config, kind, task_kind)
    for group in ("task", "method"):  # these names are folders below paths.out
        name = config[group].get("name")
        if not re.fullmatch(r"\w[\w .+-]*", str(name)):
            raise UserError(f"{group}.name: {name!r} is not a plain name of letters, digits, . + - _")
    settings = build(Settings, {**config, **_parts(config, task_kind)}, "")
    method = build(kind, settings.method, "method")
    if isinstance(method, KnotSettings):
        if "name" not in method.loss:
            raise UserError("method.loss.name: is not set")
        if method.loss["name"] in LOSS_SETTINGS:
            build(LOSS_SETTINGS[method.loss["name"]], method.loss, "method.loss")
    if task_kind == "texts":
        _check_parties(settings)
    return settings, method


def _method_settings(config: dict[str, Any], task_kind: str) -> type:
    algorithm = config["method"].get("algorithm")
    if isinstance(algorithm, str):
        if algorithm in METHOD_SETTINGS:
            return METHOD_SETTINGS[algorithm]
        federated = task_kind in family_of(FederatedSettings).tasks
        if _load_plugins(config) and (algorithm in METHOD_SETTINGS or federated):  # a family or method of one's own
            return METHOD_SETTINGS.get(algorithm, FederatedSettings)
    raise UserError(f"method.algorithm: no algorithm {algorithm!r}{nearest(str(algorithm), METHOD_SETTINGS)}")


def _require(config: dict[str, Any], group: str) -> None:
    if not isinstance(config.get(group), dict):
        raise UserError(f"{group}: is not set; {group}=NAME chooses one ('knot-runner ls' shows them)")


def _fit_together(config: dict[str, Any], method: type, task_kind: str) -> None:
    """Whether task, method, model, training and partition are of one family; the first that is not is named."""
    name, method_name = config["task"].get("name"), config["method"].get("name")
    if task_kind not in family_of(method).tasks:
        what, fits = WHAT_IS_IN.get(task_kind, task_kind), FITTING_METHODS[task_kind]
        raise Misfit(f"method={method_name}: task={name} has {what}; method={fits} would fit")
    if task_kind in UNTRAINED_TASKS:
        for group in ("model", "training", "partition"):
            if config.get(group) is not None:
                raise Misfit(f"{group}: task={name} trains nothing and has none; without it is right")
        return
    for group in ("model", "training"):
        _require(config, group)
    family = family_of(method)
    on_images, rounds = task_kind == "images", family.training == "rounds"
    if on_images != (str(config["model"].get("kind")) in NETWORK_SETTINGS):
        fits = "femnist_dnn" if on_images else "bert_tiny"
        raise Misfit(f"model={config['model'].get('name')}: does not read task={name}; model={fits} would fit")
    if not on_images and not family.trains:  # its parties are clients, or the data sets themselves
        return
    if rounds != ("rounds" in config["training"]):
        fits = FITTING_TRAININGS[task_kind, family_of(method).training]
        raise Misfit(
            f"training={config['training'].get('name')}: is not for method={method_name}; training={fits} would fit"
        )
    if (rounds or on_images) != (config.get("partition") is not None):
        fits = "dirichlet" if on_images else "natural (a client is a data set)"
        what = f"needs clients; partition={fits} would fit"
        if not rounds and not on_images:
            what = "has texts, whose data sets are the parties of a distillation; null is right"
        raise Misfit(f"partition: task={name} {what}")
    given = [key for key in SHARE_KEYS if (config.get("partition") or {}).get(key) is not None]
    if rounds and given:
        raise Misfit(
            f"partition.{given[0]}: method={method_name} leaves the clients all training images; null is right"
        )


def fitting_choices(config: dict[str, Any]) -> dict[str, str]:
    """The choices of ``training``, ``partition`` and transport solver in the place of those of a composed ``config``
    that do not fit its task and method together; empty where all fit, or where task and method do not."""
    task, method = config.get("task"), config.get("method")
    if not isinstance(task, dict) or not isinstance(method, dict):
        return {}
    kind, family = kind_of(task), family_of_algorithm(str(method.get("algorithm")))
    if kind in UNTRAINED_TASKS or kind not in family.tasks:
        return {}
    if kind == "texts" and not family.trains:  # clients, or the data sets themselves
        return {}
    found, training = {}, config.get("training")
    if isinstance(training, dict) and (family.training == "rounds") != ("rounds" in training):
        found["training"] = FITTING_TRAININGS[kind, family.training]
    if kind == "texts" and family.training == "rounds" and config.get("partition") is None:
        found["partition"] = "natural"
    loss = method.get("loss")
    if kind == "images" and isinstance(loss, dict) and loss.get("solver") == "newton" and _is_tree(task):
        found["method.loss.solver"] = "tree"  # newton is made for few classes: 62 take seconds a step
    return found


def _is_tree(task: dict[str, Any]) -> bool:
    """Whether the classes of a task of images lie at the leaves of a tree (:mod:`knot_runner.transport.tree`)."""
    return task.get("geometry", "given") != "given" or task.get("coordinates") is None


def _parts(config: dict[str, Any], task_kind: str) -> dict[str, Any]:
    """Groups whose kind depends on the task, built first so that errors name their keys."""
    _check_formats(config, config["task"], TEXT_FORMATS if task_kind == "texts" else IMAGE_FORMATS, "task")
    if task_kind in UNTRAINED_TASKS:
        return {"task": build(UNTRAINED_TASKS[task_kind], config["task"], "task")}
    on_images = task_kind == "images"
    model = NETWORK_SETTINGS[config["model"]["kind"]] if on_images else ModelSettings
    training = FederatedTraining if "rounds" in config["training"] else TrainingSettings
    parts = {
        "task": build(ImageTaskSettings if on_images else TaskSettings, config["task"], "task"),
        "model": build(model, config["model"], "model"),
        "training": build(training, config["training"], "training"),
    }
    if isinstance(parts["model"], CustomSettings):
        _check_target(config, parts["model"])
    if config.get("partition") is not None:
        parts["partition"] = _partition(config)
        if training is TrainingSettings:
            parts["shares"] = build(PartyShares, party_shares(config["partition"]), "partition")
    return parts


def _check_target(config: dict[str, Any], model: CustomSettings) -> None:
    """Nothing but plug-ins runs code of the user's, so a model of one's own is of one of them."""
    plugins = config.get("plugins") or []
    named = {Path(plugin).stem if str(plugin).endswith(".py") else plugin for plugin in plugins}
    module = model.target.partition(":")[0]
    if module not in named:
        raise UserError(
            f"model.target: module {module} is not one of plugins, which alone run code; name it there, too"
        )
    _load_plugins(config)


def _partition(config: dict[str, Any]) -> Any:
    kind = config["partition"].get("kind") if isinstance(config["partition"], dict) else config["partition"]
    if isinstance(kind, str) and kind not in PARTITION_SETTINGS:
        _load_plugins(config)  # a partition of one's own brings its settings
    if not isinstance(kind, str) or kind not in PARTITION_SETTINGS:
        raise UserError(f"partition.kind: no partition {kind!r}{nearest(str(kind), PARTITION_SETTINGS)}")
    return build(PARTITION_SETTINGS[kind], without(config["partition"], *SHARE_KEYS), "partition")


def _check_formats(config: dict[str, Any], group: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    """The formats of local files must be ``known``, or of plug-ins, whose readers loading looks up."""
    for key, value in group.items():
        if not isinstance(value, dict):
            continue
        if key == "local" and value.get("format", known[0]) not in known and not _load_plugins(config):
            raise UserError(f"{where}.local.format: {shorten(value['format'])} is not one of {', '.join(known)}")
        _check_formats(config, value, known, f"{where}.{key}")


def _load_plugins(config: dict[str, Any]) -> bool:
    """Import the plug-ins; whether there are any."""
    plugins = config.get("plugins")
    names = [str(plugin) for plugin in plugins] if isinstance(plugins, list) else []
    load_plugins(names)
    return bool(names)


def _check_parties(settings: Settings) -> None:
    if settings.model.per_party and isinstance(settings.training, FederatedTraining):
        raise UserError("model.per_party: averaging needs one model for all clients; {} is right")
    common = {**dataclasses.asdict(settings.model), "per_party": {}}
    for party, changes in settings.model.per_party.items():
        if party not in settings.task.datasets:
            raise UserError(
                f"model.per_party.{party}: task {settings.task.name} has no such data set"
                f"{nearest(party, settings.task.datasets)}"
            )
        build(ModelSettings, {**common, **changes}, f"model.per_party.{party}")
