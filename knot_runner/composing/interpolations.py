"""Resolves composed configs to plain values, after refusing interpolations (``${key}``) that expand too far."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException
from omegaconf.grammar_parser import parse

from knot_runner.composing.override_errors import message_text, one_line
from knot_runner.util.errors import UserError

#: Maximum characters of a config's expanded interpolations; maximum number of those that are not a plain ``${key}``.
_MAX_CHARACTERS, MAX_UNUSUAL = 300_000, 12
_INTERPOLATION = re.compile(r"\$\{([^${}]*)\}")
Path = tuple[str, ...]


def plain_config(config: Any) -> dict[str, Any]:
    """Resolve an OmegaConf config to plain values. Raises :class:`UserError` if an interpolation fails."""
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as problem:
        key = getattr(problem, "full_key", None)
        raise UserError(f"{key}: {_cause(problem)}" if key else one_line(str(problem))) from None
    except RecursionError:
        raise UserError("command line: interpolations ${...} that lead back to themselves") from None


def _cause(problem: OmegaConfBaseException) -> str:
    """The first line of the error, without OmegaConf's headings."""
    text = (str(problem.msg or problem).strip().splitlines() or [type(problem).__name__])[0]
    return message_text(text.rpartition("raised while resolving interpolation: ")[2].strip('"'), 200)


def check_growth(config: Any) -> None:
    """Check that ``config`` (OmegaConf) resolves within bounds: each ``${key}`` counts with its whole expansion, which
    can double at every step of a chain. Raises :class:`UserError` naming the key."""
    _Growth(OmegaConf.to_container(config, resolve=False)).check()


class _Growth:
    """Counts the characters that the parts of a plain, unresolved config expand to."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._sizes: dict[Path, int] = {}
        self._under_way: set[Path] = set()
        self._unusual = 0

    def check(self) -> None:
        for path, text in _leaves(self._config, ()):
            if "${" not in text:
                continue
            key = message_text(".".join(path))
            if not _readable(text):
                raise UserError(
                    f"{key}: has an interpolation that cannot be read; ${{key}} or ${{oc.env:NAME}} is right"
                )
            self._unusual += text.count("${") - len(_INTERPOLATION.findall(text)) + text.count("\\${")
            if self._size(path, text) > _MAX_CHARACTERS or self._unusual > MAX_UNUSUAL:
                raise UserError(
                    f"{key}: interpolations of interpolations come to too much text; plain values are right"
                )

    def _size(self, path: Path, value: Any) -> int:
        if path in self._under_way:  # a cycle, which OmegaConf reports
            return 0
        if path not in self._sizes:
            self._under_way.add(path)
            self._sizes[path] = self._counted(path, value)
            self._under_way.discard(path)
        return self._sizes[path]

    def _counted(self, path: Path, value: Any) -> int:
        if isinstance(value, dict):
            return sum(self._size((*path, str(key)), one) for key, one in value.items())
        if isinstance(value, list):
            return sum(self._size((*path, str(at)), one) for at, one in enumerate(value))
        size = len(str(value))
        for text in _INTERPOLATION.findall(value) if isinstance(value, str) else ():
            target = _target(path, text)
            size += self._size(target, self._at(target))
        return min(size, _MAX_CHARACTERS + 1)

    def _at(self, path: Path) -> Any:
        found = self._config
        for part in path:
            if isinstance(found, dict):
                found = next((one for key, one in found.items() if str(key) == part), "")
            elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            else:
                return ""
        return found


def _readable(text: str) -> bool:
    try:
        parse(text)
    except GrammarParseError:
        return False
    return True


def _target(path: Path, text: str) -> Path:
    """Path that the interpolation at ``path`` points to: leading dots go up; a resolver's last argument
    (``oc.select:key``) counts as a key, too."""
    key = text.rpartition(":")[2].split(",")[0].strip()
    name = key.lstrip(".")
    up = len(key) - len(name)
    base = path[: len(path) - up] if up else ()
    return (*base, *(part for part in re.split(r"[.\[\]]+", name) if part))


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(one, (*path, str(key)))
    elif isinstance(value, list):
        for at, one in enumerate(value):
            yield from _leaves(one, (*path, str(at)))
    elif isinstance(value, str):
        yield path, value
