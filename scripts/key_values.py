"""The settings of a run: where each dataclass is used, the comments of its fields, and their values in ``conf/``."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from knot_runner.config.plugins import load
from knot_runner.config.settings.checks import BLOCK, IDLE, VARIANT, training_values
from knot_runner.config.settings.families import METHOD_SETTINGS, TASK_KINDS
from knot_runner.config.settings.fleet import FleetSettings
from knot_runner.config.settings.groups import (
    MODEL_SETTINGS,
    CentralTraining,
    EvaluateSettings,
    HardwareSettings,
    ModelSettings,
    PathSettings,
    TrackerSettings,
    TrainingSettings,
)
from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.config.settings.methods.distill import SCHEDULE_SETTINGS, SYNTHESIS_SETTINGS
from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings, FederatedTraining
from knot_runner.config.settings.methods.knot import LOSS_SETTINGS
from knot_runner.config.settings.methods.personalization import PERSONALIZATION_SETTINGS, LocalSettings
from knot_runner.config.settings.methods.terms import TERM_SETTINGS
from knot_runner.config.settings.networks import NETWORK_SETTINGS
from knot_runner.config.settings.partition import PARTITION_SETTINGS, HeldOut, PartyShares
from knot_runner.config.settings.privacy import UserPrivacySettings
from knot_runner.config.settings.run import Settings
from knot_runner.config.strict import hints_of
from knot_runner.util.config_yaml import LOADER

CONF = Path(__file__).resolve().parents[1] / "conf"
#: Place in the config -> the dataclasses of settings that may stand there. What these hold is found from their types.
ROOTS: dict[str, list[type]] = {
    "": [Settings],
    "task": [kind.settings for kind in TASK_KINDS.values()],
    "model": [ModelSettings, *NETWORK_SETTINGS.values()],
    "method": [FederatedSettings, AveragingSettings, *METHOD_SETTINGS.values()],
    "method.loss": list(LOSS_SETTINGS.values()),
    **{f"method.terms.{name}": [cls] for name, cls in TERM_SETTINGS.items()},
    "method.schedule": list(SCHEDULE_SETTINGS.values()),
    "method.synthesis": list(SYNTHESIS_SETTINGS.values()),
    "method.personalization": [LocalSettings, *PERSONALIZATION_SETTINGS.values()],
    "training": [FederatedTraining, TrainingSettings, CentralTraining],
    "partition": [*PARTITION_SETTINGS.values(), HeldOut, PartyShares],
    "transfer": [ImageTaskSettings],
    "fleet": [FleetSettings],
    "privacy": [UserPrivacySettings],
    "evaluate": [EvaluateSettings],
    "hardware": [HardwareSettings],
    "paths": [PathSettings],
    "tracker": [TrackerSettings],
}


#: Key of a part that holds its name, and the table of the dataclasses by that name.
TAGGED = (
    ("kind", MODEL_SETTINGS), ("kind", PARTITION_SETTINGS), ("kind", SCHEDULE_SETTINGS), ("kind", SYNTHESIS_SETTINGS),
    ("kind", PERSONALIZATION_SETTINGS), ("name", LOSS_SETTINGS),
)  # fmt: skip
#: Fields of the whole run that are built from keys of ``partition``, or no settings.
NOT_KEYS = ("shares", "held_out", "notes")


class Undocumented(Exception):
    """A field has no ``#:`` comment."""


def sentence(text: str) -> str:
    """Return the text of a docstring or comment as one line of Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", " ".join(text.split()))
    return text.replace("``", "`")


@functools.cache
def field_notes(cls: type) -> dict[str, str]:
    """Return the ``#:`` comment of each field of ``cls`` and its bases."""
    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        comment: list[str] = []
        for line in inspect.getsource(base).splitlines():
            if line.startswith("    #: "):
                comment.append(line[7:])
                continue
            named = re.match(r"    (\w+): ", line)
            if named and comment:
                notes[named[1]] = sentence(" ".join(comment))
            comment = []
    return notes


def note_of(cls: type, name: str) -> str:
    """Return the comment of a field; "" for names and tags. Raises :class:`Undocumented`."""
    notes = field_notes(cls)
    tag, _ = tag_in_table(cls) or ("name", [])
    is_tag = name in ("name", "algorithm", tag) or is_kind(hints_of(cls)[name])
    if name in notes or is_tag or (cls is Settings and is_group(name)):
        return notes.get(name, "")
    raise Undocumented(f"{cls.__module__}.{cls.__name__}.{name}")


def is_group(place: str) -> bool:
    """Return whether ``place`` is a config group."""
    return place in ROOTS and "." not in place


def tables() -> dict[type, list[str]]:
    """Return the places of each dataclass in the config, in the order of :data:`ROOTS`."""
    found: dict[type, list[str]] = {}

    def visit(place: str, cls: type) -> None:
        places = found.setdefault(cls, [])
        if place not in places:
            places.append(place)
        for name, hint in hints_of(cls).items():
            own = f"{place}.{name}".lstrip(".")
            if not is_group(own) and own not in NOT_KEYS:
                for rest, inner in settings_in(hint):
                    visit(own + rest, inner)

    for place, classes in ROOTS.items():
        for cls in classes:
            visit(place, cls)
    return found


def settings_in(hint: Any) -> Iterator[tuple[str, type]]:
    """The dataclasses that a type holds, each with what follows the key: ``""``, ``.NAME`` or ``[]``."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        yield "", hint
    elif origin is Annotated:
        yield from settings_in(load(arguments[1]) if isinstance(arguments[1], str) else arguments[0])
    elif origin is list:
        yield from ((f"[]{rest}", cls) for rest, cls in settings_in(arguments[0]))
    elif origin is dict:
        yield from ((f".NAME{rest}", cls) for rest, cls in settings_in(arguments[1]))
    elif origin in (typing.Union, types.UnionType):
        for option in arguments:
            yield from settings_in(option)


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``under`` with what ``over`` has in its place."""
    made = dict(under)
    for key, value in over.items():
        both = isinstance(made.get(key), dict) and isinstance(value, dict)
        made[key] = merged(made[key], value) if both else value
    return made


@functools.cache
def resolved(path: Path) -> dict[str, Any]:
    """A YAML file of a group with the files that its ``defaults`` name."""
    own = yaml.load(path.read_text(encoding="utf-8"), LOADER) or {}
    made: dict[str, Any] = {}
    for entry in own.get("defaults", []):
        name, choice = next(iter(entry.items())) if isinstance(entry, dict) else (entry, "")
        if name == "_self_" or (isinstance(entry, dict) and not name.startswith("/base/")):  # of another group
            continue
        name, _, package = name.partition("@")
        name = f"{name}/{choice}".rstrip("/")
        found = resolved((CONF / name[1:] if name.startswith("/") else path.parent / name).with_suffix(".yaml"))
        for part in reversed([part for part in package.split(".") if part and part != "_here_"]):
            found = {part: found}
        made = merged(made, found)
    return merged(made, {key: value for key, value in own.items() if key != "defaults"})


def usual_values(places: dict[type, list[str]]) -> dict[tuple[type, str], list[Any]]:
    """Return the distinct values of (dataclass, field) in the files of ``conf/``, the most frequent first."""
    found: dict[tuple[type, str], list[Any]] = {}

    def collect(cls: type, values: Any) -> None:
        if not isinstance(values, dict) or not fits(cls, values):
            return
        hints = hints_of(cls)
        for field in dataclasses.fields(cls):
            if field.name not in values:
                continue
            value = values[field.name]
            found.setdefault((cls, field.name), []).append(value)
            for rest, inner in settings_in(hints[field.name]):
                several = value.values() if rest == ".NAME" and isinstance(value, dict) else [value]
                for one in value if rest == "[]" and isinstance(value, list) else several:
                    collect(inner, one)

    for place, classes in ROOTS.items():
        for content in contents(place):
            for cls in classes:
                collect(cls, content)
    for path in sorted((CONF / "encoder").glob("*.yaml")):  # chosen inside of a method
        for cls in (cls for cls in places if cls.__name__ == "EncoderSettings"):
            collect(cls, resolved(path))
    return {key: by_frequency(values) for key, values in found.items()}


def by_frequency(values: list[Any]) -> list[Any]:
    """Return the distinct ``values``, the most frequent first."""
    distinct = [value for place, value in enumerate(values) if value not in values[:place]]
    return sorted(distinct, key=lambda value: -values.count(value))


def contents(place: str) -> Iterator[Any]:
    """What the files of ``conf/`` have at ``place``."""
    group, *inside = place.split(".")
    whole = resolved(CONF / "config.yaml")
    files = [resolved(path) for path in sorted((CONF / group).glob("*.yaml"))] if group else []
    if place == "training":
        files = [values for content in files for values in training_blocks(content)]
    for content in files or [whole.get(group) if group else whole]:
        for key in inside:
            content = content.get(key) if isinstance(content, dict) else None
        yield content
    if inside:  # pieces, which are chosen inside of a method
        folder, name = ("term", inside[1]) if inside[0] == "terms" else (inside[0], "*")
        yield from (resolved(path) for path in sorted((CONF / "base" / folder).glob(f"{name}.yaml")))


def training_blocks(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the values that a file of ``training`` gives for each kind of training and each kind of task or task."""
    for key, block in content.items():
        if key.startswith(BLOCK) and key != IDLE:
            variants = [name.removeprefix(VARIANT) for name in block if name.startswith(VARIANT)]
            for name in variants or ["images"]:
                task = {"name": name, "kind": "images" if name not in ("texts", "sa", "erc") else name}
                config = {"training": content, "task": task, "method": {"algorithm": ""}}
                yield training_values(config, key.removeprefix(BLOCK))


def fits(cls: type, values: dict[str, Any]) -> bool:
    """Whether ``values`` may be those of ``cls``: what it needs is there, and its kind is that which it names."""
    for field in dataclasses.fields(cls):
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in values and cls is not Settings:
            return False
    tag = tag_in_table(cls)
    if tag is None and not issubclass(cls, FederatedSettings):
        tag = tag_of(cls, "method")
    return tag is None or values.get(tag[0]) in tag[1]


def is_kind(hint: Any) -> bool:
    """Whether a field has one value alone, which says what its dataclass is."""
    return typing.get_origin(hint) is Literal and len(typing.get_args(hint)) == 1


@functools.cache
def tag_in_table(cls: type) -> tuple[str, list[str]] | None:
    """Return the key that selects ``cls`` in a table of parts and its values, or its one field with one value."""
    for key, table in TAGGED:
        names = [name for name, one in table.items() if one is cls]
        if names:
            return key, names
    for name, hint in hints_of(cls).items():
        if is_kind(hint):
            return name, list(typing.get_args(hint))
    return None


def tag_of(cls: type, place: str) -> tuple[str, list[str]] | None:
    """Return the key that selects ``cls`` at ``place`` and its values; None if the place has one dataclass."""
    tag = tag_in_table(cls)
    if tag is not None or place != "method":
        return tag
    names = [name for name, one in METHOD_SETTINGS.items() if one is cls]
    return ("algorithm", names) if names else None


def field_values(cls: type, field: dataclasses.Field, values: dict[tuple[type, str], list[Any]]) -> list[Any]:
    """Return the values of a field in ``conf/``, or its default."""
    found = values.get((cls, field.name), [])
    if found not in ([], [None]):
        return found
    if field.default is not dataclasses.MISSING:
        return [field.default]
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
        return [{} if dataclasses.is_dataclass(value) else value]
    return found
