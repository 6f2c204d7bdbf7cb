"""Parses the command line: flags, overrides (in Hydra's grammar), and the values each override lists.

Errors are one line that names the key.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, OverrideType, RangeSweep
from hydra.errors import HydraException
from omegaconf import grammar_parser
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from knot_runner.composing.hydra_keys import CONFIG_NAME, LAUNCHER_GROUP, check_key, is_hydras
from knot_runner.composing.override_errors import GROUPS, assignment, message_text, unreadable
from knot_runner.util.config_yaml import choices
from knot_runner.util.errors import UserError, nearest

#: Maximum characters and opening brackets of an argument: Hydra's parser takes minutes for more.
MAX_CHARACTERS, MAX_BRACKETS = 5_000, 60
#: Maximum number of jobs of one command; the largest preset has 720.
MAX_JOBS = 10_000
#: The group that may be placed elsewhere in the config, as in ``+encoder@method.encoder=NAME``.
PLACED_GROUP = "encoder"
#: Pieces of methods, which are placed, as in ``base/synthesis@method.synthesis=records``.
PIECES = "base/"
FLAGS = ("--multirun", "--config-dir=DIR", "--config-name=NAME", "--cfg=job", "--stale=rerun", "--help")
#: Text that Hydra's grammar would accept if it were ASCII.
PLAIN_TEXT = re.compile(r"[^\W\d_][^\"'`,=:;\[\](){}\\$<>#&!~^]*|[/.~][^\"'`,=:;\[\](){}\\$<>#&!^]*")


#: Hydra's flags that take a value, and the short ones.
WITH_VALUE = ("--cfg", "--config-dir", "--config-name")
SHORT = {"-c": "--cfg", "-cd": "--config-dir", "-cn": "--config-name", "-m": "--multirun"}


def joined_flags(arguments: Sequence[str]) -> list[str]:
    """``arguments`` with each of Hydra's flags in its long form, its value after ``=``."""
    found: list[str] = []
    words = list(arguments)
    while words:
        name, equals, value = words.pop(0).partition("=")
        name = SHORT.get(name, name)
        if name in WITH_VALUE and not equals and words:
            equals, value = "=", words.pop(0)
        found.append(f"{name}{equals}{value}")
    return found


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into (flags, overrides)."""
    arguments = joined_flags(arguments)
    flags = [a for a in arguments if a.startswith("-")]
    names = [f"{CONFIG_NAME}={a.partition('=')[2]}" for a in flags if a.startswith("--config-name=")]
    others = [a for a in flags if not a.startswith("--config-name=")]
    return others, [*names, *(a for a in arguments if not a.startswith("-"))]


def config_dir_of(flags: Sequence[str], known: Sequence[str] = FLAGS) -> str | None:
    """The folder of ``--config-dir=DIR``. Raises :class:`UserError` if it is not a folder, and for any other flag, with
    the nearest of ``known``."""
    folders = []
    for flag in flags:
        name, _, value = flag.partition("=")
        if name == "--config-dir":
            folders.append(value)
        elif flag != "--multirun":
            raise UserError(no_such_flag(flag, known))
    if len(set(folders)) > 1:
        raise UserError("--config-dir: is given more than once; one folder of YAML is right")
    for folder in folders[:1]:
        if not folder:
            raise UserError("--config-dir: without =DIR; a folder of YAML is right, as in --config-dir=mine")
        if not _is_folder(folder):
            raise UserError(f"--config-dir: {message_text(folder)}: is not a folder")
    return folders[0] if folders else None


def no_such_flag(flag: str, known: Sequence[str], verb: str = "") -> str:
    """The message for a flag that is none of ``known``, and may be a setting: ``--task=femnist``."""
    setting = flag.lstrip("-")
    key = setting.partition("=")[0]
    if (key in GROUPS or "." in key) and flag.startswith("--"):
        right = setting if "=" in setting else assignment(key) or f"{key}=VALUE"
        return f"{message_text(flag)}: is a setting; {message_text(right)}, without --, is right"
    return f"{message_text(flag)}: there is no such flag{' of ' * bool(verb)}{verb}{nearest(flag[:40], known)}"


def _is_folder(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def parse_overrides(arguments: Sequence[str]) -> list[Override]:
    """Parse Hydra's overrides. Raises :class:`UserError`, naming the key, for one that cannot be parsed or is never
    valid."""
    return [_checked(copy.copy(_parsed(argument))) for argument in arguments]


@functools.lru_cache(maxsize=1000)  # a command parses each of its overrides several times, which is slow
def _parsed(argument: str) -> Override:
    key, equals, value = argument.partition("=")
    if len(argument) > MAX_CHARACTERS or sum(map(argument.count, "[{(")) > MAX_BRACKETS:
        raise UserError(f"{message_text(key)}: too long for a command line. Use a YAML file in --config-dir=DIR")
    text = equals and not value.isascii() and PLAIN_TEXT.fullmatch(value)
    for readable in [argument, f"{key}='{value}'"] if text else [argument]:
        with contextlib.suppress(HydraException, GrammarParseError, ValueError, RecursionError):
            if "${" in value:
                grammar_parser.parse(value)
            return OverridesParser.create().parse_overrides([readable])[0]
    raise UserError(unreadable(argument))


def _checked(override: Override) -> Override:
    """The override, after checks of its key and kind of value."""
    key, value, line = override.key_or_group, override.value(), message_text(override.input_line)
    if not key:
        raise UserError(f"{line}: has no key; key=value is right ('knot-runner ls' and conf/ show the keys)")
    if is_hydras(key):
        check_key(key)
    if override.package is not None and key != PLACED_GROUP and not key.startswith(PIECES):
        raise UserError(f"{line}: a group cannot be put elsewhere; {message_text(key)}=NAME is right")
    if isinstance(value, Glob) and key == LAUNCHER_GROUP:
        raise UserError(f"{line}: a sweep has one launcher; {key}=NAME is right")
    if key in (*GROUPS, LAUNCHER_GROUP):
        _check_group(override, line)
    elif isinstance(value, Glob):
        raise UserError(
            f"{line}: glob lists names of groups, as in method=glob(fed*); range(0,5) or choice(1,2) list values"
        )
    return override


def _check_group(override: Override, line: str) -> None:
    key, value = override.key_or_group, override.value()
    if override.is_delete() and value is None:
        return
    if override.is_delete():
        raise UserError(f"{line}: ~{key}, without a value, is right")
    if override.type != OverrideType.CHANGE and key != PLACED_GROUP:
        raise UserError(f"{line}: {key} is a group that is there already; {key}=NAME, without +, is right")
    names = value.list if isinstance(value, ChoiceSweep) else [value]
    for name in [] if isinstance(value, Glob) else names:
        if not isinstance(name, str) and not hasattr(name, "with_quotes"):
            text = message_text(str(name))
            if isinstance(name, list | dict):
                text = "a list" if isinstance(name, list) else "a mapping"
            raise UserError(
                f"{line}: {text} is not one of the names of {key}; {key}=NAME is right, or NAME,NAME for a job each"
                " ('knot-runner ls' shows them)"
            )


# ------------------------------------------------------------------------------------------------------ given twice


def last_counts(overrides: Sequence[Override]) -> tuple[list[Override], list[str]]:
    """Return (``overrides`` without those whose key is given again later, one line per such key). As in Hydra the last
    one counts, but with a message.

    Mappings are kept, since Hydra merges them, and so are keys that are deleted and then added.
    """
    given: dict[str, list[Override]] = {}
    for override in overrides:
        place = f"@{override.package}" if override.package else ""
        given.setdefault(override.key_or_group + place, []).append(override)
    dropped, notes, added = set(), [], {}
    for key, own in given.items():
        if len(own) == 1 or any(one.is_delete() for one in own) or all(isinstance(o.value(), dict) for o in own):
            continue
        dropped.update(id(one) for one in own[:-1])
        if any(one.type != OverrideType.CHANGE for one in own) and own[-1].type == OverrideType.CHANGE:
            added[id(own[-1])] = parse_overrides([f"+{own[-1].input_line}"])[0]
        values = [message_text(one.input_line.partition("=")[2]) for one in own]
        notes.append(f"{key}: is given {_times(len(own))}, {' and '.join(values)}; the last one, {values[-1]}, counts")
    return [added.get(id(one), one) for one in overrides if id(one) not in dropped], notes


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"


# ----------------------------------------------------------------------------------------------------------- values


def values_of(override: Override, config_dir: str | None) -> list[str] | None:
    """The values an override lists, as they would be typed; None for a single value.

    Raises :class:`UserError` if it lists none, or more than :data:`MAX_JOBS`.
    """
    value: Any = override.value()
    if isinstance(value, Glob):
        return _globbed(override, value, choices(override.key_or_group, config_dir))
    if isinstance(value, IntervalSweep):
        line = message_text(override.input_line)
        raise UserError(
            f"{line}: only hydra/sweeper=optuna draws from an interval; range(0,5) or choice(1,2) would list values"
        )
    if not override.is_sweep_override():
        return None
    if isinstance(value, RangeSweep):
        _check_range(override, value)
    try:
        return list(override.sweep_string_iterator())
    except (HydraException, OmegaConfBaseException, ValueError, TypeError):
        raise UserError(unreadable(override.input_line)) from None


def _globbed(override: Override, glob: Glob, names: Sequence[str]) -> list[str]:
    found = glob.filter(list(names))
    if not found:
        key = override.key_or_group
        raise UserError(f"{message_text(override.input_line)}: no {key} has such a name ('knot-runner ls' shows them)")
    return found


def _check_range(override: Override, values: RangeSweep) -> None:
    line = message_text(override.input_line)
    bounds = (values.start, values.stop, values.step)
    if not all(math.isfinite(bound) for bound in bounds) or values.step == 0:
        raise UserError(f"{line}: a range needs finite bounds and a step that is not 0, as in range(0,5)")
    count = math.ceil((float(values.stop) - float(values.start)) / float(values.step))
    if count <= 0:
        raise UserError(f"{line}: this range is empty; range(0,5) is 0,1,2,3,4")
    check_count(line, count)


def check_count(line: str, jobs: int) -> None:
    """Raises :class:`UserError` naming ``line`` if there are more than :data:`MAX_JOBS` ``jobs``."""
    if jobs > MAX_JOBS:
        raise UserError(f"{line}: {jobs:,} jobs; one command has at most {MAX_JOBS:,}")
