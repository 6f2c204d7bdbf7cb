"""Overrides in Hydra's grammar, and the values each lists. Errors are one line that names the key."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

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
from hydra.errors import HydraException
from omegaconf import grammar_parser
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from knot_runner.composing.hydra_keys import check_key, is_hydras
from knot_runner.composing.override_errors import GROUPS, message_text
from knot_runner.util.config_yaml import choices
from knot_runner.util.errors import UserError

#: Maximum number of jobs of one command; the largest preset has 720.
MAX_JOBS = 10_000
#: Characters that mean something in Hydra's grammar.
RESERVED = frozenset("'\"`,=:;[](){}\\$<>#&!^")


def typed_line(override: Override) -> str:
    """The ``override`` as it was typed, or would be."""
    return override.input_line or ""


def preset_in(words: Iterable[str]) -> str | None:
    """The preset in overrides as typed; None without one."""
    return next((word.partition("=")[2] for word in words if word.startswith("experiment=")), None)


def parse_overrides(arguments: Sequence[str]) -> list[Override]:
    """Parse overrides. Raises :class:`UserError`, naming the key, for one that cannot be parsed or is never valid."""
    return [copy.copy(_parsed(argument)) for argument in arguments]


@functools.lru_cache(maxsize=1000)  # a command parses each of its overrides several times, which is slow
def _parsed(argument: str) -> Override:
    key, _, value = argument.partition("=")
    readable, override = argument, None
    if not value.isascii() and RESERVED.isdisjoint(value):
        readable = f"{key}='{value}'"  # Hydra's grammar has letters of ASCII alone
    with contextlib.suppress(HydraException, GrammarParseError, ValueError, RecursionError):
        if "${" in value:
            grammar_parser.parse(value)
        (override,) = OverridesParser.create().parse_overrides([readable])
    if override is None or not override.key_or_group:
        raise _unreadable(argument)
    if is_hydras(override.key_or_group):
        check_key(override.key_or_group)
    if override.key_or_group in GROUPS:
        _check_names(override, message_text(argument))
    return override


def _check_names(override: Override, line: str) -> None:
    """Raise :class:`UserError` unless ``override`` gives a group names; for others Hydra ends with a traceback."""
    value, group = override.value(), override.key_or_group
    if override.is_delete():
        if value is not None:
            raise UserError(f"takes no value. Use ~{group}", line)
        return
    for name in value.list if isinstance(value, ChoiceSweep) else [value]:
        if not isinstance(name, str | QuotedString | Glob):
            raise UserError(f"expected a name. Use {group}=NAME, or {group}=NAME,NAME for a job each", line)


def _unreadable(argument: str) -> UserError:
    key, equals, value = argument.partition("=")
    if not key or not equals:
        return UserError("expected key=value", f"{message_text(argument)!r}")
    hint = "Quote special characters: 'key=\"a, b\"'"
    return UserError(f"cannot read {message_text(value)!r}", message_text(key), hint=hint)


def last_counts(overrides: Sequence[Override]) -> list[Override]:
    """Return ``overrides`` without those whose key is changed again later. Mappings stay, since Hydra merges them."""
    kept: list[Override] = []
    changed = set()
    for override in reversed(overrides):
        key = override.key_or_group, override.package
        if key not in changed or override.type != OverrideType.CHANGE or isinstance(override.value(), dict):
            kept.append(override)
        changed.add(key)
    return kept[::-1]


def values_of(override: Override, config_dir: str | None) -> list[str] | None:
    """The values an override lists, as they would be typed; None for a single value.

    Raises :class:`UserError` if it lists none, or more than :data:`MAX_JOBS`.
    """
    value: Any = override.value()
    line = message_text(typed_line(override))
    if isinstance(value, Glob):
        found = value.filter(choices(override.key_or_group, config_dir))
        if not found:
            raise UserError(f"no {override.key_or_group} has such a name. Run 'knot-runner ls' to list them", line)
        return found
    if isinstance(value, IntervalSweep):
        raise UserError("only hydra/sweeper=optuna draws from an interval. Use range(0,5) or a list of values", line)
    if not override.is_sweep_override():
        return None
    if isinstance(value, RangeSweep):
        _check_range(line, value)
    try:
        return list(override.sweep_string_iterator())
    except (HydraException, OmegaConfBaseException, ValueError, TypeError):
        raise _unreadable(typed_line(override)) from None


def _check_range(line: str, values: RangeSweep) -> None:
    start, stop, step = float(values.start), float(values.stop), float(values.step)
    count = math.ceil((stop - start) / step) if step and math.isfinite(start + stop + step) else 0
    if count <= 0:
        raise UserError("an empty or endless range. Use range(0,5) for 0,1,2,3,4", line)
    check_count(line, count)


def check_count(line: str, jobs: int) -> None:
    """Raises :class:`UserError` naming ``line`` if there are more than :data:`MAX_JOBS` ``jobs``."""
    if jobs > MAX_JOBS:
        raise UserError(f"{jobs:,} jobs; one command has at most {MAX_JOBS:,}", line)
