"""The run id: a hash of exactly those settings that can change a run's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from knot_runner.config.plugins import as_written
from knot_runner.config.settings.families import family_of_algorithm
from knot_runner.config.settings.methods.server_distillation import used_of_server
from knot_runner.config.settings.partition import SHARE_KEYS, held_out_shares, party_shares, transfer_group
from knot_runner.config.settings.privacy import unread_privacy_keys
from knot_runner.config.strict import digest, without

#: Groups and keys that do not change the numbers, so they are left out of the run id.
NOT_IN_RUN_ID = ("hardware", "tracker", "paths", "sweep", "report", "fail_fast")
#: Keys of ``hardware`` that do, in federated runs: engines agree up to rounding only.
HARDWARE_IN_RUN_ID = ("engine", "precision")


def run_id(config: dict[str, Any]) -> str:
    """Name of a run's folder: hash of all settings that can change its numbers.

    Settings that are not in use do not count: the other sources of a data set, the hub's revision in a local run, the
    rate control of a run at T=1. Nor does ``task.optional``: the digest of the data covers what was read.
    """
    counted = without(config, *NOT_IN_RUN_ID, *([] if config.get("fleet") else ["fleet"]))
    if not _reads_transfer(config):
        counted.pop("transfer", None)
    if "plugins" in counted:
        counted["plugins"] = [as_written(plugin) for plugin in counted["plugins"]]
    return digest(_given(USED[kind_of(config["task"])](config, counted)), 12)


def _given(value: Any) -> Any:
    """``value`` without settings that are null."""
    if isinstance(value, dict):
        return {key: _given(one) for key, one in value.items() if one is not None}
    return [_given(one) for one in value] if isinstance(value, list) else value


def resolved(config: dict[str, Any]) -> dict[str, Any]:
    """A composed ``config`` with the shares of the partition that are in use, for comparisons of runs: where they are
    null, those that the method fills in. As it is if it lacks a partition or an algorithm."""
    partition, algorithm = config.get("partition"), (config.get("method") or {}).get("algorithm")
    if not partition or algorithm is None:
        return config
    unused = {key: None for key in SHARE_KEYS if key in partition}
    return {**config, "partition": {**partition, **unused, **_shares(config)}}


def _shares(config: dict[str, Any]) -> dict[str, Any]:
    """The shares that a composed run holds out, {} where its family holds out none."""
    family = family_of_algorithm(config["method"]["algorithm"])
    if family.training == "rounds":
        return held_out_shares(config) if family.holds_out else {}
    return party_shares(config) if family.clients and kind_of(config["task"]) == "images" else {}


def _reads_transfer(config: dict[str, Any]) -> bool:
    """Whether another data set is the transfer set; a federated method that does not distil reads none."""
    method = config["method"]
    rounds = family_of_algorithm(method["algorithm"]).training == "rounds"
    return transfer_group(config) is not None and not (rounds and method.get("distil") is None)


def kind_of(task: dict[str, Any]) -> str:
    """images, image_sets, gaussians or texts: the family of a composed task."""
    kind = task.get("kind")
    return kind if isinstance(kind, str) and kind in USED else "texts"


def _used_of_images(config: dict[str, Any], counted: dict[str, Any]) -> dict[str, Any]:
    task, method = _used_images(counted["task"], counted["task"]["source"]), dict(counted["method"])
    family = family_of_algorithm(method["algorithm"])
    used = {**counted, "task": task}
    if "transfer" in counted:
        used["transfer"] = _used_transfer(counted["transfer"])
    if not family.trains:
        used = {**without(used, "model", "training"), "method": _used_distances(method, "encoder")}
        return {**used, **_used_partition(counted)}
    if family.training == "rounds":
        used = without(used, "model") if method.get("models") else used  # clients' architectures replace the model
        return {**used, **_used_of_rounds(config, counted)}
    used = {**used, **_used_of_stages(counted, "texts", "tokens")}
    if not family.clients:
        return used_of_pool(used)
    return {**used, "partition": {**without(counted["partition"], *SHARE_KEYS), **_shares(config)}}


def _used_of_rounds(config: dict[str, Any], counted: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings in use of method, training and hardware where clients train in rounds."""
    method = dict(counted["method"])
    chilled = any(method.get(key) is not None for key in ("schedule", "stragglers", "hard_temperature"))
    if not chilled and method.get("temperature") == 1:
        method["lr_control"] = False
    if clustering := method.pop("clustering", None):
        reads = "features" if kind_of(config["task"]) == "texts" else "encoder"
        method["clustering"] = _used_clustering(clustering, reads)
    method |= _used_server_distillation(method.pop("distil", None), kind_of(config["task"]))
    hardware = {key: config["hardware"][key] for key in HARDWARE_IN_RUN_ID}
    if hardware["engine"] == "ray":  # its actors train as lean does, bit for bit
        hardware["engine"] = "lean"
    if hardware["engine"] in ("stacked", "auto"):  # float32 convolutions round differently by the width of the stack
        hardware["stack"] = config["hardware"]["stack"]
    used = {"method": method, "hardware": hardware, **_used_partition(counted)}
    shares = _shares(config)
    if counted.get("fleet", {}).get("mode") == "sync":  # there is no staleness in synchronous rounds
        used["fleet"] = without(counted["fleet"], "staleness_exponent")
    if counted.get("privacy"):
        unread = unread_privacy_keys(method["algorithm"], "distil" in method)
        used["privacy"] = without(counted["privacy"], *unread)
    return {**used, "partition": {**used["partition"], **shares}} if shares else used


def _used_server_distillation(distil: dict[str, Any] | None, task_kind: str) -> dict[str, Any]:
    """Returns the settings in use of the server's distillation, if any: its random examples are images or texts."""
    if not distil:
        return {}
    unread = ("images", "noise") if task_kind == "texts" else ("texts", "tokens")
    distil = used_of_server(distil)
    bias = distil.get("bias")
    return {"distil": {**distil, "bias": without(bias, *unread)} if isinstance(bias, dict) else distil}


def _used_partition(counted: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings in use of the partition, if any, without the shares of a distillation's other parties."""
    partition = counted.get("partition")
    return {"partition": without(partition, *SHARE_KEYS)} if partition else {}


def _used_distances(method: dict[str, Any], reads: str) -> dict[str, Any]:
    """Returns the settings in use of methods that train no model: the exact distance has no interpolating measures, and
    ``encoder_share`` counts only with an encoder."""
    used = without(method, "fedwad") if method.get("distance") == "exact" else dict(method)
    if "otdd" in used:
        return {**used, "otdd": _used_otdd(used["otdd"], reads)}
    used = _used_points(used, reads)
    return used if used.get("encoder") else without(used, "encoder_share")


def _features(method: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings in use of a method's text features; {} where it has none."""
    owner = method.get("clustering", method)
    if not owner or owner.get("graph") == "none":
        return {}
    return _used_points(owner.get("otdd", owner), "features").get("features") or {}


def _used_points(settings: dict[str, Any], reads: str) -> dict[str, Any]:
    """Keeps the feature extractor in use (``reads``): an ``encoder`` of images, or ``features`` of texts."""
    used = without(settings, *{"encoder", "features"} - {reads})
    if reads == "features" and used.get("features"):
        unread = ("encoder",) if used["features"]["kind"] == "tfidf" else ("components", "words")
        used["features"] = without(used["features"], *unread)
    return used


def _used_clustering(clustering: dict[str, Any], reads: str) -> dict[str, Any]:
    """One cluster of all clients needs no distance; only an affinity has a scale."""
    if clustering["graph"] == "none":
        return {"graph": "none"}
    used = clustering if clustering["graph"] == "affinity" else without(clustering, "scale")
    return {**used, "otdd": _used_otdd(clustering["otdd"], reads)}


def _used_otdd(otdd: dict[str, Any], reads: str) -> dict[str, Any]:
    """The exact distance has no interpolating measures."""
    used = _used_points(otdd, reads)
    return without(used, "fedwad", "precision") if otdd["solver"] == "exact" else used


def _used_images(task: dict[str, Any], source: str) -> dict[str, Any]:
    unused = {"local", "hub"} - {source}
    geometry = task.get("geometry", "given")
    if geometry == "given":
        unused.add("geometry")
    if geometry != "superclasses":
        unused.add("superclasses")
    return without(task, *unused)


def _used_transfer(images: dict[str, Any]) -> dict[str, Any]:
    """What counts of another data set as the transfer set: where its images are, and how many; its classes say which
    files are read, and the task's statistics normalise them."""
    unread = ("coordinates", "geometry", "superclasses", "mean", "std", "augment", "holdout")
    return without(_used_images(images, images["source"]), *unread)


def _used_of_image_sets(_: dict[str, Any], counted: dict[str, Any]) -> dict[str, Any]:
    task = without(counted["task"], "optional")
    sets = {name: _used_images(one, task["source"]) for name, one in task["sets"].items()}
    method = _used_distances(counted["method"], "encoder")
    return {**counted, "method": method, "task": {**task, "sets": sets}}


def _used_of_gaussians(_: dict[str, Any], counted: dict[str, Any]) -> dict[str, Any]:
    """Exact mode starts with as many points as the first sample has, whatever the support."""
    method = dict(counted["method"])
    if method["fedwad"]["mode"] == "exact":
        method["fedwad"] = without(method["fedwad"], "support")
    return {**counted, "method": method}


def _used_of_texts(config: dict[str, Any], counted: dict[str, Any]) -> dict[str, Any]:
    task = without(counted["task"], "optional")
    unused = {"embedded", "local", "hub"} - {task["source"]}
    by = (config.get("partition") or {}).get("by")
    used = {name: without(data, *unused) for name, data in task["datasets"].items()}
    task["datasets"] = {name: _used_clients(data, task["source"], by) for name, data in used.items()}
    model = without(counted["model"], "kind")  # there is one kind that reads texts
    features = _features(counted["method"])
    if "hub" not in (model["weights"], model["vocab"], features.get("encoder")):
        del model["hub_id"], model["revision"]
    if model["vocab"] != "train":
        del model["vocab_size"]
    family = family_of_algorithm(counted["method"]["algorithm"])
    if not family.trains:
        method = _used_distances(counted["method"], "features")
        own = {"model": model} if "encoder" in features else {}
        used = {**without(counted, "model", "training"), "task": task, "method": method, **own}
        return {**used, **_used_partition(counted)}
    if family.training == "rounds":
        return {**counted, "task": task, "model": model, **_used_of_rounds(config, counted)}
    used = {"task": task, "model": model, **_used_of_stages(counted, "images", "noise")}
    used = without(counted, "partition") | used
    if family.clients:
        return used
    return used_of_pool({**used, "method": without(used["method"], "valid")})


def _used_of_stages(counted: dict[str, Any], *of_other_tasks: str) -> dict[str, Any]:
    """Returns the settings in use of method and training where parties are distilled; ``of_other_tasks``: keys of
    random examples for other kinds of task."""
    method, training = dict(counted["method"]), {}
    if isinstance(method.get("bias"), dict):
        method["bias"] = without(method["bias"], *of_other_tasks)
    for name, stage in counted["training"].items():
        training[name] = used_of_stage(stage) if isinstance(stage, dict) else stage
    return {"method": method, "training": training}


def _used_clients(data: dict[str, Any], source: str, by: str | None) -> dict[str, Any]:
    """Keeps, of the columns that name clients, the one selected by ``partition.by``."""
    own = data.get(source) or {}
    if not own.get("columns", {}).get("clients"):
        return data
    clients = {name: column for name, column in own["columns"]["clients"].items() if name == by}
    columns = {**without(own["columns"], "clients"), **({"clients": clients} if clients else {})}
    return {**data, source: {**own, "columns": columns}}


#: Kind of task -> (config, what counts of it) -> what is in use of that.
USED: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "texts": _used_of_texts,
    "images": _used_of_images,
    "image_sets": _used_of_image_sets,
    "gaussians": _used_of_gaussians,
}


def used_of_stage(stage: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings in use of a training stage: ``decay`` counts only with milestones."""
    return stage if stage.get("milestones") else without(stage, "decay")


def used_of_pool(used: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings in use: without pretraining, with the teachers' stage if any is trained, and ``auto_ratio``
    if a weight is auto."""
    method = without(used["method"], "teacher")
    trained = any(not _is_run(teacher) for teacher in method["teachers"])
    unread = ["pretrain"] if trained else ["pretrain", "local"]
    method["teachers"] = [_used_teacher(teacher) for teacher in method["teachers"]]
    losses = [method["terms"], *(phase["terms"] for phase in method["schedule"].get("phases", []))]
    if not any(term.get("weight") == "auto" for terms in losses for term in terms.values()):
        method = without(method, "auto_ratio")
    return {**used, "method": method, "training": without(used["training"], *unread)}


def _used_teacher(teacher: Any) -> Any:
    """A finished run is known by its id and the digest of its weights, wherever it lies."""
    return {key: teacher[key] for key in ("kind", "run", "weights")} if _is_run(teacher) else teacher


def _is_run(teacher: Any) -> bool:
    return isinstance(teacher, dict) and teacher.get("kind") == "run"
