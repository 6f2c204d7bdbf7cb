"""The run id: a digest of the settings that can change a run's numbers."""

from __future__ import annotations

from typing import Any

from knot_runner.config.plugins import as_written
from knot_runner.config.settings.families import family_of_algorithm
from knot_runner.config.settings.partition import SHARE_KEYS, held_out_shares, party_shares, stages_valid
from knot_runner.config.strict import digest, without

#: Groups and keys that do not change the numbers.
NOT_IN_RUN_ID = ("hardware", "tracker", "paths", "sweep", "report", "fail_fast")
#: Keys of ``hardware`` that do, in federated runs: engines agree up to rounding only.
HARDWARE_IN_RUN_ID = ("engine", "precision")
#: Groups whose ``name`` is a label; names of tasks and methods are folders.
LABELED = ("model", "training", "fleet", "privacy")
#: Places of a data set: the one that ``task.source`` names is read.
DATA_PLACES = {"embedded", "local", "hub"}
#: Settings of a method -> those beside them that are not read.
UNREAD_KEYS = {
    ("distance", "exact"): {"fedwad"},
    ("solver", "exact"): {"fedwad", "precision"},
    ("graph", "none"): {"otdd", "clusters", "scale"},
}


def run_id(config: dict[str, Any]) -> str:
    """Return the name of a run's folder: the digest of its :func:`counted_settings` that are not null."""
    counted = counted_settings(config)
    labeled = {group: without(counted[group], "name") for group in LABELED if counted.get(group)}
    return digest(_not_null(counted | labeled), 12)


def counted_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a composed run that can change its numbers; what gives equal runs by construction, such as
    ``lr_control`` at T=1, is equal in them."""
    config = resolved(config)
    method, task = _read_settings(config["method"]), config["task"]
    family = family_of_algorithm(method["algorithm"])
    counted = without(config, *NOT_IN_RUN_ID)
    counted |= {"method": method, "task": _read_sources(task), "fleet": config.get("fleet") or None}
    counted["plugins"] = [as_written(plugin) for plugin in config.get("plugins") or []]
    counted["transfer"] = None
    if config.get("transfer") and (family.training == "stages" or method.get("distil") is not None):
        counted["transfer"] = _read_sources(config["transfer"])
    if method["algorithm"] == "federated_distance" and method["fedwad"]["mode"] == "exact":
        method["fedwad"] = without(method["fedwad"], "support")  # as many points as the first sample
    if "teachers" in method:
        method.pop("teacher", None)  # stands in teachers
        method["teachers"] = [_identity(teacher) for teacher in method["teachers"]]
    if family.training == "rounds" and family.trains:
        chilled = any(method.get(key) is not None for key in ("schedule", "stragglers", "hard_temperature"))
        if not chilled and method.get("temperature") == 1:
            method["lr_control"] = False
        counted["hardware"] = _counted_hardware(config["hardware"])
    return counted


def resolved(config: dict[str, Any]) -> dict[str, Any]:
    """Return a composed ``config`` with the held-out shares that are in use, for comparisons of runs: where they are
    null, those that the method fills in. As it is if it lacks an algorithm, or a partition that it needs."""
    partition, method = config.get("partition"), config.get("method") or {}
    if "algorithm" not in method:
        return config
    family, shares = family_of_algorithm(method["algorithm"]), {}
    in_stages = family.training == "stages" and kind_of(config["task"]) == "images"
    if in_stages and not family.clients and method.get("valid") is None:
        config = {**config, "method": {**method, "valid": stages_valid(config)}}
    if not partition:
        return config
    if family.holds_out:
        shares = held_out_shares(config)
    elif in_stages and family.clients:
        shares = party_shares(config)
    unused = {key: None for key in SHARE_KEYS if key in partition}
    return {**config, "partition": {**partition, **unused, **shares}}


def kind_of(task: dict[str, Any]) -> str:
    """Return the family of a composed task: images, image_sets, gaussians or texts."""
    return task["kind"] if task.get("kind") in ("images", "image_sets", "gaussians") else "texts"


def _read_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a method, at any depth, without :data:`UNREAD_KEYS` ones."""
    unread = {name for (key, value), names in UNREAD_KEYS.items() if settings.get(key) == value for name in names}
    read = without(settings, *unread)
    return {key: _read_settings(value) if isinstance(value, dict) else value for key, value in read.items()}


def _read_sources(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task without the places that its data sets are not read from."""
    unread = DATA_PLACES - {task.get("source")}
    read = without(task, *unread)
    for group in {"datasets", "sets"} & set(read):
        read[group] = {name: without(one, *unread) for name, one in read[group].items()}
    return read


def _identity(teacher: Any) -> Any:
    """A finished run is known by its id and the digest of its weights, wherever it lies."""
    is_run = isinstance(teacher, dict) and teacher.get("kind") == "run"
    return {key: teacher[key] for key in ("kind", "run", "weights")} if is_run else teacher


def _counted_hardware(hardware: dict[str, Any]) -> dict[str, Any]:
    counted = {key: hardware[key] for key in HARDWARE_IN_RUN_ID}
    if counted["engine"] == "ray":  # its actors train as lean does, bit for bit
        counted["engine"] = "lean"
    if counted["engine"] in ("stacked", "auto"):  # float32 convolutions round differently by the width of the stack
        counted["stack"] = hardware["stack"]
    return counted


def _not_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _not_null(one) for key, one in value.items() if one is not None}
    return [_not_null(one) for one in value] if isinstance(value, list) else value
