"""Settings that came later than the run ids and the keys of shared artefacts: they enter both only off their default,
so that what was made before keeps its name."""

from __future__ import annotations

from typing import Any

from knot_runner.config.strict import without

#: Keys that came later -> their defaults: of rounds, of stages, of clients that are slow, of a distillation by terms.
TRAINING_DEFAULTS = {"optimiser": "sgd"}
STAGE_DEFAULTS = {
    "select": "best",
    "max_length": None,
    "limit": None,
    "optimiser": "adamw",
    "momentum": 0.0,
    "milestones": [],
    "decay": 0.1,
}
STRAGGLER_DEFAULTS = {"by": "seed"}
POOL_DEFAULTS = {"view": "none", "synthesis": None}


def off_defaults(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """``values`` less those at their value in ``defaults``."""
    return without(values, *(key for key, default in defaults.items() if values.get(key) == default))


def used_of_stage(stage: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings in use of a training stage: all that differ from ``STAGE_DEFAULTS``. ``decay`` counts only
    with milestones."""
    return off_defaults(stage if stage.get("milestones") else without(stage, "decay"), STAGE_DEFAULTS)


def used_of_pool(used: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings in use: without pretraining, with the teachers' stage if any is trained, and ``auto_ratio``
    if a weight is auto."""
    method = without(used["method"], "teacher")
    trained = any(not _is_run(teacher) for teacher in method["teachers"])
    unread = ["pretrain"] if trained else ["pretrain", "local"]
    method["teachers"] = [_used_teacher(teacher) for teacher in method["teachers"]]
    phases = method["schedule"].get("phases", [])
    if not phases:
        method["schedule"] = without(method["schedule"], "phases")
    losses = [method["terms"], *(phase["terms"] for phase in phases)]
    if not any(term.get("weight") == "auto" for terms in losses for term in terms.values()):
        method = without(method, "auto_ratio")
    return {**used, "method": off_defaults(method, POOL_DEFAULTS), "training": without(used["training"], *unread)}


def _used_teacher(teacher: Any) -> Any:
    """A finished run is known by its id and the digest of its weights, wherever it lies."""
    return {key: teacher[key] for key in ("kind", "run", "weights")} if _is_run(teacher) else teacher


def _is_run(teacher: Any) -> bool:
    return isinstance(teacher, dict) and teacher.get("kind") == "run"
