"""Compatibility of the groups of a composed config: task, method, model, training and partition."""

from __future__ import annotations

from knot_runner.config.settings.families import TASK_KINDS, Family
from knot_runner.config.settings.networks import NETWORK_SETTINGS
from knot_runner.config.settings.partition import SHARE_KEYS, has_transfer_set, transfer_group
from knot_runner.config.settings.run_id import kind_of
from knot_runner.config.strict import without
from knot_runner.util.config_yaml import Config, choices
from knot_runner.util.errors import Misfit, UserError, unknown

#: Kind of task -> the teacher where a method names none.
TEACHERS = {"images": "cnn_16", "texts": "bert_mini"}
#: How the keys of a training begin that hold its values for a kind of training, and those in them for a kind of task, a
#: task or an algorithm.
BLOCK, VARIANT = "for_", "on_"
#: The block of a training that goes with tasks on which nothing is trained, too.
IDLE = "for_nothing"


def choice(config: Config, group: str) -> str:
    """Return the choice of ``group`` in a composed ``config`` as on the command line, such as ``task=sa``.

    A partition is named by its kind.
    """
    return f"{group}={config[group].get('kind' if group == 'partition' else 'name')}"


def require_group(config: Config, group: str) -> None:
    """Raise :class:`UserError` unless ``config`` has ``group``."""
    if not isinstance(config.get(group), dict):
        raise UserError(f"required, but not set. Use {group}=NAME ('knot-runner ls {group}' lists the names)", group)


def check_fit(config: Config, family: Family, task_kind: str) -> None:
    """Check that task, method, model, training and partition fit the ``family`` of the method.

    Raises:
        Misfit: One does not fit.
    """
    task, method = choice(config, "task"), choice(config, "method")
    if task_kind not in family.tasks:
        kind_of_task = TASK_KINDS[task_kind]
        raise Misfit(method, task, f"the task has {kind_of_task.contents}", f"Use method={kind_of_task.method}")
    if transfer_group(config) is not None:
        _check_transfer(config, family.name, task_kind)
    if not TASK_KINDS[task_kind].trains:
        for group in ("model", "training", "partition"):
            if config.get(group) is None:
                continue
            require_group(config, group)
            if group != "training" or not is_idle(config[group]):
                raise Misfit(choice(config, group), task, "the task trains nothing", f"Use {group}=null")
        return
    for group in ("model", "training"):
        require_group(config, group)
    on_images, rounds, partition = task_kind == "images", family.training == "rounds", config.get("partition")
    kind, kinds = str(config["model"].get("kind")), (*NETWORK_SETTINGS, "bert")
    if kind not in kinds:
        raise unknown("model.kind", kind, kinds)
    if on_images != (kind in NETWORK_SETTINGS):
        names = [name for name in choices("model") if name.startswith("bert") != on_images]
        hint = f"Use model={' or '.join(names[:4])} ('knot-runner ls model' shows all)"
        raise Misfit(choice(config, "model"), task, f"the model reads {'texts' if on_images else 'images'}", hint)
    if not on_images and not family.trains:  # its parties are clients, or the data sets themselves
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
        raise Misfit(choice(config, "partition"), method, why, "Use partition=null")
    given = [key for key in SHARE_KEYS if partition.get(key) is not None]
    _check_shares(given, method, family, on_images)
    if rounds and "transfer" in given and has_transfer_set(config["task"]):
        raise UserError(f"{task} has its own transfer set. Use null", "partition.transfer")


def is_idle(training: Config) -> bool:
    """Return whether a composed ``training`` has a block for methods that train nothing, and no value was set."""
    return IDLE in training and all(key == "name" or key.startswith(BLOCK) for key in training)


def _check_transfer(config: Config, family: str, task_kind: str) -> None:
    """Check that task and method can use another data set of images as the transfer set.

    A federated method that does not distill ignores it, so that one command compares it with methods that do.
    """
    task, transfer, none = config["task"], config["transfer"], "Use transfer=none"
    if not isinstance(transfer, dict):
        raise UserError(f"{transfer!r:.40} is not an image data set. Select one with transfer=NAME", "transfer")
    chosen = choice(config, "transfer")
    if task_kind != "images":
        why = "the task has its own transfer set" if has_transfer_set(task) else "the task has no images"
        raise Misfit(chosen, choice(config, "task"), why, none)
    if family not in ("distillation", "federated"):
        raise Misfit(chosen, choice(config, "method"), "the method reads no transfer set", none)
    if (config.get("partition") or {}).get("transfer") is not None:
        raise UserError(f"{chosen} is already the transfer set. Use null", "partition.transfer")


def _check_shares(given: list[str], method: str, family: Family, on_images: bool) -> None:
    """Check that a ``method`` of ``family`` uses the ``given`` shares of ``partition``.

    A federated server has no data, and all parties take part in a distillation.
    """
    rounds = family.training == "rounds"
    if not rounds and "unseen" in given:
        raise UserError(f"not supported by {method}, in which all parties take part. Use null", "partition.unseen")
    if "alter" in given and not (rounds and family.holds_out and on_images):
        raise UserError("requires a federated method on images. Use null", "partition.alter")
    for key in given:
        if rounds and (key == "server" or not family.holds_out):
            raise UserError(f"{method} assigns all training images to the clients. Use null", f"partition.{key}")


def training_values(config: Config, kind: str) -> Config:
    """Return the values of the composed ``training`` for a method that trains in ``kind`` (rounds, stages or central).

    They are the values of its block ``for_KIND``, overridden by the values outside of blocks, which a user or a preset
    set. In a block, ``on_NAME`` holds the values for a kind of task, a task or an algorithm.

    Raises:
        Misfit: The training has blocks, but none that applies.
    """
    training, task, method = config["training"], config["task"], config["method"]
    blocks = {key: block for key, block in training.items() if key.startswith(BLOCK) and key != IDLE}
    given = without(training, IDLE, *blocks)
    names = {f"{VARIANT}{name}" for name in (kind_of(task), task.get("name"), method.get("algorithm"))}
    block = blocks.get(f"{BLOCK}{kind}", {})
    if blocks and (not block or (_variants(block) and names.isdisjoint(block))):
        has = [f"{key.removeprefix(BLOCK)} ({', '.join(_variants(part)) or 'all'})" for key, part in blocks.items()]
        other = f"{choice(config, 'method')} on {choice(config, 'task')}"
        hint = "Use training=small or training=quick"
        raise Misfit(choice(config, "training"), other, f"this training has settings only for {', '.join(has)}", hint)
    values = _merged(_chosen(block, names), given)
    if values.get("small_clients", "") is None:
        values["small_clients"] = "stop" if "batch_size" in given else "allow"
    return values


def _variants(block: Config) -> list[str]:
    return [key.removeprefix(VARIANT) for key in block if key.startswith(VARIANT)]


def _chosen(block: Config, names: set[str]) -> Config:
    """Return the values of ``block``, overridden by those of its variants ``names``, in their order."""
    values = {key: value for key, value in block.items() if not key.startswith(VARIANT)}
    for key, variant in block.items():
        if key in names:
            values = _merged(values, _chosen(variant, names))
    return values


def _merged(values: Config, over: Config) -> Config:
    """Return ``values`` overridden by those of ``over``, at any depth."""
    merged = dict(values)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
