"""Parsing of overrides in Hydra's grammar.

Every error message is one line that names the key.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import yaml
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    IntervalSweep,
    Override,
    OverrideType,
    QuotedString,
    RangeSweep,
)
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, ListConfig, OmegaConf, grammar_parser
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from knot_runner.config.plugins import found_from
from knot_runner.util.config_yaml import choices
from knot_runner.util.errors import UserError, not_installed, unknown

#: Maximum number of jobs of one command; the largest preset has 720.
MAX_JOBS = 10_000
#: Characters that mean something in Hydra's grammar.
RESERVED = frozenset("'\"`,=:;[](){}\\$<>#&!^")


def typed_line(override: Override) -> str:
    """Return the text of ``override`` as the user typed it."""
    return override.input_line or ""


def preset_in(words: Iterable[str]) -> str | None:
    """Return the typed value of the override ``experiment=VALUE``; None if ``words`` has no such override."""
    for word in words:
        if word.startswith("experiment="):
            return word.partition("=")[2]
    return None


def parse_overrides(arguments: Sequence[str]) -> list[Override]:
    """Parse overrides in Hydra's grammar.

    Raises:
        UserError: An override cannot be read or is not supported. The message names its key.
    """
    return [copy.copy(_parsed(argument)) for argument in arguments]


@functools.lru_cache(maxsize=1000)  # overrides are parsed several times, which is slow
def _parsed(argument: str) -> Override:
    key, _, value = argument.partition("=")
    readable = argument
    override = None
    if not value.isascii() and RESERVED.isdisjoint(value):  # Hydra's grammar has ASCII letters only
        readable = f"{key}='{value}'"
    with contextlib.suppress(HydraException, GrammarParseError, ValueError, RecursionError):
        if "${" in value:
            grammar_parser.parse(value)
        (override,) = OverridesParser.create().parse_overrides([readable])
    if override is None or not override.key_or_group:
        raise _unreadable(argument)
    key = override.key_or_group
    if is_hydras(key) and key not in SUPPORTED and not key.startswith(f"{LAUNCHER}."):
        hint = f"The supported keys are {LAUNCHER_GROUP}, {LAUNCHER}.* and {BATCH}"
        raise UserError("Hydra key not supported", key, hint=hint)
    if key in GROUPS:
        _check_names(override, message_text(argument))
    return override


def _check_names(override: Override, line: str) -> None:
    """Raise :class:`UserError` if ``override`` sets a group to a value that is not a name."""
    value = override.value()
    group = override.key_or_group
    if override.is_delete():
        if value is not None:
            raise UserError(f"takes no value. Use ~{group}", line)
        return
    names: Sequence[object] = [value]
    if isinstance(value, ChoiceSweep):
        names = value.list
    for name in names:
        if not isinstance(name, str | QuotedString | Glob):
            raise UserError(f"expected a name. Use {group}=NAME, or {group}=NAME,NAME to run one job per name", line)


def _unreadable(argument: str) -> UserError:
    key, equals, value = argument.partition("=")
    if not key or not equals:
        return UserError("expected key=value", f"{message_text(argument)!r}")
    hint = "Correct the value. To use the value as text, quote it, as in 'key=\"a, b\"'"
    return UserError(f"cannot read {message_text(value)!r}", message_text(key), hint=hint)


def last_counts(overrides: Sequence[Override]) -> list[Override]:
    """Return ``overrides`` with only the last override of each key.

    All additions ``+KEY``, deletions ``~KEY``, and overrides whose value is a mapping are kept.
    """
    kept: list[Override] = []
    changed = set()
    for override in reversed(overrides):
        key = override.key_or_group, override.package
        if key not in changed or override.type != OverrideType.CHANGE or isinstance(override.value(), dict):
            kept.append(override)
        changed.add(key)
    return kept[::-1]


def values_of(override: Override, config_dir: str | None) -> list[str] | None:
    """Return the values of an override with several values, each as text; None for an override with a single value.

    Raises:
        UserError: The override has no values, more than :data:`MAX_JOBS` values, or an interval of values.
    """
    value: Any = override.value()
    line = message_text(typed_line(override))
    if isinstance(value, Glob):
        names = value.filter(choices(override.key_or_group, config_dir))
        if not names:
            raise UserError("no name matches. Run 'knot-runner ls GROUP' to list the names of a group", line)
        return names
    if isinstance(value, IntervalSweep):
        raise UserError("intervals are not supported. Use range(0,5) or a list of values", line)
    if not override.is_sweep_override():
        return None
    if isinstance(value, RangeSweep):
        _check_range(line, value)
    try:
        return list(override.sweep_string_iterator())
    except (HydraException, OmegaConfBaseException, ValueError, TypeError):
        raise _unreadable(typed_line(override)) from None


def _check_range(line: str, values: RangeSweep) -> None:
    start, stop, step = map(float, (values.start, values.stop, values.step))
    count = 0
    if step and math.isfinite(start + stop + step):
        count = math.ceil((stop - start) / step)
    if count <= 0:
        raise UserError("the range is empty or endless. Use, for example, range(0,5) for 0,1,2,3,4", line)
    check_count(line, count)


def check_count(line: str, jobs: int) -> None:
    """Check that the number of jobs is at most :data:`MAX_JOBS`.

    Args:
        line: The override with which the error message begins.
        jobs: The number of jobs.

    Raises:
        UserError: There are too many jobs.
    """
    if jobs > MAX_JOBS:
        raise UserError(f"the whole command has at least {jobs:,} jobs. Use at most {MAX_JOBS:,}", line)


# --------------------------------------------------------------------------------------------------- override errors


#: Groups of the config, each with a folder of choices in ``conf/``.
GROUPS = (
    "task", "partition", "transfer", "model", "encoder", "method", "training", "fleet", "privacy", "hardware",
    "tracker", "experiment",
)  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\ud800-\udfff]")
#: Type that an error of Hydra names -> description of the expected value.
_TYPES = {"Integer": "an integer", "Float": "a number", "Boolean": "true or false"}
#: Verb in an error of Hydra -> verb of our message.
_ACTIONS = {"override": "replace", "delete from config": "delete"}


def message_text(text: str, most: int = 60) -> str:
    """Return ``text`` for a message: one line of at most ``most`` characters, without invisible characters."""
    text = _CONTROL.sub("?", text)
    if len(text) > most:
        return f"{text[: most - 3]}..."
    return text


def one_line(text: str) -> str:
    """Return ``text`` as one line of at most 200 characters."""
    return message_text(" ".join(text.split()), 200)


def missing_config(problem: MissingConfigException, config_dir: str | None) -> UserError:
    """Return the error for an unknown choice, such as the misspelled ``method=sinkhron_e``."""
    text = str(problem)
    wanted = problem.missing_cfg_file or ""
    in_file = re.match(r"In '([^']*)': Could not (?:find|load)", text)
    if in_file and config_dir and (path := Path(config_dir) / f"{in_file.group(1)}.yaml").is_file():
        return UserError(f"its defaults name {message_text(wanted)!r}, which does not exist", path)
    launcher = wanted.removeprefix("hydra/launcher/")
    if launcher != wanted:
        if LAUNCHERS.get(launcher):
            return not_installed(f"hydra/launcher={launcher}", LAUNCHERS[launcher])
        return unknown("hydra/launcher", message_text(launcher), LAUNCHERS)
    group, _, name = wanted.partition("/")
    if group not in GROUPS:
        return UserError(one_line(text))
    return unknown(group, message_text(name), choices(group, config_dir), f"knot-runner ls {group}")


def bad_override(text: str, overrides: list[str]) -> str:
    """Return the error message for an override that Hydra refuses.

    Args:
        text: Hydra's error message.
        overrides: The overrides that the returned message quotes if ``text`` is empty.
    """
    if appended := re.search(r"(?:An item is already at '|Multiple values for )([\w.]*\w)", text):
        return f"+{appended.group(1)}: the key already exists. Use {appended.group(1)}=VALUE without +"
    if merging := re.search(r"Error merging override (.*)", text):
        why = "this value is not supported here"
        if expected := re.search(r"could not be converted to (Integer|Float|Boolean)\b", text):
            why = f"expected {_TYPES[expected[1]]}"
        return f"{message_text(merging.group(1))}: {why}"
    if key := re.search(r"Could not (override|delete from config)[^']*'([^']*)'", text):
        name = message_text(key.group(2).split("=", 1)[0])
        hint = ""
        if name in GROUPS:
            hint = f". Use +{name}@KEY=NAME"
        return f"{name}: no such key to {_ACTIONS[key.group(1)]}{hint}"
    return one_line(text) or f"{message_text(' '.join(overrides))}: cannot be composed"


# ---------------------------------------------------------------------------------------------------------- own yaml


def search_path(config_dir: str | None) -> list[str]:
    """Return a list with the override that adds ``config_dir`` to Hydra's search path; [] without ``config_dir``."""
    if not config_dir:
        return []
    Plugins.instance().register(OwnYaml)
    return [f"hydra.searchpath=['{OwnYaml.scheme()}://{quote(str(Path(config_dir).resolve()))}']"]


class OwnYaml(ConfigSource):
    """A Hydra config source for the user's folder of YAML files.

    If a YAML file names a plug-in, the path of the plug-in is relative to the folder of the YAML file.
    """

    @staticmethod
    def scheme() -> str:
        """Return "own". The URLs of this source have the form ``own://FOLDER``."""
        return "own"

    def load_config(self, config_path: str) -> ConfigResult:
        """Load the YAML file ``<config_path>.yaml``.

        Raises:
            UserError: The file is invalid. The message names the file and the line.
        """
        path = self._file(config_path)
        try:
            header = self._get_header_dict(path.read_text(encoding="utf-8"))
            config = OmegaConf.load(path)
        except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError, OSError) as problem:
            mark = getattr(problem, "problem_mark", None)
            line = ""
            if mark:
                line = f":{mark.line + 1}"
            text = getattr(problem, "problem", None) or str(problem)
            raise UserError(message_text(" ".join(text.split()), 160), f"{path}{line}") from None
        if isinstance(config, DictConfig) and isinstance(config.get("plugins"), ListConfig):
            for number, name in enumerate(config.plugins):
                if isinstance(name, str):
                    config.plugins[number] = found_from(path.parent, name)
        return ConfigResult(self.provider, self.full_path(), config, header)

    def available(self) -> bool:
        """Return True. The folder of this source always exists."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Return whether ``config_path`` is a folder."""
        return Path(unquote(self.path), config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Return whether ``<config_path>.yaml`` is a file."""
        return self._file(config_path).is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return [] instead of the names of config files. Hydra lists these names only in its own error messages."""
        return []  # Hydra would list the names in messages, which ours replace

    def _file(self, config_path: str) -> Path:
        return Path(unquote(self.path), f"{config_path}.yaml")


# -------------------------------------------------------------------------------------------------------- hydra keys


#: Launcher of a sweep -> the extra of the package that installs the launcher; "" if no extra is needed.
LAUNCHERS = {"basic": "", "joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit"}
LAUNCHER_GROUP = "hydra/launcher"
LAUNCHER = "hydra.launcher"
BATCH = "hydra.sweeper.max_batch_size"
#: The primary config; ``--config-name=NAME`` sets it.
CONFIG_NAME = "hydra.job.config_name"
SUPPORTED = (LAUNCHER_GROUP, BATCH, CONFIG_NAME)


def is_hydras(key: str) -> bool:
    """Return whether ``key`` belongs to Hydra. ``key`` is a dotted key, or a group with slashes."""
    return key.replace("/", ".").split(".")[0] == "hydra"


def check_hydra(hydra: DictConfig) -> None:
    """Check ``hydra.sweeper.max_batch_size`` in the part ``hydra`` of a composed config. Raises :class:`UserError`."""
    size = hydra.sweeper.get("max_batch_size")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise UserError(f"{size!r} is not a positive integer", BATCH, hint="Use null to start all jobs at once")
