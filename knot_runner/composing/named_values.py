"""Reads the YAML files that a method names in its settings: models (``method.teachers`` of a distillation,
``method.models`` of clients with different architectures; a teacher may also be a finished run), loss terms, a
schedule, and a personalization."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from knot_runner.config.settings.checks.fit import TEACHERS
from knot_runner.config.settings.families import FAMILIES, family_of_algorithm
from knot_runner.config.settings.methods.distill import SCHEDULE_SETTINGS, SYNTHESIS_SETTINGS
from knot_runner.config.settings.methods.knot import LOSS_SETTINGS
from knot_runner.config.settings.methods.personalization import PERSONALIZATION_SETTINGS
from knot_runner.config.settings.methods.terms import TERM_SETTINGS
from knot_runner.config.settings.run_id import kind_of
from knot_runner.records import CONFIG_FILE, MODEL_FILE, find_run, read_record, recorded_config, require_result
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError

#: Keys of a method that list models.
MODEL_LISTS = ("teachers", "models")
#: Part of a method that has files in ``conf/base`` -> its key that names one.
TAGS = {"loss": "name", "schedule": "kind", "synthesis": "kind", "personalization": "kind"}
#: Group in ``conf/base`` -> the classes of its settings.
CLASSES = {
    "loss": LOSS_SETTINGS,
    "schedule": SCHEDULE_SETTINGS,
    "synthesis": SYNTHESIS_SETTINGS,
    "personalization": PERSONALIZATION_SETTINGS,
    "term": TERM_SETTINGS,
}
#: (group in ``conf/base``, name) -> the settings in that file; {} where there is none.
BaseValues = Callable[[str, str], Config]
#: Prefix of a teacher that is a finished run, before its id or folder.
RUN_PREFIX = "run:"


def with_models(config: Config, model_of: Callable[[str], Config]) -> Config:
    """A composed, plain ``config`` with every model name of its method replaced by the model's settings, which
    ``model_of`` reads from the YAML file of that name. Mappings are kept; a teacher may be a finished run (``run:`` and
    its id or folder, :func:`teacher_run`). Raises :class:`UserError` naming the key."""
    method, task = config.get("method"), config.get("task")
    if not isinstance(method, dict) or not isinstance(task, dict) or kind_of(task) not in TEACHERS:
        return config
    for key in MODEL_LISTS:
        if isinstance(method.get(key), list):
            models = [_settings(config, key, number, model_of) for number in range(len(method[key]))]
            method = {**method, key: models}
    return {**config, "method": method}


def with_partition(config: Config, values_of: Callable[[str, str], Config]) -> Config:
    """Return a composed, plain ``config`` with ``partition=natural`` where its method needs clients of texts and no
    partition is chosen; ``values_of`` reads the YAML file of a group and a name."""
    task, method, partition = config.get("task"), config.get("method"), config.get("partition") or {}
    if not isinstance(task, dict) or not isinstance(method, dict) or not isinstance(partition, dict):
        return config
    family = family_of_algorithm(str(method.get("algorithm")))
    if kind_of(task) != "texts" or family.training != "rounds" or not family.trains or "kind" in partition:
        return config
    return {**config, "partition": {**values_of("partition", "natural"), **partition}}


def with_base_values(config: Config, base_values: BaseValues) -> Config:
    """Return a composed, plain ``config`` whose method has, for each setting of a loss, a loss term, a schedule, a
    synthesis or a personalization that is not set, the value of its file in ``conf/base``. A word stands for the whole
    file: ``method.personalization=soup``."""
    method = config.get("method")
    if not isinstance(method, dict):
        return config
    method = _filled(method, TAGS, base_values)
    distillation, schedule = method.get("server_distillation"), method.get("schedule")
    if isinstance(distillation, dict):
        method["server_distillation"] = _filled(distillation, {"loss": "name"}, base_values)
    if isinstance(schedule, dict) and isinstance(schedule.get("phases"), list):
        phases = [_filled(phase, {}, base_values) if isinstance(phase, dict) else phase for phase in schedule["phases"]]
        method["schedule"] = {**schedule, "phases": phases}
    return {**config, "method": method}


def _filled(settings: Config, tags: dict[str, str], base_values: BaseValues) -> Config:
    """Return ``settings`` with the values of files: of its parts, by their ``tags``, and of its loss terms."""
    filled = dict(settings)
    for key, tag in tags.items():
        part = settings.get(key)
        if isinstance(part, str):
            filled[key] = dict(base_values(key, part)) or part
        if isinstance(part, dict):
            filled[key] = _completed(part, key, str(part.get(tag)), base_values)
    terms = settings.get("terms")
    for name, options in terms.items() if isinstance(terms, dict) else ():
        if isinstance(options, dict):
            filled["terms"] = {**filled["terms"], name: _completed(options, "term", str(name), base_values)}
    return filled


def _completed(values: Config, group: str, name: str, base_values: BaseValues) -> Config:
    """Return ``values`` with those that are not set from ``base/GROUP/NAME.yaml``, which is read only then."""
    cls = CLASSES[group].get(name)
    if cls is not None and values.keys() >= {field.name for field in dataclasses.fields(cls)}:
        return values
    return {**base_values(group, name), **values}


def _settings(config: Config, key: str, number: int, model_of: Callable[[str], Config]) -> Config:
    """Settings of model ``number`` in the method's list ``key``."""
    model, where = config["method"][key][number], f"method.{key}[{number}]"
    if model is None and key == "teachers":
        model = TEACHERS[kind_of(config["task"])]
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
