"""Footnote on the main settings that our numbers were made with, read from the jobs."""

from __future__ import annotations

from typing import Any

from knot_runner.config.settings.methods.algorithms import federated_algorithm
from knot_runner.config.settings.partition import SHARE_KEYS, party_shares, transfer_group
from knot_runner.config.settings.privacy import unread_privacy_keys
from knot_runner.config.strict import without
from knot_runner.report.run_rows import lookup


def made_with(configs: list[dict[str, Any]]) -> str:
    """The main settings of a preset's jobs (composed configs) as text; if tasks differ, those of the first task, but
    for federated runs those of every task."""
    first = configs[0]
    if "rounds" in first["training"]:
        return _federated(configs)
    training, on_images = first["training"], first["task"]["kind"] == "images"
    if "terms" in first["method"]:
        return _distilled(configs)
    parts = [_data(first), _shares(first)] if on_images else _texts_and_model(first)
    parts.append(f"local models {_stage(training['local'])}, global {_stage(training['pretrain'])}")
    distilling = [config["method"] for config in configs if "loss" in config["method"]]
    if distilling:
        parts.append(f"distillation {_stage(training['distil'])}")
    weighted = [method for method in distilling if "normalise" in method]
    if weighted:
        parts.append("normalised weights" if weighted[0]["normalise"] else "raw weights")
    bias = next((config["method"]["bias"] for config in configs if "bias" in config["method"]), None)
    if bias is not None:
        noise = f"{bias['images']:,} images ({bias['noise']})" if on_images else f"{bias['texts']:,} random texts"
        parts.append(f"B_k from {noise}")
    parts += list(dict.fromkeys(_loss(method["loss"]) for method in distilling))
    if first["task"]["limit"] and not on_images:
        parts.append(f"at most {first['task']['limit']} rows per split")
    return f"ours: {'; '.join(parts)}."


def _distilled(configs: list[dict[str, Any]]) -> str:
    """Settings of distillations by loss terms: data, student, teachers, stages."""
    first = configs[0]
    training, method = first["training"], first["method"]
    teachers = dict.fromkeys(teacher["name"] for config in configs for teacher in config["method"]["teachers"])
    parts = [_data(first)] if first["task"]["kind"] == "images" else _texts_and_model(first)
    parts.append(f"the student sees {method['labelled']:.0%} of the labels")
    parts.append(f"student {_stage(training['distil'])}")
    if teachers:
        parts.append(f"teachers ({', '.join(teachers)}) {_stage(training['local'])}")
    return f"ours: {'; '.join(parts)}."


def _texts_and_model(config: dict[str, Any]) -> list[str]:
    task, model = config["task"], config["model"]
    return [
        f"task.source={task['source']}",
        _texts(task),
        f"{model['name']} ({model['head']} head), weights: {model['weights']}, vocabulary: {model['vocab']}",
    ]


def _shares(config: dict[str, Any]) -> str:
    shares, other = party_shares(config), transfer_group(config)
    public = f"{shares['transfer']:.0%} transferred" if other is None else f"{other['name']} transferred"
    return f"{shares['server']:.0%} of the training images at the server, {public}"


def _stage(stage: dict[str, Any]) -> str:
    return f"{stage['epochs']} epochs of batch {stage['batch']} at rate {float(stage['lr']):g}"


def _texts(task: dict[str, Any]) -> str:
    context = ""
    if task["kind"] == "emotion":
        context = f" with {task['context']} earlier utterances" if task["context"] else ", the utterance only"
    return f"texts of up to {task['max_length']} tokens{context}"


def _loss(loss: dict[str, Any]) -> str:
    if loss["name"] != "sinkhorn":
        return f"{loss['name']}: " + ", ".join(str(value) for key, value in loss.items() if key != "name")
    extra = f" with scaling {loss['scaling']}" if loss["solver"] == "geomloss" else ""
    regularised = loss["solver"] in ("newton", "geomloss")
    how = f"epsilon {float(loss['epsilon']):g}" if regularised else "not regularised"
    return f"sinkhorn: {loss['solver']}{extra}, {how}"


def _federated(configs: list[dict[str, Any]]) -> str:
    """Settings of federated runs: data, partition and model of each task, rounds, and clustering; shared ones only
    once."""
    data = list(dict.fromkeys(_data(config) for config in configs))
    rounds = dict.fromkeys(_training(config) for config in configs)
    if len(rounds) == 1:
        algorithms = dict.fromkeys(config["method"]["algorithm"] for config in configs)
        parts = [*data, f"{', '.join(algorithms)}: {next(iter(rounds))}"]
    else:
        own = (f"{_data(config)}, {config['method']['algorithm']}: {_training(config)}" for config in configs)
        parts = list(dict.fromkeys(own))
    clustered = [config for config in configs if (lookup(config, "method.clustering.graph") or "none") != "none"]
    parts += dict.fromkeys(map(_distances, clustered))
    private = [config for config in configs if config.get("privacy")]
    parts += dict.fromkeys(_mechanism(config["privacy"], config["method"]) for config in private)
    return f"ours: {'; '.join(parts)}."


def _mechanism(privacy: dict[str, Any], method: dict[str, Any]) -> str:
    """Settings of clipping and noise on clients' updates."""
    z, clip = privacy["noise_multiplier"], privacy["clip_norm"]
    noise = f"epsilon {privacy['epsilon']:g}" if z is None else f"noise multiplier {z:g}"
    bounds = []
    if federated_algorithm(method["algorithm"]).averages:
        bounds.append(f"updates clipped to {float(clip or 0):g}")
    if "clip_logits" not in unread_privacy_keys(method["algorithm"], bool(method.get("distil"))):
        bounds.append(f"logits clipped to {float(privacy.get('clip_logits', 0)):g} an example")
    norm = "not clipped" if clip is None else ", ".join(bounds)
    return f"private: {norm}, {noise}, {privacy['sampling']} sampling"


def _points(config: dict[str, Any]) -> str:
    """Encoding of examples in the comparison of clients: `` of mnist_dense codes``, "" for pixels."""
    otdd = (config["method"].get("clustering") or {}).get("otdd", {})
    if config["task"]["kind"] == "images":
        return f" of {otdd['encoder']['name']} codes" if otdd.get("encoder") else ""
    features = otdd.get("features") or {}
    return f" of {features['kind']} features (fitted on {features['fitted_on']})" if features else ""


def _distances(config: dict[str, Any]) -> str:
    """Settings of clustering: the distances between clients' data and the number of clusters."""
    clustering = config["method"]["clustering"]
    otdd, fedwad = clustering["otdd"], clustering["otdd"]["fedwad"]
    how = f"K={fedwad['iterations']}, t {fedwad['t']}" if otdd["solver"] == "federated" else otdd["solver"]
    label = f"{otdd['covariance']} ({otdd['part']})"
    return f"clusters: {clustering['clusters']}, by distances{_points(config)} with {label}, {how}"


def _data(config: dict[str, Any]) -> str:
    task, limit = config["task"], config["task"].get("limit")
    model, counted, texts, own = config["model"], "training images", "", ""
    if task["kind"] != "images":
        counted, texts = "rows per split", f", {_texts(task)}"
        own = f" ({model['head']} head), weights: {model['weights']}, vocabulary: {model['vocab']}"
    cut = f", at most {limit:,} {counted}" if limit else ""
    source = f"{task['name']} (task.source={task['source']}{cut}){texts}"
    clients = f"{_clients(config['partition'])}, " if config.get("partition") else ""
    names = [one["name"] for one in config["method"].get("models") or []] or [model["name"]]
    return f"{source}, {clients}{' and '.join(names)}{own}"


def _clients(partition: dict[str, Any]) -> str:
    """``50 clients by dirichlet (alpha 0.5, floor 10)``."""
    kind = partition["kind"]
    if kind == "centralised":
        return "one client with everything"
    if kind == "natural":
        return f"{partition['clients'] or 'all'} clients by natural (by {partition['by']})"
    others = without(partition, "kind", "clients", "groups", *SHARE_KEYS)
    extra = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in others.items())
    return f"{partition['clients']} clients by {kind}" + (f" ({extra})" if extra else "")


def _training(config: dict[str, Any]) -> str:
    training, method = config["training"], config["method"]
    if "aggregation" not in method:  # a probe of one model has no rounds
        return f"batches of {training['batch']} at rate {float(training['lr']):g}"
    decay = f", weight decay {float(training['weight_decay']):g}" if training["weight_decay"] else ""
    momentum = f", momentum {float(training['momentum']):g}" if training["momentum"] else ""
    optimiser = ", AdamW" if training.get("optimiser") == "adamw" else ""
    return (
        f"{training['rounds']} rounds of {training['participants']} clients, {_stage(training)}"
        f"{momentum}{decay}{optimiser}, {method['aggregation']} mean, engine {config['hardware']['engine']}"
    )
