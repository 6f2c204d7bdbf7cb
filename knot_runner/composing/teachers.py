"""Finished runs as teachers of a distillation (``method.teachers``): the settings that describe such a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knot_runner.config.settings.families import family_of_result
from knot_runner.records import CONFIG_FILE, MODEL_FILE, find_run, is_sealed, read_record, read_result, recorded_config
from knot_runner.util.errors import UserError


def teacher_run(word: str, config: dict[str, Any]) -> dict[str, Any]:
    """Settings of a finished run as a teacher: its id, the digest of its model's weights, its folder and the model's
    settings.

    ``word``: the run's folder, or its id below ``paths.out`` of ``config``. Reads only text and digests;
    all must match the seals in the run's result. Raises :class:`UserError`.
    """
    out = Path(str((config.get("paths") or {}).get("out", "outputs"))).expanduser()
    folder = find_run(word, out)
    result = read_result(folder)
    if result is None:
        raise UserError(f"{folder}: is no finished run: it has no result.json, or one that is damaged")
    family = family_of_result(result)
    if family is None or not family.ends_with_model:
        raise UserError(f"{folder}: is a run of {result.get('method')}, which ends with no model")
    if result.get("status") != "done":
        raise UserError(f"{folder}: diverged, so it has no model")
    if not is_sealed(result):
        raise UserError(f"{folder}: does not hold the digests of its files; repeat the run with this version")
    for name in (MODEL_FILE, CONFIG_FILE):
        read_record(folder, result, name)
    model = recorded_config(folder).get("model")
    if not isinstance(model, dict):
        raise UserError(f"{folder / CONFIG_FILE}: names no model")
    run = str(result["run_id"])
    return {
        "kind": "run",
        "name": f"run {run}",
        "run": run,
        "weights": result["digest"][MODEL_FILE],
        "folder": str(folder.absolute()),
        "model": model,
    }
