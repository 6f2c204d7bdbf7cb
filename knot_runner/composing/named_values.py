"""Reads the YAML files that a method names in its settings: models (``method.teachers`` of a distillation,
``method.models`` of clients with different architectures; a teacher may also be a finished run), loss terms, a
schedule, and a personalization."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from knot_runner.config.settings.families import FAMILIES
from knot_runner.records import CONFIG_FILE, MODEL_FILE, find_run, read_record, recorded_config, require_result
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError

#: Keys of a method that list models.
MODEL_LISTS = ("teachers", "models")
#: (group in ``conf/base``, name) -> the settings in that file; {} where there is none.
BaseValues = Callable[[str, str], Config]
#: Prefix of a teacher that is a finished run, before its id or folder.
RUN_PREFIX = "run:"


def with_models(config: Config, model_of: Callable[[str], Config]) -> Config:
    """A composed, plain ``config`` with every model name of its method replaced by the model's settings, which
    ``model_of`` reads from the YAML file of that name. Mappings are kept; a teacher may be a finished run (``run:`` and
    its id or folder, :func:`teacher_run`). Raises :class:`UserError` naming the key."""
    method = config.get("method")
    if not isinstance(method, dict):
        return config
    for key in MODEL_LISTS:
        if isinstance(method.get(key), list):
            models = [_settings(config, key, number, model_of) for number in range(len(method[key]))]
            method = {**method, key: models}
    return {**config, "method": method}


def with_base_values(config: Config, base_values: BaseValues) -> Config:
    """Return a composed, plain ``config`` whose method has, for each setting of a loss term, a schedule or a
    personalization that is not set, the value of its file in ``conf/base``."""
    method = config.get("method")
    if not isinstance(method, dict):
        return config
    method = dict(_with_terms(method, base_values))
    for key in ("schedule", "personalization"):
        part = method.get(key)
        if isinstance(part, dict):
            method[key] = {**base_values(key, str(part.get("kind"))), **part}
    if "server_distillation" in method:
        method["server_distillation"] = _with_terms(method["server_distillation"], base_values)
    schedule = method.get("schedule")
    if isinstance(schedule, dict) and isinstance(schedule.get("phases"), list):
        schedule["phases"] = [_with_terms(phase, base_values) for phase in schedule["phases"]]
    return {**config, "method": method}


def _with_terms(settings: Any, base_values: BaseValues) -> Any:
    """Return ``settings`` with a value for every setting of its ``terms``, if it has any."""
    if not isinstance(settings, dict) or not isinstance(settings.get("terms"), dict):
        return settings
    filled = dict(settings["terms"])
    for name, options in filled.items():
        if isinstance(options, dict):
            filled[name] = {**base_values("term", str(name)), **options}
    return {**settings, "terms": filled}


def _settings(config: Config, key: str, number: int, model_of: Callable[[str], Config]) -> Config:
    """Settings of model ``number`` in the method's list ``key``."""
    model, where = config["method"][key][number], f"method.{key}[{number}]"
    if isinstance(model, str):
        try:
            if key == "teachers" and model.startswith(RUN_PREFIX):
                model = teacher_run(model.removeprefix(RUN_PREFIX), config)
            else:
                model = model_of(model)
        except UserError as problem:
            raise UserError(str(problem), where) from None
    if not isinstance(model, dict) or not isinstance(model.get("kind"), str):
        raise UserError(f"{model!r} is not the name of a model", where)
    return model


def teacher_run(word: str, config: Config) -> Config:
    """Settings of a finished run as a teacher: its id, the digest of its model's weights, its folder and the model's
    settings.

    ``word``: the run's folder, or its id below ``paths.output_dir`` of ``config``. Reads only text and digests;
    all must match the seals in the run's result. Raises :class:`UserError`.
    """
    out = Path(str((config.get("paths") or {}).get("output_dir", "outputs"))).expanduser()
    folder = find_run(word, out)
    result = require_result(folder)
    family = FAMILIES.get(result.kind)
    if family is None or not family.ends_with_model:
        raise UserError(f"is a run of {result.method}, which ends with no model", folder)
    if result.status != "done":
        raise UserError("diverged, so it has no model", folder)
    for name in (MODEL_FILE, CONFIG_FILE):
        read_record(folder, result, name)
    model = recorded_config(folder).get("model")
    if not isinstance(model, dict):
        raise UserError("names no model", folder / CONFIG_FILE)
    run = result.run_id
    return {
        "kind": "run",
        "name": f"run {run}",
        "run": run,
        "weights": result.digest[MODEL_FILE],
        "folder": str(folder.absolute()),
        "model": model,
    }
