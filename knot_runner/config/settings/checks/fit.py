"""Checks that the groups of a composed config fit together: task, method, model, training and partition."""

from __future__ import annotations

from typing import Any

from knot_runner.config.settings.families import family_of, family_of_algorithm
from knot_runner.config.settings.methods.fedwad import GaussiansSettings, ImageSetsSettings
from knot_runner.config.settings.networks import NETWORK_SETTINGS
from knot_runner.config.settings.partition import SHARE_KEYS, has_transfer_set, transfer_group
from knot_runner.config.settings.run_id import kind_of
from knot_runner.util.errors import UserError, unknown

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
#: The teacher on a task of texts, where that of the method's YAML reads images.
TEXT_TEACHER = "bert_mini"
#: Kind of task -> what it has, where its name does not say so.
WHAT_IS_IN = {"gaussians": "samples of Gaussians", "image_sets": "sets of images"}
#: Kinds of task on which nothing is trained, so that there is neither model, training nor partition -> their settings.
UNTRAINED_TASKS: dict[str, type] = {"gaussians": GaussiansSettings, "image_sets": ImageSetsSettings}


class Misfit(UserError):
    """Groups that are valid separately do not fit together."""


def require_group(config: dict[str, Any], group: str) -> None:
    """Raises :class:`UserError` unless ``config`` has ``group``."""
    if not isinstance(config.get(group), dict):
        raise UserError(f"is not set; {group}=NAME chooses one ('knot-runner ls' shows them)", group)


def check_fit(config: dict[str, Any], method: type, task_kind: str) -> None:
    """Checks that task, method, model, training and partition are of one family; the error names the first that is not.
    Raises :class:`Misfit`."""
    name, method_name = config["task"].get("name"), config["method"].get("name")
    if task_kind not in family_of(method).tasks:
        what, fits = WHAT_IS_IN.get(task_kind, task_kind), FITTING_METHODS[task_kind]
        raise Misfit(f"method={method_name}: task={name} has {what}; method={fits} would fit")
    if transfer_group(config) is not None:
        _check_transfer(config, family_of(method).name, task_kind)
    if task_kind in UNTRAINED_TASKS:
        for group in ("model", "training", "partition"):
            if config.get(group) is not None:
                raise Misfit(f"{group}: task={name} trains nothing and has none; without it is right")
        return
    for group in ("model", "training"):
        require_group(config, group)
    family = family_of(method)
    on_images, rounds = task_kind == "images", family.training == "rounds"
    kind = str(config["model"].get("kind"))
    if kind not in (*NETWORK_SETTINGS, "bert"):
        raise unknown("model.kind", kind, (*NETWORK_SETTINGS, "bert"))
    if on_images != (kind in NETWORK_SETTINGS):
        fits = "femnist_dnn" if on_images else "bert_tiny"
        raise Misfit(f"model={config['model'].get('name')}: does not read task={name}; model={fits} would fit")
    if not on_images and not family.trains:  # its parties are clients, or the data sets themselves
        return
    if rounds != ("rounds" in config["training"]):
        fits = FITTING_TRAININGS[task_kind, family_of(method).training]
        raise Misfit(
            f"training={config['training'].get('name')}: is not for method={method_name}; training={fits} would fit"
        )
    if not family.clients:
        if config.get("partition") is not None:
            raise Misfit(f"partition: method={method_name} trains on all examples as one pool; without it is right")
        return
    if (rounds or on_images) != (config.get("partition") is not None):
        fits = "dirichlet" if on_images else "natural (a client is a data set)"
        what = f"needs clients; partition={fits} would fit"
        if not rounds and not on_images:
            what = "has texts, whose data sets are the parties of a distillation; without it is right"
        raise Misfit(f"partition: task={name} {what}")
    given = [key for key in SHARE_KEYS if (config.get("partition") or {}).get(key) is not None]
    _check_shares(given, method_name, rounds, family.holds_out, on_images)
    if rounds and "transfer" in given and has_transfer_set(config["task"]):
        raise Misfit(f"partition.transfer: task={name} has a transfer set of its own; null is right")


def _check_transfer(config: dict[str, Any], family: str, task_kind: str) -> None:
    """Whether task and method take another data set of images as the transfer set. A federated method that does not
    distill may have one beside it, unread, so that one command compares it with methods that do."""
    task, transfer = config["task"], config["transfer"]
    if not isinstance(transfer, dict):
        raise Misfit(f"transfer: {transfer!r:.40} is no data set of images; transfer=NAME chooses one")
    if task_kind != "images":
        own = "has a transfer set of its own" if has_transfer_set(task) else "trains nothing"
        raise Misfit(f"transfer={transfer.get('name')}: task={task.get('name')} {own}; transfer=none is right")
    if family not in ("distillation", "federated"):
        raise Misfit(
            f"transfer={transfer.get('name')}: method={config['method'].get('name')} has no transfer set; "
            "transfer=none is right"
        )
    if (config.get("partition") or {}).get("transfer") is not None:
        raise Misfit(
            f"partition.transfer: transfer={transfer.get('name')} is the transfer set, and no share of the training "
            "images; null is right"
        )


def _check_shares(given: list[str], method: str, rounds: bool, holds_out: bool, on_images: bool) -> None:
    """Checks that a method uses the ``given`` shares of ``partition``: a federated server has no data of its own, and
    all parties of a distillation take part."""
    if not rounds and "unseen" in given:
        raise Misfit(f"partition.unseen: all parties of method={method} take part; null is right")
    if "alter" in given and not (rounds and holds_out and on_images):
        raise Misfit("partition.alter: works only with federated methods on images. Use null")
    wrong = [key for key in given if key == "server" or not holds_out] if rounds else []
    if wrong:
        raise Misfit(f"partition.{wrong[0]}: method={method} leaves the clients all training images; null is right")


def fitting_choices(config: dict[str, Any]) -> dict[str, str]:
    """Returns replacements for the choices of ``training``, ``partition`` and transport solver in a composed ``config``
    that do not fit its task and method; {} where all fit, or where task and method do not fit each other."""
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
    if method.get("teachers") and kind == "texts":
        found["method.teacher"] = TEXT_TEACHER
    distill = method.get("server_distillation")
    terms = method.get("terms") or {}
    places = {
        "method.loss": method.get("loss"),
        "method.server_distillation.loss": distill and distill.get("loss"),
        "method.server_distillation.terms.sinkhorn": ((distill or {}).get("terms") or {}).get("sinkhorn"),
        "method.terms.sinkhorn": terms.get("sinkhorn"),
    }
    for where, loss in places.items():
        if kind == "images" and isinstance(loss, dict) and loss.get("solver") == "newton" and _is_tree(task):
            found[f"{where}.solver"] = "tree"  # newton is made for few classes: 62 take seconds a step
    return found


def _is_tree(task: dict[str, Any]) -> bool:
    """Whether the classes of a task of images lie at the leaves of a tree (:mod:`knot_runner.transport.trees`)."""
    return task.get("geometry", "given") != "given" or task.get("coordinates") is None
