"""Checks that the groups of a composed config fit together, and that the settings of a federated run are valid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.config.settings.families import TASK_KINDS, Family
from knot_runner.config.settings.groups import MODEL_SETTINGS, ModelSettings
from knot_runner.config.settings.methods.algorithms import FedGenSettings
from knot_runner.config.settings.methods.federated import FederatedSettings, architecture_settings, server_distillation
from knot_runner.config.settings.networks import NETWORK_SETTINGS, CustomSettings, ImageModel
from knot_runner.config.settings.partition import Centralized, given_shares, has_transfer_set, transfer_group
from knot_runner.config.settings.run_id import kind_of
from knot_runner.config.strict import build, without
from knot_runner.util.config_yaml import Config, choices
from knot_runner.util.errors import Misfit, UserError

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings

#: Kind of task -> the default teacher.
TEACHERS = {"images": "cnn_16", "texts": "bert_mini"}
#: Prefixes of keys in a file of ``training``: ``for_KIND`` holds the values for a kind of training; in this block,
#: ``on_NAME`` holds the values for a kind of task, a task or an algorithm.
BLOCK = "for_"
VARIANT = "on_"
#: Block of a file of ``training`` -> the methods that it is for.
BLOCKS = {
    "for_rounds": "federated methods", "for_stages": "KNOT or mutual learning",
    "for_central": "kd or similar methods",
}  # fmt: skip
#: Block of a file of ``training`` that applies to methods without training.
IDLE = "for_nothing"


def choice(config: Config, group: str) -> str:
    """Return the choice of ``group`` in ``config`` as an override, such as ``task=sa``."""
    return f"{group}={config[group].get('kind' if group == 'partition' else 'name')}"


def require_group(config: Config, group: str) -> None:
    """Check that the composed ``config`` sets ``group``.

    Raises:
        UserError: The group is not set.
    """
    if not isinstance(config.get(group), dict):
        raise UserError(f"required, but not set. Use {group}=NAME ('knot-runner ls {group}' lists the names)", group)


def check_fit(config: Config, family: Family, task_kind: str) -> None:
    """Check that the groups of a composed ``config`` fit together.

    Args:
        config: The composed config.
        family: Family of the method.
        task_kind: Kind of the task.

    Raises:
        Misfit: Two groups do not fit together.
        UserError: A required group is not set.
    """
    task = choice(config, "task")
    method = choice(config, "method")
    kind_of_task = TASK_KINDS[task_kind]
    if task_kind not in family.tasks:
        why = f"the method does not support a task that {kind_of_task.contents}"
        raise Misfit(method, task, why, f"Use method={kind_of_task.method}")
    if transfer_group(config) is not None:
        _check_transfer(config, family.name, task_kind)
    if not kind_of_task.trains:
        for group in ("model", "training", "partition"):
            if config.get(group) is None:
                continue
            require_group(config, group)
            if group != "training" or not is_idle(config[group]):
                raise Misfit(choice(config, group), task, "the task trains no model", f"Use ~{group}")
        return
    for group in ("model", "training"):
        require_group(config, group)
    on_images = task_kind == "images"
    rounds = family.training == "rounds"
    partition = config.get("partition")
    kind = str(config["model"].get("kind"))
    if kind in MODEL_SETTINGS and on_images != (kind in NETWORK_SETTINGS):
        names = [name for name in choices("model") if name.startswith("bert") != on_images]
        hint = f"Use model={' or '.join(names[:4])} ('knot-runner ls model' lists all)"
        raise Misfit(choice(config, "model"), task, f"the model reads {'texts' if on_images else 'images'}", hint)
    if not on_images and not family.trains:  # the parties are clients or whole data sets
        return
    if partition is None and family.clients and (rounds or on_images):
        raise UserError(f"required by {method} on {task}, but not set. Use partition=small", "partition")
    if not isinstance(partition, dict):
        return
    why = ""
    if not family.clients:
        why = "the method trains centrally on all examples"
    elif not rounds and not on_images:
        why = "the method uses each data set of a text task as one party"
    if why:
        raise Misfit(choice(config, "partition"), method, why, "Use ~partition")
    given = given_shares(partition)
    _check_shares(given, method, family, on_images)
    if rounds and "transfer" in given and has_transfer_set(config["task"]):
        raise UserError(f"{task} has its own transfer set. Use null", "partition.transfer")


def is_idle(training: Config) -> bool:
    """Return whether the composed group ``training`` suits a method that trains no model.

    The result is true if the group consists of ``for_...`` blocks, and one of them is ``for_nothing``.
    """
    return IDLE in training and all(key == "name" or key.startswith(BLOCK) for key in training)


def _check_transfer(config: Config, family: str, task_kind: str) -> None:
    """Check that task and method can use another data set of images as the transfer set.

    A federated method that does not distill ignores the transfer set, so that one command can compare this method with
    methods that distill.
    """
    task = config["task"]
    transfer = config["transfer"]
    none = "Use transfer=none"
    if not isinstance(transfer, dict):
        raise UserError(f"{transfer!r:.40} is not an image data set. Select one with transfer=NAME", "transfer")
    chosen = choice(config, "transfer")
    if task_kind != "images":
        why = "the task has its own transfer set" if has_transfer_set(task) else "the task has no images"
        raise Misfit(chosen, choice(config, "task"), why, none)
    if family not in ("distillation", "federated"):
        raise Misfit(chosen, choice(config, "method"), "the method reads no transfer set", none)
    if (config.get("partition") or {}).get("transfer") is not None:
        raise UserError(f"{chosen} already sets the transfer set. Use null", "partition.transfer")


def _check_shares(given: Config, method: str, family: Family, on_images: bool) -> None:
    """Check that a ``method`` of ``family`` can use the shares of ``partition`` that are ``given``.

    A federated server has no data, and all parties take part in a distillation.
    """
    rounds = family.training == "rounds"
    if not rounds and "unseen" in given:
        raise UserError(f"not supported by {method}, in which all parties take part. Use null", "partition.unseen")
    if "alter" in given and not (rounds and family.holds_out and on_images):
        raise UserError("requires a federated method and a task with images. Use null", "partition.alter")
    for key in given:
        if rounds and (key == "server" or not family.holds_out):
            raise UserError(f"{method} gives clients all training images, so none remain. Use null", f"partition.{key}")


def training_values(config: Config, kind: str) -> Config:
    """Return the values of the composed group ``training`` for one kind of training.

    The values come from the group's block ``for_KIND``. Its inner blocks ``on_NAME`` override these values if NAME is
    the algorithm, the task or the task's kind. Values outside of blocks override all values in blocks.

    Args:
        config: The composed config.
        kind: "rounds", "stages" or "central".

    Raises:
        Misfit: The group has blocks, but none of them supports ``kind`` with this task and this algorithm.
    """
    training = config["training"]
    task = config["task"]
    method = config["method"]
    blocks = {key: block for key, block in training.items() if key.startswith(BLOCK) and key != IDLE}
    given = without(training, IDLE, *blocks)
    names = {f"{VARIANT}{name}" for name in (kind_of(task), task.get("name"), method.get("algorithm"))}
    block = blocks.get(f"{BLOCK}{kind}", {})
    if blocks and (not block or (_variants(block) and names.isdisjoint(block))):
        has = [
            f"'{BLOCKS.get(key, key)} on {' or '.join(_variants(part)) or 'all tasks'}'" for key, part in blocks.items()
        ]
        other = f"{choice(config, 'method')} on {choice(config, 'task')}"
        why = f"this training supports the combinations {', '.join(has)}"
        raise Misfit(choice(config, "training"), other, why, "Use training=small or training=quick")
    values = _merged(_chosen(block, names), given)
    if values.get("small_clients", "") is None:
        values["small_clients"] = "stop" if "batch_size" in given else "allow"
    return values


def _variants(block: Config) -> list[str]:
    return [key.removeprefix(VARIANT) for key in block if key.startswith(VARIANT)]


def _chosen(block: Config, names: set[str]) -> Config:
    """Return the values of ``block``, overridden by the values of its variants ``on_NAME``, for each of ``names``."""
    values = {key: value for key, value in block.items() if not key.startswith(VARIANT)}
    for key, variant in block.items():
        if key in names:
            values = _merged(values, _chosen(variant, names))
    return values


def _merged(values: Config, over: Config) -> Config:
    """Return the nested ``values``, overridden by the nested values ``over``."""
    merged = dict(values)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            value = _merged(below, value)
        merged[key] = value
    return merged


# ---------------------------------------------------------------------------------------------------- federated runs


def check_federated_method(settings: Settings) -> None:
    """Check the settings of a federated method, and convert the items of ``method.models`` to settings objects.

    Raises:
        UserError: A setting is invalid.
    """
    method = settings.method
    for number, model in enumerate(architecture_settings(method)):
        method.models[number] = named_model(model, f"method.models[{number}]", settings)
    _check_architectures(method, settings)
    if isinstance(settings.partition, Centralized):
        if method.personalization is not None:
            why = "personalized models are evaluated on other clients' examples, but there is only one client"
            raise settings.misfit("method", "partition", why, "Use partition=small")
        if method.clustering is not None:
            raise settings.misfit("method", "partition", "clustering requires several clients", "Use partition=pairs")
    if method.stragglers is not None and method.stragglers.by == "speed" and settings.fleet is None:
        problem = "'speed' requires a fleet. Use fleet=phones or method.stragglers.by=seed"
        raise UserError(problem, "method.stragglers.by")
    if distillation := server_distillation(method):
        from knot_runner.config.settings.methods.terms import check_batch

        where = "method.server_distillation"
        check_batch(distillation.terms, f"{where}.terms", distillation.batch_size, f"{where}.batch_size")
    _check_personal(settings, method)


def _check_architectures(method: FederatedSettings, settings: Settings) -> None:
    """Check that ``method.models`` are distinct and not pre-trained. FedGen also requires a model that outputs logits.

    Raises :class:`UserError`.
    """
    names: list[str] = []
    for number, spec in enumerate(architecture_settings(method)):
        where = f"method.models[{number}]"
        if spec.name in names:
            raise UserError(f"{spec.name} is repeated. List each model once", where)
        names.append(spec.name)
        if getattr(spec, "weights", "scratch") != "scratch":
            raise UserError(
                f"{spec.name} has weights={spec.weights}, but is trained from scratch. Use weights=scratch", where
            )
    if isinstance(method, FedGenSettings) and getattr(settings.model, "output", "logits") == "softmax":
        why = "the generator needs logits, but model.output=softmax has none"
        raise settings.misfit("method", "model", why, "Use model.output=logits")


def _check_personal(settings: Settings, method: FederatedSettings) -> None:
    """Check personalization, and the settings of the rounds before it. Raises :class:`UserError`."""
    unseen = settings.held_out is not None and settings.held_out.unseen is not None
    if unseen and method.clustering is not None:
        raise UserError("clustering uses all clients, so none can be unseen. Use null", "partition.unseen")
    if method.personalization is None:
        return
    if getattr(settings.training, "stop_at_target", False):
        problem = "not supported with personalization, which starts after the last round. Use false"
        raise UserError(problem, "training.stop_at_target")
    if getattr(method.personalization, "shares_models", False) and architecture_settings(method):
        problem = f"{method.personalization.kind} averages the clients' models, but method.models have different"
        raise UserError(f"{problem} architectures. Use finetune or soup", "method.personalization.kind")


def named_model(model: Config, where: str, settings: Settings) -> Any:
    """Return the settings object of a model in the method's settings.

    Args:
        model: Plain values of the model's settings.
        where: Key of the model in error messages.
        settings: Settings of the run.

    Raises:
        Misfit: The model reads texts but the task has images, or the reverse.
        UserError: A setting of the model is invalid.
    """
    kind = model["kind"]
    if settings.on_images != (kind in NETWORK_SETTINGS):
        inputs, example = ("images", "cnn_32") if settings.on_images else ("texts", "bert_mini")
        why = f"this model does not accept {inputs}"
        raise Misfit(f"{where}={model['name']}", f"task={settings.task.name}", why, f"Use a model such as {example}")
    spec: ModelSettings | ImageModel = build(NETWORK_SETTINGS.get(kind, ModelSettings), model, where)
    check_code(spec, settings.plugins)
    return spec


def check_code(model: object, plugins: Sequence[str]) -> None:
    """Check that the code of a custom model is in one of ``plugins``. A model of another kind always passes.

    Args:
        model: Settings of the model.
        plugins: Names of modules, or paths of files.

    Raises:
        UserError: The code is in no plug-in.
    """
    if not isinstance(model, CustomSettings):
        return
    named = [Path(plugin.removesuffix(".py")).name for plugin in plugins]
    module = model.target.partition(":")[0]
    if module not in named:
        raise UserError(
            f"module {module!r} is not in plugins, so its code is not run. Add the module to plugins", "model.target"
        )
