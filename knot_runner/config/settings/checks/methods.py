"""Checks of a federated run's settings (``Family.check``), which build nested ones, too; models named in methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.config.settings.checks.fit import TEACHERS
from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.methods.algorithms import FedGenSettings
from knot_runner.config.settings.methods.federated import FederatedSettings, architecture_settings, server_distillation
from knot_runner.config.settings.networks import NETWORK_SETTINGS, CustomSettings, ImageModel
from knot_runner.config.settings.partition import Centralized
from knot_runner.config.strict import build
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import Misfit, UserError

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings


def check_federated_method(settings: Settings) -> None:
    """Check the clients' architectures, the server's loss terms and personalization. Raises :class:`UserError`."""
    method = settings.method
    for number, model in enumerate(architecture_settings(method)):
        method.models[number] = named_model(model, f"method.models[{number}]", settings)
    _check_architectures(method, settings.model)
    if isinstance(settings.partition, Centralized):
        chosen, other = f"method={method.name}", "partition=centralized"
        if method.personalization is not None:
            why = "the personalized models are evaluated on other clients' examples, and one client has no others"
            raise Misfit(chosen, other, why, "Use partition=small")
        if method.clustering is not None:
            raise Misfit(chosen, other, "clusters need several clients", "Use partition=pairs")
    if method.stragglers is not None and method.stragglers.by == "speed" and settings.fleet is None:
        raise UserError("speed requires a fleet. Use fleet=phones, or by=seed", "method.stragglers.by")
    if distillation := server_distillation(method):
        from knot_runner.config.settings.methods.terms import check_batch

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
            raise UserError("conflicts with method.models. Use {}", f"{where}.per_party")
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
    """Return the settings of a model named in a method.

    Raises :class:`Misfit` for one of another kind than the task.
    """
    if settings.on_images != (model["kind"] in NETWORK_SETTINGS):
        hint = f"Use {'cnn_32' if settings.on_images else TEACHERS['texts']}"
        raise Misfit(f"{where}={model['name']}", f"task={settings.task.name}", "the model does not fit the data", hint)
    spec: ModelSettings | ImageModel = build(NETWORK_SETTINGS.get(model["kind"], ModelSettings), model, where)
    check_code(spec, settings.plugins)
    return spec


def check_code(model: ModelSettings | ImageModel, plugins: Sequence[str]) -> None:
    """Raise :class:`UserError` for a custom ``model`` whose code is not in one of ``plugins``, which alone run code."""
    if not isinstance(model, CustomSettings):
        return
    named = {Path(plugin).stem if plugin.endswith(".py") else plugin for plugin in plugins}
    module = model.target.partition(":")[0]
    if module not in named:
        raise UserError(f"module {module} is not in plugins, so its code is not run. Add it to plugins", "model.target")
