"""Arms of a preset (``sweep.arms``): names, each with its overrides, such as ``near: {method: finetune}``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hydra.core.override_parser.types import Override

from knot_runner.composing.override_errors import message_text
from knot_runner.composing.overrides import parse_overrides, typed_line
from knot_runner.config.settings.run import ARM
from knot_runner.util.errors import UserError, unknown

#: Name -> its overrides.
Arms = dict[str, list[Override]]


def read_arms(found: Any) -> Arms:
    """The arms of a preset's ``sweep.arms``. Raises :class:`UserError`, also for an override with several values."""
    if not isinstance(found, dict) or not all(isinstance(own, dict) for own in found.values()):
        raise UserError("is not a mapping of names to overrides, as in near: {method: finetune}", "sweep.arms")
    arms = {}
    for name, own in found.items():
        words = [key if key.startswith("~") else f"{key}={_text(value)}" for key, value in own.items()]
        arms[str(name)] = overrides = parse_overrides(words)
        for override in overrides:
            if override.is_sweep_override():
                line = message_text(typed_line(override))
                raise UserError(f"{line} has several values. Use one value, or several arms", f"sweep.arms.{name}")
    return arms


def arm_overrides(names: Iterable[str], arms: Arms, others: Iterable[Override]) -> list[list[str]]:
    """For each arm of ``names``: ``arm=NAME`` and its overrides.

    Raises :class:`UserError` for an unknown arm, and for a key that is set by one of ``others``, too.
    """
    keys = {_key(typed_line(override)) for override in others}
    found = []
    for name in names:
        if not arms:
            raise UserError("there are no arms. Choose a preset with sweep.arms", f"{ARM}={message_text(name)}")
        if name not in arms:
            raise unknown(ARM, message_text(name), arms)
        lines = [typed_line(override) for override in arms[name]]
        for line in lines:
            if _key(line) in keys:
                problem = f"{ARM}={name} has {message_text(line)}. Remove it, or choose other arms"
                raise UserError(problem, _key(line))
        found.append([f"{ARM}={name}", *lines])
    return found


def without_arm(overrides: Iterable[str]) -> list[str]:
    """The ``overrides`` that Hydra composes: all but ``arm=NAME``."""
    return [override for override in overrides if not override.startswith(f"{ARM}=")]


def _key(line: str) -> str:
    return line.partition("=")[0].lstrip("+~")


def _text(value: Any) -> str:
    """``value`` in the grammar of overrides; text as it stands."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)
