"""One line under a table: with which of the settings that matter our numbers were made, read from the jobs."""

from __future__ import annotations

from typing import Any


def made_with(configs: list[dict[str, Any]]) -> str:
    """The settings of a preset's jobs (composed configs) in words; where tasks differ, the first task's."""
    first = configs[0]
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
