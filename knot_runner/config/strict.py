"""Conversion of plain YAML values to settings dataclasses.

Every key and type is checked. If a key is unknown or missing, or a value has the wrong type or is out of range, a
:class:`UserError` names the key.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from knot_runner.config.plugins import load
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, nearest

Built = typing.TypeVar("Built")
_Key = typing.TypeVar("_Key")
_Value = typing.TypeVar("_Value")
#: Table from a name, kind or algorithm to the class of its settings.
SettingsClasses = dict[str, type]
#: Type hints of a class. They are cached, because a grid builds hundreds of objects of each class.
hints_of = functools.cache(functools.partial(typing.get_type_hints, include_extras=True))

#: Default limits of the absolute values of integers and of other numbers. Absurd values below the limits are accepted.
MAX_COUNT = 10**9
MAX_NUMBER = 1e30
_MOST: dict[type, float] = {int: MAX_COUNT, float: MAX_NUMBER}
#: Maximum number of characters of a value in a message.
_MAX_SHOWN = 80
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


@dataclasses.dataclass(frozen=True)
class AtMost:
    """The largest absolute value that a setting may have.

    Example: ``rounds: Annotated[int, AtMost(10**6)]``.
    """

    most: float


@dataclasses.dataclass(frozen=True)
class Holds:
    """A condition on the value of a setting.

    Example: ``rounds: Annotated[int, Holds(lambda value: value >= 1, "at least 1")]``.
    """

    test: Callable[[Any], bool]
    #: part of the error ``expected {text}, got {value}``
    text: str


@dataclasses.dataclass(frozen=True, eq=False)
class ByName:
    """Annotation for a dict from names to settings. ``classes`` maps each name to the class of its settings."""

    classes: Mapping[str, type]
    #: name of the entries in errors
    noun: str

    def convert(self, values: object, where: str) -> Any:
        """Build the settings for each name in ``values``.

        Args:
            values: Dict from a name to the plain values of its settings.
            where: Dotted key of ``values`` in error messages.

        Returns:
            A dict from each name to its settings.

        Raises:
            UserError: A name is unknown, or its settings are invalid.
        """
        built: Config = {}
        for name, part in _expect(values, dict, f"a mapping of {self.noun}s", where).items():
            key = _join(where, name)
            built[name] = build(self._class(name, key), part, key)
        return built

    def _class(self, name: object, where: str) -> type:
        if not isinstance(name, str) or name not in self.classes:
            raise UserError(f"unknown {self.noun} {shorten(name)}{nearest(str(name), self.classes)}", where)
        return self.classes[name]


@dataclasses.dataclass(frozen=True, eq=False)
class ByTag(ByName):
    """Annotation for a dict of settings. The value of one key in the dict selects the class of the settings.

    ``tag`` is the name of this key. ``classes`` maps each allowed value of the key to a class.

    Example: In ``loss: Annotated[Any, ByTag(LOSS_SETTINGS, "loss", "name")]``, ``loss.name`` selects the class.
    """

    tag: str

    def convert(self, values: object, where: str) -> Any:
        """Build the settings from plain values.

        Args:
            values: Dict of the plain values, or only the value of the tag.
            where: Dotted key of ``values`` in error messages.

        Raises:
            UserError: The tag is unknown, or a value is invalid.
        """
        if not isinstance(values, dict):
            values = {self.tag: values}
        tag = values.get(self.tag)
        key = _join(where, self.tag)
        if tag is None:
            raise UserError("required, but not set", key)
        return build(self._class(tag, key), values, where)


def late(module: str, name: str) -> Any:
    """Return a type hint for a settings class. The module of the class is imported when an instance is built.

    Args:
        module: The module, relative to ``knot_runner.config.settings``.
        name: Name of the class.
    """
    return Annotated[Any, f"knot_runner.config.settings.{module}:{name}"]


class OutOfRangeError(UserError):
    """A value has the right type, but violates a condition of its setting (:class:`Holds`)."""


def build(cls: type[Built], values: object, where: str) -> Built:
    """Build an instance of the dataclass ``cls`` from plain values. Every key and type is checked.

    Args:
        cls: The dataclass of the settings.
        values: Dict from field name to value. Values are dicts, lists and scalars.
        where: Dotted key of ``values`` in error messages.

    Raises:
        UserError: A key is unknown or missing, or a value is invalid.
    """
    if values is None:
        raise UserError("required, but not set", where)
    values = _expect(values, dict, "a mapping of keys to values", where)
    kind: Any = cls
    hints = hints_of(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    # Hydra alone would accept a misspelled key, such as ``+method.temprature=3``.
    for key in values:
        if key not in fields:
            raise UserError(f"unknown setting{nearest(str(key), fields)}", _join(where, key))
    arguments = {}
    for name, spec in fields.items():
        value = values.get(name, spec.default)  # converts a plug-in's default 1 of a float to 1.0
        if value is not dataclasses.MISSING:
            arguments[name] = _convert(hints[name], value, _join(where, name))
        elif spec.default_factory is dataclasses.MISSING:
            raise UserError("required, but not set", _join(where, name))
    try:
        return cls(**arguments)
    except _Rule as rule:
        raise UserError(rule.args[0], _join(where, rule.key)) from None
    except ValueError as problem:  # from the class of a plug-in
        raise UserError(str(problem), where) from None


def content_of(value: Any) -> Any:
    """Return the plain data from which :func:`build` can create ``value``.

    A field is left out if its value is None and None is also its default.
    """
    if isinstance(value, list | tuple):
        return [content_of(part) for part in value]
    if isinstance(value, dict):
        return {key: content_of(part) for key, part in value.items()}
    if not dataclasses.is_dataclass(value):
        return value
    content = {}
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        if part is not None or field.default is not None:
            content[field.name] = content_of(part)
    return content


def check_keys(values: object, where: str = "") -> None:
    """Check that the keys of each dict in ``values`` are either all strings or all integers.

    Args:
        values: Nested dicts and lists.
        where: Dotted key of ``values`` in error messages.

    Raises:
        UserError: A dict has keys of another type, or of both types.
    """
    if isinstance(values, list):
        values = dict(enumerate(values))
    if not isinstance(values, dict):
        return
    kinds = set(map(type, values))
    for key, value in values.items():
        if kinds != {int} and not isinstance(key, str):
            raise UserError(f"key {shorten(key)} is not a string. In YAML, quote numbers, 'yes' and 'no'", where)
        check_keys(value, _join(where, key))


def _join(where: str, key: object) -> str:
    return f"{where}.{key}".removeprefix(".")


def _convert(hint: Any, value: object, where: str, most: float | None = None) -> Any:
    if hint is Any or dataclasses.is_dataclass(value):  # already built by a caller that knew the class
        return value
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin is Annotated:
        inner, *rules = args
        if isinstance(rules[0], str):  # a type from :func:`late`
            return _convert(load(rules[0]), value, where)
        if isinstance(rules[0], ByName):
            return rules[0].convert(value, where)
        most = next((rule.most for rule in rules if isinstance(rule, AtMost)), None)
        converted = _convert(inner, value, where, most)
        for rule in rules:
            if isinstance(rule, Holds) and not rule.test(converted):
                raise OutOfRangeError(f"expected {rule.text}, got {shorten(converted)}", where)
        return converted
    if origin in (typing.Union, types.UnionType):
        return _convert_union(args, value, where)
    if origin is Literal:
        if value not in args:
            raise UserError(f"unknown value {shorten(value)} (choose from {', '.join(map(str, args))})", where)
        return value
    if origin is list:
        items = _expect(value, list, "a list", where)
        return [_convert(args[0], item, f"{where}[{i}]") for i, item in enumerate(items)]
    if origin is dict:
        pairs = _expect(value, dict, "a mapping of keys to values", where).items()
        return {str(key): _convert(args[1], item, f"{where}.{key}") for key, item in pairs}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return build(hint, value, where)
    return _scalar(hint, value, where, most)


def _expect(value: object, kind: type[Built], what: str, where: str) -> Built:
    if not isinstance(value, kind):
        raise UserError(f"expected {what}, got {shorten(value)}", where)
    return value


def _convert_union(options: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None:
        if type(None) in options:
            return None
        raise UserError("required, but not set", where)
    problems: list[UserError] = []
    words: list[Any] = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _convert(option, value, where)
        except OutOfRangeError:  # the type is correct
            raise
        except UserError as problem:
            problems.append(problem)
        if typing.get_origin(option) is Literal:
            words += typing.get_args(option)
            problems.insert(0, problems.pop())  # the last problem concerns another option, if there is one
    if words and len(problems) > 1:
        raise UserError(f"{problems[-1]}. Also accepted: {' or '.join(map(repr, words))}")
    raise problems[-1]


def _scalar(hint: type, value: Any, where: str, most: float | None) -> Any:
    """Return ``value`` as ``hint`` (bool, int, float, str). Numbers have an absolute value of at most ``most``."""
    if hint is float and isinstance(value, str):  # YAML 1.1 reads 1e-3 as a string
        with contextlib.suppress(ValueError):
            value = float(value)
    if value is None:
        raise UserError("required, but not set", where)
    if not isinstance(hint, type):
        raise UserError(f"settings cannot have the type {hint}. Use bool, int, float, str, list or dict", where)
    if hint is str and isinstance(value, bool):
        raise UserError(f"expected a string, got {value}. In YAML, quote 'yes' and 'no'", where)
    if hint is str and isinstance(value, int | float):
        return str(value)  # a folder named 2
    right = isinstance(value, (int, float) if hint is float else hint)
    if not right or (isinstance(value, bool) and hint is not bool):
        raise UserError(f"expected {_KINDS.get(hint, hint.__name__)}, got {shorten(value)}", where)
    if hint not in _MOST:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"expected a finite number, got {value}", where)
    most = most or _MOST[hint]
    if abs(value) > most:
        raise UserError(f"expected an absolute value of at most {most:g}, got {shorten(value)}", where)
    return hint(value)


def shorten(value: object) -> str:
    """Return the text of ``value`` for a message, shortened if it is long."""
    if isinstance(value, int) and abs(value) >= 10**15:
        return f"a number with {int(value.bit_length() * math.log10(2)) + 1} digits"  # str() has a limit
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


class _Rule(UserError):
    """Settings of a dataclass are incompatible. :func:`build` adds the key of the dataclass to the message."""


def require(holds: bool, key: str, text: str) -> None:
    """Raise an error if a condition on settings is false. Call this function in a ``__post_init__``.

    Args:
        holds: Whether the condition is true.
        key: The setting that the error names.
        text: The message of the error.
    """
    if not holds:
        raise _Rule(text, key)


def digest(value: object, length: int = 16) -> str:
    """Convert ``value`` to JSON text with sorted keys. Return the first ``length`` hex digits of the text's SHA-256."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=dataclasses.asdict, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def by_key(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """Group pairs by key: return a dict from each key to the list of its values, in the order of ``pairs``."""
    values: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return values


def dotted_leaves(value: object, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each scalar in nested dicts and lists.

    The key of a list item is its index, counted from 0. All dotted keys begin with the argument ``key``.
    """
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for name, part in value.items():
            yield from dotted_leaves(part, _join(key, name))
    else:
        yield key, value


def without(values: Config, *keys: str) -> Config:
    """Return a copy of the dict ``values`` without the given ``keys``."""
    return {key: value for key, value in values.items() if key not in keys}
