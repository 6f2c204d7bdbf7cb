"""What of a distillation by loss terms names its run: see :mod:`knot_runner.config.settings.run_id`."""

from __future__ import annotations

from typing import Any

from knot_runner.config.strict import without

#: Settings that came later: at these values a run is what it was before.
POOL_DEFAULTS = {"view": "none", "synthesis": None}


def used_of_pool(used: dict[str, Any]) -> dict[str, Any]:
    """Of a distillation by loss terms: nothing is pretrained, the stage of teachers counts where any is trained, and
    ``auto_ratio`` where a weight is auto."""
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
    method = without(method, *(key for key, default in POOL_DEFAULTS.items() if method.get(key) == default))
    return {**used, "method": method, "training": without(used["training"], *unread)}


def _used_teacher(teacher: Any) -> Any:
    """A finished run is known by its id and the digest of its weights, wherever it lies."""
    return {key: teacher[key] for key in ("kind", "run", "weights")} if _is_run(teacher) else teacher


def _is_run(teacher: Any) -> bool:
    return isinstance(teacher, dict) and teacher.get("kind") == "run"
