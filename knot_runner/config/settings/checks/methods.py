"""Checks of families (``Family.check``), and the nested settings of their methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.config.settings.checks.fit import TEACHERS
from knot_runner.config.settings.groups import CentralTraining, ModelSettings
from knot_runner.config.settings.methods.algorithms import FedGenSettings
from knot_runner.config.settings.methods.distill import DistillSettings, RunTeacher
from knot_runner.config.settings.methods.federated import FederatedSettings, architecture_settings, server_distillation
from knot_runner.config.settings.methods.terms import AttentionTermSettings, check_batch
from knot_runner.config.settings.networks import NETWORK_SETTINGS, CustomSettings, ImageModel, MlpSettings
from knot_runner.config.settings.partition import Centralized
from knot_runner.config.settings.tasks.images import ImageTaskSettings
from knot_runner.config.settings.tasks.task import TaskSettings
from knot_runner.config.strict import build
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import Misfit, UserError

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings


def check_parties_method(settings: Settings) -> None:
    """Check the roles of the data sets. Raises :class:`UserError`."""
    if not isinstance(settings.task, TaskSettings):
        return
    roles = [data.role for data in settings.task.datasets.values()]
    for role in ("global", "transfer"):
        count = roles.count(role)
        if count != 1:
            why = f"the method needs one data set with role={role}, but {count} have this role"
            hint = "Set task.datasets.NAME.role"
            raise Misfit(f"method={settings.method.name}", f"task={settings.task.name}", why, hint)


def check_federated_method(settings: Settings) -> None:
    """Check the clients' architectures, the server's loss terms and personalization. Raises :class:`UserError`."""
    method = settings.method
    for number, model in enumerate(architecture_settings(method)):
        method.models[number] = named_model(model, f"method.models[{number}]", settings)
    _check_architectures(method, settings.model)
    if isinstance(settings.partition, Centralized):
        chosen, other = f"method={method.name}", "partition=centralized"
        if method.personalization is not None:
            why = "personalized models are evaluated on other clients' examples, but there is only one client"
            raise Misfit(chosen, other, why, "Use partition=small")
        if method.clustering is not None:
            raise Misfit(chosen, other, "clustering requires several clients", "Use partition=pairs")
    if distillation := server_distillation(method):
        where = "method.server_distillation"
        check_batch(distillation.terms, f"{where}.terms", distillation.batch_size, f"{where}.batch_size")
    _check_personal(settings, method)


def _check_architectures(method: FederatedSettings, model: ModelSettings | ImageModel | None) -> None:
    """Check that ``method.models`` are distinct and not pre-trained, and that a feature generator has logits.

    Raises :class:`UserError`.
    """
    names: list[str] = []
    for number, spec in enumerate(architecture_settings(method)):
        where = f"method.models[{number}]"
        if spec.name in names:
            raise UserError(f"{spec.name} is repeated. List each model once", where)
        names.append(spec.name)
        if getattr(spec, "weights", "scratch") != "scratch":
            raise UserError(f"{spec.name} has weights={spec.weights}. Use weights=scratch", where)
        if getattr(spec, "per_party", None):
            raise UserError("not supported with method.models. Use {}", f"{where}.per_party")
    if isinstance(method, FedGenSettings) and getattr(model, "output", "logits") == "softmax":
        why = "model.output=softmax has no logits, which the generator needs"
        raise Misfit(f"method={method.name}", f"model={getattr(model, 'name', '')}", why, "Use model.output=logits")


def _check_personal(settings: Settings, method: FederatedSettings) -> None:
    """Check personalization, and the settings of the rounds before it. Raises :class:`UserError`."""
    unseen = settings.held_out is not None and settings.held_out.unseen is not None
    if unseen and method.clustering is not None:
        raise UserError("clustering uses all clients, so none can be unseen. Use null", "partition.unseen")
    if method.personalization is None:
        return
    if getattr(settings.training, "stop_at_target", False):
        raise UserError("personalization starts from the model of the last round. Use false", "training.stop_at_target")
    if getattr(method.personalization, "shares_models", False) and architecture_settings(method):
        problem = f"{method.personalization.kind} averages the clients' models, but method.models have different"
        raise UserError(f"{problem} architectures. Use finetune or soup", "method.personalization.kind")


def named_model(model: Config, where: str, settings: Settings) -> Any:
    """Return the settings of a model that a method names.

    Raises:
        Misfit: The model does not fit the kind of task.
    """
    if settings.on_images != (model["kind"] in NETWORK_SETTINGS):
        hint = f"Use {'cnn_32' if settings.on_images else TEACHERS['texts']}"
        raise Misfit(f"{where}={model['name']}", f"task={settings.task.name}", "the model does not fit the data", hint)
    spec: ModelSettings | ImageModel = build(NETWORK_SETTINGS.get(model["kind"], ModelSettings), model, where)
    check_code(spec, settings.plugins)
    return spec


def check_code(model: ModelSettings | ImageModel, plugins: Sequence[str]) -> None:
    """Raise :class:`UserError` for a custom ``model`` whose code is not in one of ``plugins``.

    Only plug-ins may run code.
    """
    if not isinstance(model, CustomSettings):
        return
    named = {Path(plugin).stem if plugin.endswith(".py") else plugin for plugin in plugins}
    module = model.target.partition(":")[0]
    if module not in named:
        raise UserError(f"module {module} is not in plugins, so its code is not run. Add it to plugins", "model.target")


# ----------------------------------------------------------------------------------------------------------- distill


def _check_view(method: DistillSettings, task: Any) -> None:
    chosen, other, view = f"method={method.name}", f"task={task.name}", f"method.view={method.view}"
    if not isinstance(task, ImageTaskSettings):
        raise Misfit(chosen, other, f"{view} requires images, but the task has texts")
    channels, *sides = task.shape
    if task.augment != "none":
        why = f"with {view} and task.augment={task.augment}, teacher and student see different crops"
        raise Misfit(chosen, other, why, "Use task.augment=none")
    if method.view == "gray" and channels != 3:
        why = f"{view} requires images of 3 channels, but these have {channels}"
        raise Misfit(chosen, other, why, "Use method.view=edges or method.view=half")
    if method.view == "edges" and channels not in (1, 3):
        raise Misfit(chosen, other, f"{view} requires images of 1 or 3 channels, but these have {channels}")
    if method.view == "half" and any(side % 2 for side in sides):
        raise UserError(f"requires an even height and width, but task={task.name} has {sides[0]}x{sides[1]}", view)


def _check_synthesis(method: DistillSettings, task: Any) -> None:
    if not isinstance(task, ImageTaskSettings):
        why = "method.synthesis generates images, but the task has texts"
        raise Misfit(f"method={method.name}", f"task={task.name}", why)
    count = len(method.teachers)
    if count != 1:
        raise UserError(f"images are generated from one teacher, but method.teachers lists {count}", "method.synthesis")
    if method.view != "none":
        raise UserError("not supported with method.synthesis. Use none", f"method.view={method.view}")


def check_distill_method(settings: Settings) -> None:
    """Check a distillation's schedule, terms and the student's images, and build the settings of its teachers.

    Raises :class:`UserError`.
    """
    method, schedule = settings.method, settings.method.schedule
    if schedule.kind != "offline" and method.teachers:
        raise UserError(f"schedule.kind={schedule.kind} trains its own teachers. Use []", "method.teachers")
    assert isinstance(settings.training, CentralTraining)
    batch = settings.training.distill.batch_size
    check_batch(method.terms, "method.terms", batch)
    for number, phase in enumerate(getattr(schedule, "phases", [])):
        check_batch(phase.terms, f"method.schedule.phases[{number}].terms", batch)
    for number, teacher in enumerate(method.teachers):
        method.teachers[number] = _teacher_settings(teacher, f"method.teachers[{number}]", settings)
    if method.view != "none":
        _check_view(method, settings.task)
    if method.synthesis is not None:
        _check_synthesis(method, settings.task)
    _check_maps(settings)


def _check_maps(settings: Settings) -> None:
    """Raise :class:`Misfit` for a term that compares feature maps, if a model has none."""
    method = settings.method
    if not any(isinstance(term, AttentionTermSettings) and term.taps is None for term in method.terms.values()):
        return
    teachers = [teacher.model if isinstance(teacher, RunTeacher) else teacher for teacher in method.teachers]
    for model in (settings.model, *teachers):
        if isinstance(model, ModelSettings | MlpSettings):
            why = f"method.terms.at compares feature maps of convolutions, which {model.name} does not have"
            raise Misfit(f"method={method.name}", f"model={model.name}", why)


def _teacher_settings(teacher: Config, where: str, settings: Settings) -> Any:
    """Return the settings of a teacher's model; for a finished run, within a :class:`RunTeacher`."""
    if teacher["kind"] == "run":
        run = build(RunTeacher, teacher, where)
        model = run.model if isinstance(run.model, dict) and isinstance(run.model.get("kind"), str) else {"kind": ""}
        spec = _teacher_settings({**model, "name": run.name}, where, settings)
        return dataclasses.replace(run, model=spec)
    return named_model(teacher, where, settings)
