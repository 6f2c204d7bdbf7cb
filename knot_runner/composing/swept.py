"""Inserts swept values into a composed config, so that a grid of hundreds of jobs composes in seconds.

Hydra composes once per choice of groups (``hydra_compose.py``). For each job only swept keys and interpolations are
resolved again; the rest is shared with the other jobs of the same choice.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from knot_runner.composing.interpolations import check_growth, plain_config


class Base:
    """One composed config and the values its jobs share. Every job changes ``config`` in place: all set the same
    keys."""

    def __init__(self, config: DictConfig) -> None:
        self._config = config
        self._plain: dict[str, Any] = OmegaConf.to_container(config, resolve=False)
        open_keys = list(_open(self._plain, ()))
        self._open = None if None in open_keys else [".".join(key) for key in open_keys if key]

    def composed(self, overrides: Sequence[Override]) -> DictConfig:
        """The config with the values of ``overrides`` and unresolved interpolations. Raises OmegaConf's own error."""
        merged = any(isinstance(override.value(), dict) for override in overrides)
        config = copy.deepcopy(self._config) if merged else self._config
        for override in overrides:
            OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        return config

    def with_values(self, overrides: Sequence[Override]) -> dict[str, Any]:
        """The config (plain, resolved) with the values of ``overrides``.

        Raises OmegaConf's own error if a key is missing or cannot take its value, and :class:`UserError` if an
        interpolation fails.
        """
        config = self.composed(overrides)
        if any("$" in override.input_line for override in overrides):  # a swept ${key} is written $\{key\}
            check_growth(config)
        if self._open is None:
            return plain_config(config)
        try:
            return self._shared(config, [*(override.key_or_group for override in overrides), *self._open])
        except (OmegaConfBaseException, KeyError, TypeError):  # the last two: a key that leads into a list
            return plain_config(config)  # raises a readable error if the config is invalid

    def _shared(self, config: DictConfig, keys: list[str]) -> dict[str, Any]:
        plain = self._plain
        for key in keys:
            value = OmegaConf.select(config, key, throw_on_missing=True)
            plain = _replaced(plain, key.split("."), plain_config(value) if OmegaConf.is_config(value) else value)
        return plain


def _open(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...] | None]:
    """Yield the keys whose values must be resolved; None for a missing value or one that no dotted key can name."""
    if isinstance(value, dict):
        for key, one in value.items():
            nameable = isinstance(key, str) and key and not set(key) & set(".[]")
            inner = list(_open(one, (*path, str(key))))
            yield from inner if nameable else [None] * bool(inner)
    elif isinstance(value, list):
        if any(list(_open(one, path)) for one in value):
            yield None
    elif isinstance(value, str) and ("${" in value or value == "???"):
        yield None if value == "???" else path


def _replaced(plain: dict[str, Any], key: list[str], value: Any) -> dict[str, Any]:
    """``plain`` with ``value`` at ``key``; only the mappings on the way to ``key`` are copied."""
    first, *rest = key
    return {**plain, first: _replaced(plain[first], rest, value) if rest else value}
