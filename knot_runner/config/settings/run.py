"""The settings of one run, and the function that builds them from a composed config."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.checks import check_code, check_fit, choice, require_group, training_values
from knot_runner.config.settings.families import (
    METHOD_SETTINGS,
    TASK_KINDS,
    Family,
    call,
    family_of_algorithm,
    other_owners,
)
from knot_runner.config.settings.groups import (
    MODEL_SETTINGS,
    TRACKER_EXTRAS,
    CentralTraining,
    EvaluateSettings,
    HardwareSettings,
    PathSettings,
    TrackerSettings,
    TrainingSettings,
)
from knot_runner.config.settings.image_tasks import IMAGE_READERS, UNLABELED_FORMAT, ImageTaskSettings, check_not_own
from knot_runner.config.settings.methods.algorithms import FedRepSettings
from knot_runner.config.settings.methods.federated import FederatedSettings, FederatedTraining
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
from knot_runner.config.settings.run_id import kind_of, refuse_secrets
from knot_runner.config.settings.sizes import NOT_NEGATIVE, Seed
from knot_runner.config.settings.text_tasks import TEXT_READERS, TaskSettings
from knot_runner.config.strict import ByTag, SettingsClasses, build, check_keys, dotted_leaves, late, shorten, without
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import OTHER_NAMES, Misfit, UserError, nearest, unknown

if TYPE_CHECKING:
    from knot_runner.config.settings.fleet import FleetSettings
    from knot_runner.config.settings.privacy import UserPrivacySettings
else:  # not imported at run time: most runs have neither
    FleetSettings = late("fleet", "FleetSettings")
    UserPrivacySettings = late("privacy", "UserPrivacySettings")

#: Kind of training -> class of the settings ``training``.
TRAINING_SETTINGS: SettingsClasses = {
    "rounds": FederatedTraining,
    "stages": TrainingSettings,
    "central": CentralTraining,
}
#: The key that selects arms (named sets of overrides) of a preset, and the column with the names of arms in reports.
ARM = "arm"


@dataclass(kw_only=True)
class Settings:
    """Settings of one run, with one field per config group or top-level key."""

    #: seed of all random draws
    seed: Annotated[Seed, NOT_NEGATIVE]
    #: one of ``TASK_KINDS``
    task: Any
    #: settings class of the algorithm, from ``METHOD_SETTINGS``
    method: Any
    hardware: HardwareSettings
    tracker: TrackerSettings
    paths: PathSettings
    #: Python modules or files with custom code, imported first
    plugins: list[str]
    #: one of ``MODEL_SETTINGS``; null if nothing is trained
    model: Annotated[Any, ByTag(MODEL_SETTINGS, "model", "kind")] | None = None
    training: CentralTraining | FederatedTraining | None = None
    #: one of ``PARTITION_SETTINGS``; null when text data sets are distilled
    partition: Annotated[Any, ByTag(PARTITION_SETTINGS, "partition", "kind")] | None = None
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
    sweep: Config | None = None
    #: start no further jobs of a sweep after a failure
    fail_fast: bool
    #: output of ``table``, ``plot``, ``claims`` and ``report`` for a preset; not part of a run
    report: Config | None = None

    #: messages on values that were chosen for null, with reasons
    notes: list[str] = dataclasses.field(default_factory=list, init=False, compare=False)

    @property
    def on_images(self) -> bool:
        """Return whether the task is an image task."""
        return isinstance(self.task, ImageTaskSettings)

    def misfit(self, first: str, second: str, why: str, hint: str = "") -> Misfit:
        """Return the error for two groups whose choices cannot be combined.

        Args:
            first: Name of a group, such as ``task``.
            second: Name of the other group.
            why: Why the choices cannot be combined.
            hint: How to fix the problem.
        """
        chosen = {first: vars(getattr(self, first)), second: vars(getattr(self, second))}
        return Misfit(choice(chosen, first), choice(chosen, second), why, hint)


def build_run(config: Config) -> Settings:
    """Import the plug-ins of a composed ``config``, and return the settings of the run.

    Raises:
        UserError: A setting is wrong, or two settings do not fit together.
    """
    check_keys(config)
    refuse_secrets(config)
    plugins = config.get("plugins")
    if isinstance(plugins, list):
        load_plugins(list(map(str, plugins)))
    for group in ("task", "method"):
        require_group(config, group)
    given = config["method"]
    task_kind = kind_of(config["task"])
    algorithm = given.get("algorithm")
    if not isinstance(algorithm, str) or algorithm not in METHOD_SETTINGS:
        raise unknown("method.algorithm", str(algorithm), METHOD_SETTINGS, "knot-runner ls method")
    kind = METHOD_SETTINGS[algorithm]
    family = family_of_algorithm(algorithm)
    check_fit(config, family, task_kind)
    for group in ("task", "method"):  # the names of tasks and methods are folders below paths.output_dir
        name = config[group].get("name")
        if not re.fullmatch(r"\w[\w .+-]*", str(name)):
            raise UserError(
                f"{name!r} is not a valid name. Start with a letter, a digit or '_', and use only letters, digits, "
                "'_', spaces, '.', '+' and '-'",
                f"{group}.name",
            )
    if config.get("training") is not None:
        values = None
        if TASK_KINDS[task_kind].trains:
            values = training_values(config, family.training)
        config = {**config, "training": values}
    _check_names(config)
    parts = _parts(config, task_kind, family)
    for key in given:
        if key not in kind.__dataclass_fields__ and (problem := other_owners(key, algorithm)):
            raise UserError(problem, f"method.{key}")
    method = build(kind, given, "method")
    groups = {**config, "fleet": config.get("fleet") or None, "transfer": None, **parts, "method": method}
    settings = build(Settings, groups, "")
    _select_source(settings.task, "task")
    _select_source(settings.transfer, "transfer")
    tracker = settings.tracker.name
    if tracker not in TRACKER_EXTRAS and not settings.plugins:
        raise UserError(f"unknown tracker {tracker!r}{nearest(tracker, TRACKER_EXTRAS)}", "tracker.name")
    if settings.fleet is not None:
        settings.fleet.check(settings)
    if settings.evaluate.matrix is not None and not isinstance(method, FederatedSettings):
        raise UserError(f"method={method.name} has no clients that train in rounds. Use null", "evaluate.matrix")
    check_code(settings.model, settings.plugins)
    _fill_in(settings)
    if family.check:
        call(family.check, settings)
    if settings.privacy is not None:
        settings.privacy.check(settings)
    if family.name == "distill" and method.valid is None and task_kind == "images":
        method.valid = stages_valid(config)
    if task_kind != "texts" and isinstance(settings.training, CentralTraining):
        _check_stages(settings.training)
    return settings


def _check_names(config: Config) -> None:
    """Raise :class:`UserError` for a key that is not a group, and for a group without a choice."""
    names = Settings.__dataclass_fields__.keys() - {"shares", "held_out", "notes"}
    for key in config:
        if key not in names:
            words = [key, *OTHER_NAMES.get(key, "").split()]
            leaves = dotted_leaves(without(config, key, "report", "sweep"))
            similar = [f"'{leaf}'" for leaf, _ in leaves if leaf.rpartition(".")[2] in words][:3]
            hint = f" (did you mean {' or '.join(similar)}?)" if similar else nearest(key, names)
            raise UserError(f"unknown setting{hint}", key)
    for group in ("transfer", "fleet", "privacy"):
        chosen = config.get(group)
        if isinstance(chosen, dict) and chosen and "name" not in chosen:
            key = f"{group}.{next(iter(chosen))}"
            raise UserError(f"{group} is null. Use {group}=NAME ('knot-runner ls {group}' lists the names)", key)


def _fill_in(settings: Settings) -> None:
    """Replace null settings of the method by the values that other settings determine."""
    method = settings.method
    if isinstance(method, FederatedSettings):
        for_privacy = {}
        if settings.privacy is not None:
            for_privacy = {"aggregation": "uniform"}
            if getattr(settings.model, "norm", "") == "batch":
                for_privacy |= {"batchnorm": "frozen"}
        for key, value in {"aggregation": "weighted", "batchnorm": "averaged", **for_privacy}.items():
            if getattr(method, key) is None:
                setattr(method, key, value)
                if key in for_privacy:
                    settings.notes.append(f"method.{key}={value}: chosen for privacy")
    if isinstance(method, FedRepSettings) and isinstance(settings.training, FederatedTraining):
        method.head_epochs = method.head_epochs or max(settings.training.local_epochs - 1, 1)
    solver = "newton"
    if getattr(settings.task, "on_tree", False):
        solver = "tree"  # newton is slow for many classes: with 62 classes, a step takes seconds
    _choose_solvers(method, solver)


def _choose_solvers(value: object, solver: str) -> None:
    """Set each transport solver in ``value`` that is null to ``solver``."""
    if dataclasses.is_dataclass(value):
        fields = vars(value)
        if fields.get("solver", "") is None:
            fields["solver"] = solver
        value = fields
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            _choose_solvers(part, solver)


def _parts(config: Config, task_kind: str, family: Family) -> Config:
    """Return the groups whose class depends on the task, built before other groups so that errors name the keys."""
    task: Any = build(TASK_KINDS[task_kind].settings, config["task"], "task")
    if not TASK_KINDS[task_kind].trains:
        return {"task": task}
    training: Any = build(TRAINING_SETTINGS[family.training], config["training"], "training")
    parts: Config = {"task": task, "training": training}
    if (transfer := transfer_group(config)) is not None:
        images = build(ImageTaskSettings, transfer, "transfer")
        check_not_own(images, task)
        parts |= {"transfer": images}
    if isinstance(partition := config.get("partition"), dict):
        parts |= {"partition": without(partition, *SHARE_KEYS)}
        if family.training == "rounds" and (shares := held_out_shares(config)):
            parts |= {"held_out": build(HeldOut, shares, "partition")}
        if family.training == "stages" and family.clients:
            parts |= {"shares": build(PartyShares, party_shares(config), "partition")}
    return parts


def _select_source(task: Any, group: str) -> None:
    """Check the formats of local files in a built ``group``, and remove all sources except the selected ``source``."""
    known = list(TEXT_READERS)
    if not isinstance(task, TaskSettings):
        known = list(IMAGE_READERS)
        if group != "transfer":
            known.remove(UNLABELED_FORMAT)
    parts = {group: task}
    for key in ("datasets", "sets"):
        parts |= {f"{group}.{key}.{name}": part for name, part in getattr(task, key, {}).items()}
    for where, part in parts.items():
        local = getattr(part, "local", None)
        if local is not None and local.format not in known:
            problem = f"unknown value {shorten(local.format)} (choose from {', '.join(known)})"
            raise UserError(problem, f"{where}.local.format")
        for source in ("local", "hub", "embedded"):
            if hasattr(part, source) and source != task.source:
                setattr(part, source, None)


def _check_stages(training: CentralTraining) -> None:
    """Raise :class:`UserError` for settings of a stage that apply to texts only, in an image task."""
    for name, stage in vars(training).items():
        length = getattr(stage, "max_length", None)
        if length is not None:
            raise UserError(f"expected null for an image task, got {length}", f"training.{name}.max_length")
