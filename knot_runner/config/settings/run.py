"""The settings of one run: the groups of the composed YAML, and checks that they fit together."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Annotated, Any

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.checks.fit import UNTRAINED_TASKS, check_fit, require_group
from knot_runner.config.settings.checks.methods import check_code
from knot_runner.config.settings.families import METHOD_SETTINGS, call, family_of, family_of_algorithm, other_owners
from knot_runner.config.settings.fleet import FleetSettings, check_fleet, fleet_group
from knot_runner.config.settings.groups import (
    TRACKER_EXTRAS,
    HardwareSettings,
    ModelSettings,
    PathSettings,
    TrackerSettings,
    TrainingSettings,
)
from knot_runner.config.settings.methods.distill import DistillSettings
from knot_runner.config.settings.methods.federated import FederatedSettings, FederatedTraining
from knot_runner.config.settings.methods.fedwad import GaussiansSettings, ImageSetsSettings
from knot_runner.config.settings.methods.personalization import EvaluateSettings
from knot_runner.config.settings.networks import NETWORK_SETTINGS, ImageModel
from knot_runner.config.settings.partition import (
    PARTITION_SETTINGS,
    SHARE_KEYS,
    HeldOut,
    PartyShares,
    held_out_shares,
    party_shares,
    stages_valid,
    transfer_group,
)
from knot_runner.config.settings.privacy import UserPrivacySettings, check_privacy
from knot_runner.config.settings.run_id import kind_of
from knot_runner.config.settings.secrets import refuse_secrets
from knot_runner.config.settings.sizes import NOT_NEGATIVE, Seed
from knot_runner.config.settings.tasks.images import IMAGE_FORMATS, UNLABELED_FORMAT, ImageTaskSettings, check_not_own
from knot_runner.config.settings.tasks.task import TEXT_FORMATS, TaskSettings
from knot_runner.config.strict import ByTag, build, check_keys, shorten, without
from knot_runner.util.errors import UserError, nearest, unknown

#: The key that chooses arms of a preset; in reports the column with their names.
ARM = "arm"


@dataclass(kw_only=True)
class Settings:
    """Settings of one run."""

    #: seed of all random draws
    seed: Annotated[Seed, NOT_NEGATIVE]
    task: TaskSettings | ImageTaskSettings | GaussiansSettings | ImageSetsSettings
    #: settings class of the algorithm, from ``METHOD_SETTINGS``
    method: Any
    hardware: HardwareSettings
    tracker: TrackerSettings
    paths: PathSettings
    #: Python modules or files with custom code, imported first
    plugins: list[str]
    #: null if nothing is trained
    model: ModelSettings | ImageModel | None = None
    training: TrainingSettings | FederatedTraining | None = None
    #: one of ``PARTITION_SETTINGS``; null when text data sets are distilled
    partition: Annotated[Any, ByTag("kind", PARTITION_SETTINGS, "partition")] | None = None
    #: separate unlabeled transfer set; null uses a share of the training images
    transfer: ImageTaskSettings | None = None
    #: simulated availability and speed of federated clients; null: every client responds immediately
    fleet: FleetSettings | None = None
    #: for methods that distill images; otherwise null
    shares: PartyShares | None = None
    #: for federated methods that hold out examples; otherwise null
    held_out: HeldOut | None = None
    #: additional evaluation of client models
    evaluate: EvaluateSettings
    #: clipping and noise for federated training; null disables both
    privacy: UserPrivacySettings | None = None
    #: grid of a preset: comma-separated values by override, and ``arms``: overrides by name; not part of a run
    sweep: dict[str, Any] | None = None
    #: start no further jobs of a sweep after a failure
    fail_fast: bool
    #: output of ``table``, ``plot``, ``claims`` and ``report`` for a preset; not part of a run
    report: dict[str, Any] | None = None

    @property
    def on_images(self) -> bool:
        """Whether the task is one of images, so that clients train in rounds."""
        return isinstance(self.task, ImageTaskSettings)


def build_run(config: dict[str, Any]) -> Settings:
    """Return the settings of one run from the composed ``config``. Raises :class:`UserError`."""
    check_keys(config)
    refuse_secrets(config)
    _load_plugins(config)
    for group in ("task", "method"):
        require_group(config, group)
    task_kind = kind_of(config["task"])
    kind = method_settings(config["method"])
    check_fit(config, kind, task_kind)
    for group in ("task", "method"):  # these names are folders below paths.output_dir
        name = config[group].get("name")
        if not re.fullmatch(r"\w[\w .+-]*", str(name)):
            raise UserError(f"{name!r} is not a plain name of letters, digits, . + - _", f"{group}.name")
    groups = {**config, "fleet": fleet_group(config), "transfer": None}
    parts = _parts(config, task_kind)
    own_keys = {own.name for own in dataclasses.fields(kind)}
    for key in config["method"]:
        if key not in own_keys and (problem := other_owners(key, config["method"]["algorithm"])):
            raise UserError(problem, f"method.{key}")
    method: Any = build(kind, config["method"], "method")
    parts["method"] = method
    settings = build(Settings, groups | parts, "")
    _drop_other_sources(settings.task)
    if settings.transfer is not None:
        _drop_other_sources(settings.transfer)
    tracker = settings.tracker.name
    if tracker not in TRACKER_EXTRAS and not settings.plugins:
        raise UserError(f"no tracker {tracker!r}{nearest(tracker, TRACKER_EXTRAS)}", "tracker.name")
    check_fleet(settings.fleet, method)
    if settings.evaluate.matrix is not None and not isinstance(method, FederatedSettings):
        raise UserError(f"method={method.name} has no clients that train in rounds; null is right", "evaluate.matrix")
    if check := family_of(kind).check:
        call(check, settings)
    if settings.privacy is not None:
        check_privacy(settings)
    if isinstance(method, DistillSettings) and method.valid is None and task_kind == "images":
        method.valid = stages_valid(config)
    if task_kind == "texts":
        _check_parties(settings)
    elif isinstance(settings.training, TrainingSettings):
        _check_stages(settings.training)
    return settings


def method_settings(method: dict[str, Any]) -> type:
    """Return the class of the settings of a composed ``method``. Raises :class:`UserError`."""
    algorithm = method.get("algorithm")
    if not isinstance(algorithm, str) or algorithm not in METHOD_SETTINGS:
        raise unknown("method.algorithm", str(algorithm), METHOD_SETTINGS, "knot-runner ls method")
    return METHOD_SETTINGS[algorithm]


def _parts(config: dict[str, Any], task_kind: str) -> dict[str, Any]:
    """Groups whose kind depends on the task, built first so that errors name their keys."""
    _check_formats(config, config["task"], TEXT_FORMATS if task_kind == "texts" else IMAGE_FORMATS, "task")
    if task_kind in UNTRAINED_TASKS:
        return {"task": build(UNTRAINED_TASKS[task_kind], config["task"], "task")}
    on_images = task_kind == "images"
    model = NETWORK_SETTINGS[config["model"]["kind"]] if on_images else ModelSettings
    training = FederatedTraining if "rounds" in config["training"] else TrainingSettings
    parts: dict[str, Any] = {
        "task": build(ImageTaskSettings if on_images else TaskSettings, config["task"], "task"),
        "model": build(model, config["model"], "model"),
        "training": build(training, config["training"], "training"),
    }
    check_code(parts["model"], config.get("plugins") or [])
    if transfer_group(config) is not None:
        _check_formats(config, config["transfer"], (*IMAGE_FORMATS, UNLABELED_FORMAT), "transfer")
        parts["transfer"] = build(ImageTaskSettings, config["transfer"], "transfer")
        check_not_own(parts["transfer"], parts["task"])
    if config.get("partition") is not None:
        partition = config["partition"]
        parts["partition"] = without(partition, *SHARE_KEYS) if isinstance(partition, dict) else partition
        if training is FederatedTraining and (shares := held_out_shares(config)):
            parts["held_out"] = build(HeldOut, shares, "partition")
        family = family_of_algorithm(config["method"]["algorithm"])
        if family.training == "stages" and family.clients:
            parts["shares"] = build(PartyShares, party_shares(config), "partition")
    return parts


def _check_formats(config: dict[str, Any], group: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    """Checks that formats of local files are ``known``, or a plug-in's, whose reader is looked up on loading."""
    for key, value in group.items():
        if not isinstance(value, dict):
            continue
        if key == "local" and value.get("format", known[0]) not in known and not config.get("plugins"):
            raise UserError(f"{shorten(value['format'])} is not one of {', '.join(known)}", f"{where}.local.format")
        _check_formats(config, value, known, f"{where}.{key}")


def _drop_other_sources(task: Any) -> None:
    """Remove the places that ``task.source`` does not read its data from."""
    parts = getattr(task, "datasets", None) or getattr(task, "sets", None) or {"": task}
    for part in parts.values():
        for place in ("local", "hub", "embedded"):
            if place != task.source and hasattr(part, place):
                setattr(part, place, None)


def _load_plugins(config: dict[str, Any]) -> None:
    plugins = config.get("plugins")
    load_plugins([str(plugin) for plugin in plugins] if isinstance(plugins, list) else [])


def _check_stages(training: TrainingSettings) -> None:
    """For images: raises :class:`UserError` for settings of a stage that apply to texts alone."""
    for name in ("local", "pretrain", "distill"):
        length = getattr(training, name).max_length
        if length is not None:
            raise UserError(
                f"{length} works only with texts. Use null for images",
                f"training.{name}.max_length",
            )


def _check_parties(settings: Settings) -> None:
    model, task = settings.model, settings.task
    if not isinstance(model, ModelSettings) or not isinstance(task, TaskSettings):
        return
    if model.per_party and isinstance(settings.training, FederatedTraining):
        raise UserError("averaging needs one model for all clients. Use {}", "model.per_party")
    common = {**dataclasses.asdict(model), "per_party": {}}
    for party, changes in model.per_party.items():
        if party not in task.datasets:
            problem = f"task {task.name} has no such data set{nearest(party, task.datasets)}"
            raise UserError(problem, f"model.per_party.{party}")
        own = build(ModelSettings, {**common, **changes}, f"model.per_party.{party}")
        model.per_party[party] = {key: getattr(own, key) for key in changes}
