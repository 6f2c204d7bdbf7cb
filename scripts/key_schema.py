"""A JSON Schema (draft-07) of run and preset files, from the dataclasses of settings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from key_values import (
    NOT_KEYS,
    ROOTS,
    field_values,
    hints_of,
    is_group,
    note_of,
    sentence,
    tables,
    tag_of,
    usual_values,
)

from knot_runner.config.plugins import load
from knot_runner.config.settings.checks import BLOCK, IDLE, VARIANT
from knot_runner.config.settings.partition import PARTITION_SETTINGS, HeldOut, PartyShares
from knot_runner.config.settings.run import TRAINING_SETTINGS, Settings
from knot_runner.config.settings.sizes import NamedModel
from knot_runner.config.strict import AtMost, ByName, ByTag, Holds

SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
#: An OmegaConf interpolation may replace any value.
INTERPOLATION = {"type": "string", "pattern": r"\$\{", "patternErrorMessage": "Expected another type, or ${...}"}
#: Hydra's own keys of any file.
HYDRA_KEYS = {"defaults": {"type": "array"}}


def schema() -> dict[str, Any]:
    """Return the whole schema: a run or preset, and in ``definitions`` each group and dataclass."""
    found = tables()
    values = usual_values(found)
    definitions: dict[str, Any] = {"interpolation": INTERPOLATION}
    for group, classes in ROOTS.items():
        if group and "." not in group:
            members = PARTITION_SETTINGS.values() if group == "partition" else classes
            definitions[group] = {"anyOf": [*map(reference, members), {"type": "null"}]}
    for cls in found:
        definitions[cls.__name__] = object_of(cls, found, values)
    for kind, cls in TRAINING_SETTINGS.items():
        variants = {"patternProperties": {f"^{VARIANT}": {"$ref": f"#/definitions/{BLOCK}{kind}"}}}
        definitions[f"{BLOCK}{kind}"] = {**definitions[cls.__name__], **variants}
        for training in (*TRAINING_SETTINGS.values(),):
            definitions[training.__name__]["properties"][f"{BLOCK}{kind}"] = {"$ref": f"#/definitions/{BLOCK}{kind}"}
    for training in TRAINING_SETTINGS.values():
        definitions[training.__name__]["properties"][IDLE] = {"type": "object", "maxProperties": 0}
    for cls in PARTITION_SETTINGS.values():  # a partition also has the shares
        for part in (HeldOut, PartyShares):
            for name in definitions[part.__name__]["properties"]:
                definitions[cls.__name__]["properties"].setdefault(name, inherited(part, name))
    run = definitions.pop(Settings.__name__)
    run["properties"]["hydra"] = {"type": "object"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **run, "definitions": definitions}


def reference(cls: type) -> dict[str, str]:
    return {"$ref": f"#/definitions/{cls.__name__}"}


def inherited(base: type, name: str) -> dict[str, str]:
    return {"$ref": f"#/definitions/{base.__name__}/properties/{name}"}


def object_of(cls: type, found: dict[type, list[str]], values: dict[tuple[type, str], list[Any]]) -> dict[str, Any]:
    """Return the schema of a dataclass. No key is required, since a file may override only some."""
    properties: dict[str, Any] = dict(HYDRA_KEYS)
    for field in dataclasses.fields(cls):
        name = field.name
        bases = [base for base in cls.__mro__[1:] if base in found and name in hints_of(base)]
        if cls is Settings and name in NOT_KEYS:
            continue
        if cls is Settings and is_group(name):
            properties[name] = {"$ref": f"#/definitions/{name}"}
        elif bases and hints_of(bases[0])[name] == hints_of(cls)[name] and name != "algorithm":
            properties[name] = inherited(bases[0], name)
        else:
            properties[name] = property_of(cls, field, found[cls][0])
            known = field_values(cls, field, values)
            if len(known) == 1 and "$" not in str(known[0]) and not isinstance(known[0], dict):
                properties[name]["default"] = known[0]
    if found[cls][0].endswith("encoder"):
        properties["name"] = {"type": "string"}
    description = sentence(inspect.getdoc(cls) or "")
    return {"type": "object", "description": description, "properties": properties, "additionalProperties": False}


def property_of(cls: type, field: dataclasses.Field, place: str) -> dict[str, Any]:
    """Return the schema of one key."""
    note = note_of(cls, field.name)
    hint = hints_of(cls)[field.name]
    tag = tag_of(cls, place)
    made: dict[str, Any] = {"description": note} if note else {}
    if tag and tag[0] == field.name:
        return made | {"enum": tag[1]}
    options = list(options_of(hint, ()))
    if {"type": "string"} in options or {} in options:
        options = [option for option in options if "enum" not in option]
    elif options:
        options.append({"$ref": "#/definitions/interpolation"})
    return made | (options[0] if len(options) == 1 else {"anyOf": options})


def options_of(hint: Any, rules: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """Yield the schemas of the alternatives of a type."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Annotated and isinstance(arguments[1], ByTag):
        yield from map(reference, arguments[1].classes.values())
        yield {"enum": list(arguments[1].classes)}
    elif origin is Annotated and isinstance(arguments[1], ByName):  # a plug-in may add others
        yield {"type": "object", "properties": {name: reference(cls) for name, cls in arguments[1].classes.items()}}
    elif origin is Annotated:
        yield from options_of(load(arguments[1]) if isinstance(arguments[1], str) else arguments[0], arguments[1:])
    elif origin in (typing.Union, types.UnionType):
        for option in arguments:
            yield from options_of(option, rules)
    elif origin is Literal:
        yield {"enum": list(arguments)}
    elif hint == list[NamedModel]:  # models and teachers: the name of a file may stand for one
        yield {"type": "array", "items": {}}
    elif origin is list:
        yield {"type": "array", "items": any_of(arguments[0])}
    elif origin is dict:
        yield {"type": "object", "additionalProperties": any_of(arguments[1])}
    elif dataclasses.is_dataclass(hint):
        yield reference(hint)
    else:
        yield ({"type": SCALARS[hint]} if hint in SCALARS else {}) | bounds(rules)


def any_of(hint: Any) -> dict[str, Any]:
    """Return the schema of a type inside a list or mapping."""
    options = list(options_of(hint, ()))
    if {} in options:
        return {}
    return {"anyOf": [*options, {"$ref": "#/definitions/interpolation"}]}


def bounds(rules: Iterable[Any]) -> dict[str, Any]:
    """Return the bounds of a number, read from the text of its rules and tried on its test."""
    made: dict[str, Any] = {}
    for rule in rules:
        if isinstance(rule, AtMost):
            made["maximum"] = rule.most
        if isinstance(rule, Holds):
            text = re.sub(r" \([^,]*:.*", "", rule.text)
            numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+(?!\.))?(?:e\d+)?", text)] or [0.0]
            made["minimum" if rule.test(numbers[0]) else "exclusiveMinimum"] = numbers[0]
            if len(numbers) > 1:
                made["maximum" if rule.test(numbers[-1]) else "exclusiveMaximum"] = numbers[-1]
    return made
