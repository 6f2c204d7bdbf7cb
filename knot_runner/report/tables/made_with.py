"""One line under a table: with which of the settings that matter our numbers were made, read from the jobs."""

from __future__ import annotations

from typing import Any


def made_with(configs: list[dict[str, Any]]) -> str:
    """The settings of a preset's jobs (composed configs) in words; where tasks differ, the first task's, but those of
    every task where clients train in rounds."""
    first = configs[0]
    if first["task"]["kind"] == "images" or "rounds" in first["training"]:
        return _federated(configs)
    task, model, training = first["task"], first["model"], first["training"]
    parts = [
        f"task.source={task['source']}",
        f"texts of up to {task['max_length']} tokens" + _context(task),
        f"{model['name']} ({model['head']} head), weights: {model['weights']}, vocabulary: {model['vocab']}",
        f"local models {_stage(training['local'])}, global {_stage(training['pretrain'])}",
    ]
    distilling = [config["method"] for config in configs if "loss" in config["method"]]
    if distilling:
        parts.append(f"distillation {_stage(training['distil'])}")
        parts.append("normalised weights" if distilling[0]["normalise"] else "raw weights")
    parts.append(f"B_k from {first['method']['bias']['texts']:,} random texts")
    parts += list(dict.fromkeys(_loss(method["loss"]) for method in distilling))
    if task["limit"]:
        parts.append(f"at most {task['limit']} rows per split")
    return f"ours: {'; '.join(parts)}."


def _stage(stage: dict[str, Any]) -> str:
    return f"{stage['epochs']} epochs of batch {stage['batch']} at rate {float(stage['lr']):g}"


def _context(task: dict[str, Any]) -> str:
    if task["kind"] != "emotion":
        return ""
    return f" with {task['context']} earlier utterances" if task["context"] else ", the utterance only"


def _loss(loss: dict[str, Any]) -> str:
    if loss["name"] != "sinkhorn":
        return f"{loss['name']}: " + ", ".join(str(value) for key, value in loss.items() if key != "name")
    extra = f" with scaling {loss['scaling']}" if loss["solver"] == "geomloss" else ""
    return f"sinkhorn: {loss['solver']}{extra}, epsilon {float(loss['epsilon']):g}"


# ---------------------------------------------------------------------------------------------------------- federated


def _federated(configs: list[dict[str, Any]]) -> str:
    """Data, partition and model of each task, how its rounds run, and how clients were grouped; what is shared once."""
    data = list(dict.fromkeys(_data(config) for config in configs))
    rounds = dict.fromkeys(_training(config) for config in configs)
    if len(rounds) == 1:
        algorithms = dict.fromkeys(config["method"]["algorithm"] for config in configs)
        parts = [*data, f"{', '.join(algorithms)}: {next(iter(rounds))}"]
    else:
        own = (f"{_data(config)}, {config['method']['algorithm']}: {_training(config)}" for config in configs)
        parts = list(dict.fromkeys(own))
    return f"ours: {'; '.join([*parts, *_grouped(configs)])}."


def _grouped(configs: list[dict[str, Any]]) -> list[str]:
    """How clients were grouped, where they were: the distances of their data and the number of clusters."""
    found = [config["method"].get("clustering") for config in configs]
    return list(dict.fromkeys(_distances(one) for one in found if one and one["graph"] != "none"))


def _distances(clustering: dict[str, Any]) -> str:
    otdd, fedwad = clustering["otdd"], clustering["otdd"]["fedwad"]
    encoder = f" of {otdd['encoder']['name']} codes" if otdd["encoder"] else ""
    how = f"K={fedwad['iterations']}, t {fedwad['t']}" if otdd["solver"] == "federated" else otdd["solver"]
    label = f"{otdd['covariance']} ({otdd['part']})"
    return f"clusters: {clustering['clusters']}, by distances{encoder} with {label}, {how}"


def _data(config: dict[str, Any]) -> str:
    task, limit = config["task"], config["task"].get("limit")
    on_images, model = task["kind"] == "images", config["model"]
    cut = f", at most {limit:,} {'training images' if on_images else 'rows per split'}" if limit else ""
    source = f"{task['name']} (task.source={task['source']}{cut})"
    if not on_images:
        source += f", texts of up to {task['max_length']} tokens{_context(task)}"
    own = "" if on_images else f" ({model['head']} head), weights: {model['weights']}, vocabulary: {model['vocab']}"
    return f"{source}, {_clients(config['partition'])}, {model['name']}{own}"


def _clients(partition: dict[str, Any]) -> str:
    """``50 clients by dirichlet (alpha 0.5, floor 10)``."""
    kind = partition["kind"]
    if kind == "centralised":
        return "one client with everything"
    if kind == "natural":
        return f"{partition['clients'] or 'all'} clients by natural (by {partition['by']})"
    others = {key: value for key, value in partition.items() if key not in ("kind", "clients", "groups")}
    extra = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in others.items())
    return f"{partition['clients']} clients by {kind}" + (f" ({extra})" if extra else "")


def _training(config: dict[str, Any]) -> str:
    training, method = config["training"], config["method"]
    if "aggregation" not in method:  # a probe of one model has no rounds
        return f"batches of {training['batch']} at rate {float(training['lr']):g}"
    optimiser = f", {training['optimiser']}" if training.get("optimiser", "sgd") != "sgd" else ""
    decay = f", weight decay {float(training['weight_decay']):g}" if training["weight_decay"] else ""
    momentum = f", momentum {float(training['momentum']):g}" if training["momentum"] else ""
    return (
        f"{training['rounds']} rounds of {training['participants']} clients, {_stage(training)}"
        f"{optimiser}{momentum}{decay}, {method['aggregation']} mean, engine {config['hardware']['engine']}"
    )
