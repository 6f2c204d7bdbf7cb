"""The record of a run's settings, and the run id: a digest of the settings that can change the results."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import TYPE_CHECKING, Any

from knot_runner.config.plugins import as_written, load
from knot_runner.config.settings.families import TASK_KINDS, family_of_algorithm
from knot_runner.config.settings.partition import SHARE_KEYS
from knot_runner.config.strict import digest, dotted_leaves, without
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings

#: Groups and keys that do not affect the numbers of a run.
NOT_IN_RUN_ID = ("hardware", "tracker", "paths", "sweep", "report", "fail_fast", "arm")
#: Keys of ``hardware`` in the ids of federated runs, because engines agree only up to rounding.
HARDWARE_IN_RUN_ID = ("engine", "precision")
#: (key, value) of a method's setting -> other keys of the method that have no effect with this value. Claims may still
#: name these keys.
UNREAD_KEYS = {("solver", "exact"): {"fedwad", "precision"}, ("graph", "none"): {"otdd", "clusters", "scale"}}
#: Groups whose ``name`` is not part of the run id, unlike the names of tasks and methods.
LABELED = ("model", "training", "fleet", "privacy")


def settings_record(settings: Settings) -> Config:
    """Return all settings of a run as plain data, in the form of ``config.yaml``.

    :func:`knot_runner.config.settings.run.build_run` builds equal settings from this data.
    """
    record = without(dataclasses.asdict(settings), "notes")
    shares = record.pop("shares") or {}
    shares |= record.pop("held_out") or {}
    if settings.partition is not None:
        record["partition"] |= dict.fromkeys(SHARE_KEYS) | shares
    return record


def run_id(record: Config) -> str:
    """Return the run id, which is also the name of the run's folder.

    Args:
        record: The settings, as :func:`settings_record` returns them.
    """
    return digest(_not_null(counted_settings(record)), 12)


def counted_settings(record: Config) -> Config:
    """Return the settings that can change the results of a run.

    Args:
        record: The settings, as :func:`settings_record` returns them.
    """
    method = record["method"]
    algorithm = method["algorithm"]
    family = family_of_algorithm(algorithm)
    if algorithm in family.settings:  # which settings of a plug-in have an effect is unknown
        method = _read_settings(method)
        if family.counted:
            method = load(family.counted)(method)
    counted = without(record, *NOT_IN_RUN_ID) | {"method": method}
    for group in LABELED:
        counted[group] = without(record.get(group) or {}, "name") or None
    counted["plugins"] = list(map(as_written, record.get("plugins") or []))
    if family.training == "rounds" and method.get("server_distillation") is None:
        counted["transfer"] = None  # not read
    if family.training == "rounds" and family.trains:
        counted["hardware"] = _counted_hardware(record["hardware"])
    return counted


def kind_of(task: Config) -> str:
    """Return the key of :data:`TASK_KINDS` for the settings ``task``. For every text task, the key is "texts"."""
    kind = str(task.get("kind"))
    if kind not in TASK_KINDS:
        return "texts"
    return kind


def _read_settings(settings: Config) -> Config:
    """Return the settings of a method without :data:`UNREAD_KEYS`, at any depth."""
    read = settings
    for (key, value), names in UNREAD_KEYS.items():
        if settings.get(key) == value:
            read = without(read, *names)
    return read | {key: _read_settings(part) for key, part in read.items() if isinstance(part, dict)}


def _counted_hardware(hardware: Config) -> Config:
    counted = {key: hardware[key] for key in HARDWARE_IN_RUN_ID}
    if counted["engine"] in ("stacked", "auto"):  # rounding depends on the number of stacked clients
        counted["stack"] = hardware["stack"]
    return counted


def _not_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _not_null(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_not_null(part) for part in value]
    return value


#: Pattern of the names of environment variables that hold secrets, and minimum length of a secret.
SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
MIN_LENGTH = 8


def refuse_secrets(config: Config) -> None:
    """Check that no setting in ``config`` contains the value of a secret environment variable.

    A variable is secret if its name contains a word such as KEY or TOKEN.

    Raises:
        UserError: A setting contains the value of a secret variable. The message does not quote the value.
    """
    for name, value in os.environ.items():
        if not SECRET_NAMES.search(name) or len(value) < MIN_LENGTH:
            continue
        for key, text in dotted_leaves(config):
            if isinstance(text, str) and value in text:
                why = f"contains the value of the environment variable {name}. Records and trackers would keep it"
                raise UserError(why, key, hint="Remove it: services read the variable themselves")
