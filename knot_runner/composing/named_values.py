"""Functions that complete a composed config: they replace names by values, choose the hardware, and read arms.

A method's settings may name a model, loss, loss term, schedule, synthesis or personalization. A YAML file has the
values for each name. Arms are the named sets of overrides in a preset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from knot_runner.composing.overrides import message_text, parse_overrides, typed_line
from knot_runner.config.devices import first_device, is_host
from knot_runner.config.plugins import load
from knot_runner.config.settings.checks import TEACHERS
from knot_runner.config.settings.families import FAMILIES, Family, family_of_algorithm
from knot_runner.config.settings.run import ARM
from knot_runner.config.settings.run_id import kind_of
from knot_runner.records import CONFIG_FILE, MODEL_FILE, find_run, read_record, recorded_config, require_result
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, unknown

#: Keys of a method that list models.
MODEL_LISTS = ("teachers", "models")
#: Part of a method that has files in ``conf/base`` -> the key of this part that names a file.
TAGS = {"loss": "name", "schedule": "kind", "synthesis": "kind", "personalization": "kind"}
#: Dotted key of such a part -> the key of this part that names a file.
PART_TAGS = {"method.server_distillation.loss": "name", **{f"method.{part}": tag for part, tag in TAGS.items()}}
#: Parts of a method that hold further parts.
NESTED = ("server_distillation", "schedule")
#: Group in ``conf/base`` -> MODULE:TABLE, where a module of ``config/settings/methods`` has the table of the settings.
CLASSES = {
    "loss": "knot:LOSS_SETTINGS",
    "schedule": "distill:SCHEDULE_SETTINGS",
    "synthesis": "distill:SYNTHESIS_SETTINGS",
    "personalization": "personalization:PERSONALIZATION_SETTINGS",
    "term": "terms:TERM_SETTINGS",
}
#: Function (group, name) -> the settings in the group's file NAME.yaml.
Values = Callable[[str, str], Config]
#: Prefix of the id or folder of a finished run that is used as a teacher.
RUN_PREFIX = "run:"


def with_named_values(config: Config, values_of: Values, base_values: Values) -> Config:
    """Return ``config`` with the names in the method's settings replaced by values from YAML files.

    - The name of a model is replaced by the settings of the model. A teacher given as ``run:ID`` or
      ``run:FOLDER`` is replaced by the result of :func:`teacher_run`.
    - The name of a loss, schedule, synthesis or personalization is replaced by the values in
      ``conf/base/GROUP/NAME.yaml``.
    - Missing values of a loss, loss term, schedule, synthesis or personalization also come from this file.
    - On a text task, a method with clients gets the partition ``natural`` if no partition is selected.

    Args:
        config: The composed settings as plain values.
        values_of: Function ``(group, name)`` that returns the values in ``conf/GROUP/NAME.yaml``. It raises
            :class:`UserError` for an unknown name.
        base_values: Function ``(group, name)`` that returns the values in ``conf/base/GROUP/NAME.yaml``, or {} if the
            file does not exist.
    """
    task = config.get("task")
    method = config.get("method")
    partition = config.get("partition") or {}
    if not isinstance(task, dict) or not isinstance(method, dict):
        return config
    kind = kind_of(task)
    family = family_of_algorithm(str(method.get("algorithm")))
    has_clients = family.training == "rounds" and family.trains
    if kind == "texts" and has_clients and isinstance(partition, dict) and "kind" not in partition:
        config = {**config, "partition": {**values_of("partition", "natural"), **partition}}
    method = _filled(method, TAGS, base_values)
    for key in MODEL_LISTS:
        if kind in TEACHERS and isinstance(method.get(key), list):
            method[key] = [
                _model(model, f"method.{key}[{number}]", config, values_of) for number, model in enumerate(method[key])
            ]
    return {**config, "method": method}


def _filled(settings: Any, tags: dict[str, str], base_values: Values) -> Any:
    """Return ``settings`` with missing values of its loss terms, and of the parts that ``tags`` name, from files.

    A part in :data:`NESTED` may itself have a loss, loss terms, or phases with loss terms.
    """
    if not isinstance(settings, dict):  # building the settings reports the error
        return settings
    filled = {}
    for key, part in settings.items():
        if key in tags and isinstance(part, str):
            part = {tags[key]: part}
        if key in tags and isinstance(part, dict):
            part = _completed(part, key, str(part.get(tags[key])), base_values)
        if key in NESTED:
            part = _filled(part, {"loss": "name"}, base_values)
        if key == "phases" and isinstance(part, list):
            part = [_filled(phase, {}, base_values) for phase in part]
        if key == "terms" and isinstance(part, dict):
            part = {name: _completed(options, "term", str(name), base_values) for name, options in part.items()}
        filled[key] = part
    return filled


def _completed(values: Any, group: str, name: str, base_values: Values) -> Any:
    """Return ``values`` plus missing values from ``base/GROUP/NAME.yaml``. The file is read only if needed."""
    if not isinstance(values, dict):  # building the settings reports the error
        return values
    cls = load(f"knot_runner.config.settings.methods.{CLASSES[group]}").get(name)
    if cls is not None and values.keys() >= cls.__dataclass_fields__.keys():
        return values
    return {**base_values(group, name), **values}


def _model(model: object, where: str, config: Config, values_of: Values) -> Config:
    """Return the settings of the ``model`` that the method's setting ``where`` names."""
    is_teacher = where.startswith("method.teachers")
    if model is None and is_teacher:
        model = TEACHERS[kind_of(config["task"])]
    if isinstance(model, str):
        try:
            if is_teacher and model.startswith(RUN_PREFIX):
                model = teacher_run(model.removeprefix(RUN_PREFIX), config)
            else:
                model = values_of("model", model)
        except UserError as problem:
            raise UserError(str(problem), where) from None
    if not isinstance(model, dict) or not isinstance(model.get("kind"), str):
        raise UserError(f"expected the name of a model, got {model!r}", where)
    return model


def teacher_run(word: str, config: Config) -> Config:
    """Return the settings of a teacher that is a finished run.

    The settings hold the run's id and folder, the checksum of the weights, and the settings of the model. The run's
    weights file and settings file must match the checksums in its result.

    Args:
        word: The folder of the run, or the id of a run below ``paths.output_dir``.
        config: The composed settings, with ``paths.output_dir``.

    Raises:
        UserError: The run does not exist, has no model, or does not match its checksums.
    """
    out = Path(str((config.get("paths") or {}).get("output_dir", "outputs"))).expanduser()
    folder = find_run(word, out)
    result = require_result(folder)
    family = FAMILIES.get(result.kind)
    if family is None or not family.ends_with_model:
        raise UserError(
            f"method={result.method} saves no model. Use a run with one global model or one student", folder
        )
    if result.status != "done":
        raise UserError("the run diverged, so it has no model. Use another run", folder)
    for name in (MODEL_FILE, CONFIG_FILE):
        read_record(folder, result, name)
    model = recorded_config(folder).get("model")
    if not isinstance(model, dict):
        raise UserError("the settings of the model are missing", folder / CONFIG_FILE)
    return {
        "kind": "run",
        "name": f"run {result.run_id}",
        "run": result.run_id,
        "weights": result.digest[MODEL_FILE],
        "folder": str(folder.absolute()),
        "model": model,
    }


# ----------------------------------------------------------------------------------------------------------- fitting


def composed_family(config: DictConfig) -> Family:
    """Return the family of the method in a composed ``config``."""
    method = node_of(config, "method")
    algorithm = None
    if OmegaConf.is_dict(method):
        algorithm = node_of(method, "algorithm")
    return family_of_algorithm(str(algorithm))


def node_of(config: DictConfig, key: str) -> Any:
    """Return the value of ``key`` in ``config``; None if ``key`` is missing or the value is an interpolation."""
    if key not in list(config) or OmegaConf.is_interpolation(config, key):
        return None
    return config.get(key)


#: Overrides that select the CPU without naming a file of ``hardware``.
CPU_VALUES = ("hardware.device=cpu", "hardware.engine=lean")


def chosen_hardware(config: DictConfig, typed: Sequence[str]) -> tuple[str, str]:
    """Return the override that replaces ``hardware=auto``, and a message about the chosen hardware.

    The override is "" if the CPU is chosen. Override and message are both "" if ``config`` does not
    select ``hardware=auto``.

    Args:
        config: The composed config, including its part ``hydra``.
        typed: The overrides of the command line.
    """
    if config.hydra.runtime.choices.get("hardware") != "auto":
        return "", ""
    device = first_device()
    if is_host(device):
        return "", "hardware: CPU (no GPU found)"
    family = composed_family(config)
    if not family.on_gpu:
        return "", f"hardware: CPU (methods of kind {family.name!r} do not use {device.upper()})"
    for value in CPU_VALUES:
        if value in typed:
            return "", f"hardware: CPU ({value})"
    return f"hardware={device}", f"hardware: {device.upper()}"


# -------------------------------------------------------------------------------------------------------------- arms


#: Name of an arm -> overrides of the arm.
Arms = dict[str, list[Override]]


def read_arms(mapping: object) -> Arms:
    """Return the arms of a preset. Arms are named sets of overrides.

    Args:
        mapping: The value of ``sweep.arms``: a dict from the name of each arm to its overrides.

    Raises:
        UserError: ``mapping`` is not a dict of dicts, an override is invalid, or an override has several values.
    """
    if not isinstance(mapping, dict) or not all(isinstance(of_arm, dict) for of_arm in mapping.values()):
        raise UserError("expected a mapping of names to overrides, such as near: {method: finetune}", "sweep.arms")
    arms = {}
    for name, of_arm in mapping.items():
        words = []
        for key, value in of_arm.items():
            if not key.startswith("~"):
                key = f"{key}={_text(value)}"
            words.append(key)
        arms[str(name)] = overrides = parse_overrides(words)
        for override in overrides:
            if override.is_sweep_override():
                line = message_text(typed_line(override))
                raise UserError(f"{line} has several values. Define one arm for each value", f"sweep.arms.{name}")
    return arms


def arm_overrides(names: Iterable[str], arms: Arms, others: Iterable[Override]) -> list[list[str]]:
    """Return one list of overrides for each arm in ``names``. Each list begins with ``arm=NAME``.

    Raises:
        UserError: An arm is unknown, or sets a key that an override in ``others`` also sets.
    """
    keys = {_key(typed_line(override)) for override in others}
    overrides = []
    for name in names:
        if not arms:
            raise UserError(
                "no arms are defined. Choose a preset that defines sweep.arms", f"{ARM}={message_text(name)}"
            )
        if name not in arms:
            raise unknown(ARM, message_text(name), arms)
        lines = list(map(typed_line, arms[name]))
        for line in lines:
            if _key(line) in keys:
                problem = f"{ARM}={name} already sets {message_text(line)}. Use other arms, or do not override this key"
                raise UserError(problem, _key(line))
        overrides.append([f"{ARM}={name}", *lines])
    return overrides


def without_arm(overrides: Iterable[str]) -> list[str]:
    """Return ``overrides`` without ``arm=NAME``. Hydra does not know this key."""
    return [override for override in overrides if not override.startswith(f"{ARM}=")]


def _key(line: str) -> str:
    return line.partition("=")[0].lstrip("+~")


def _text(value: object) -> str:
    """Return ``value`` in the grammar of overrides; text is unchanged."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_text(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
