"""What stands where in a run's config, and the values that the YAML files of ``conf/`` have there."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from knot_runner.config.settings.checks.fit import UNTRAINED_TASKS
from knot_runner.config.settings.families import METHOD_SETTINGS
from knot_runner.config.settings.fleet import FleetSettings
from knot_runner.config.settings.groups import (
    HardwareSettings,
    ModelSettings,
    PathSettings,
    TrackerSettings,
    TrainingSettings,
)
from knot_runner.config.settings.methods.distill import SCHEDULE_SETTINGS, SYNTHESIS_SETTINGS
from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings, FederatedTraining
from knot_runner.config.settings.methods.knot import LOSS_SETTINGS
from knot_runner.config.settings.methods.personalization import (
    PERSONALIZATION_SETTINGS,
    EvaluateSettings,
    LocalSettings,
)
from knot_runner.config.settings.methods.terms import TERM_SETTINGS
from knot_runner.config.settings.networks import NETWORK_SETTINGS
from knot_runner.config.settings.partition import PARTITION_SETTINGS, HeldOut, PartyShares
from knot_runner.config.settings.privacy import UserPrivacySettings
from knot_runner.config.settings.run import Settings
from knot_runner.config.settings.tasks.images import ImageTaskSettings
from knot_runner.config.settings.tasks.task import TaskSettings

CONF = Path(__file__).resolve().parents[1] / "conf"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Place in the config -> the dataclasses of settings that may stand there. What these hold is found from their types.
ROOTS: dict[str, list[type]] = {
    "": [Settings],
    "task": [TaskSettings, ImageTaskSettings, *UNTRAINED_TASKS.values()],
    "model": [ModelSettings, *NETWORK_SETTINGS.values()],
    "method": [FederatedSettings, AveragingSettings, *METHOD_SETTINGS.values()],
    "method.loss": list(LOSS_SETTINGS.values()),
    **{f"method.terms.{name}": [cls] for name, cls in TERM_SETTINGS.items()},
    "method.schedule": list(SCHEDULE_SETTINGS.values()),
    "method.synthesis": list(SYNTHESIS_SETTINGS.values()),
    "method.personalization": [LocalSettings, *PERSONALIZATION_SETTINGS.values()],
    "training": [FederatedTraining, TrainingSettings],
    "partition": [*PARTITION_SETTINGS.values(), HeldOut, PartyShares],
    "transfer": [ImageTaskSettings],
    "fleet": [FleetSettings],
    "privacy": [UserPrivacySettings],
    "evaluate": [EvaluateSettings],
    "hardware": [HardwareSettings],
    "paths": [PathSettings],
    "tracker": [TrackerSettings],
}


def settings_in(hint: Any) -> Iterator[tuple[str, type]]:
    """The dataclasses that a type holds, each with what follows the key: ``""``, ``.NAME`` or ``[]``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        yield "", hint
    elif origin is Annotated:
        yield from settings_in(arguments[0])
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
    """(Dataclass, field) -> the different values in the files of ``conf/``, in the order of the files' names."""
    found: dict[tuple[type, str], list[Any]] = {}

    def collect(cls: type, values: Any) -> None:
        if not isinstance(values, dict) or not fits(cls, values):
            return
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if field.name not in values:
                continue
            value, known = values[field.name], found.setdefault((cls, field.name), [])
            if value not in known:
                known.append(value)
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
    return found


def contents(place: str) -> Iterator[Any]:
    """What the files of ``conf/`` have at ``place``."""
    group, *inside = place.split(".")
    whole = resolved(CONF / "config.yaml")
    files = [resolved(path) for path in sorted((CONF / group).glob("*.yaml"))] if group else []
    for content in files or [whole.get(group) if group else whole]:
        for key in inside:
            content = content.get(key) if isinstance(content, dict) else None
        yield content
    if inside:  # pieces, which are chosen inside of a method
        folder, name = ("term", inside[1]) if inside[0] == "terms" else (inside[0], "*")
        yield from (resolved(path) for path in sorted((CONF / "base" / folder).glob(f"{name}.yaml")))


def fits(cls: type, values: dict[str, Any]) -> bool:
    """Whether ``values`` may be those of ``cls``: what it needs is there, and its kind is that which it names."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in values and cls is not Settings:
            return False
        if is_kind(hints[field.name]) and values.get(field.name) not in typing.get_args(hints[field.name]):
            return False
    return True


def is_kind(hint: Any) -> bool:
    """Whether a field has one value alone, which says what its dataclass is."""
    return typing.get_origin(hint) is Literal and len(typing.get_args(hint)) == 1
