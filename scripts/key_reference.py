"""Write ``conf/KEYS.md``: every key of a run, from the dataclasses of settings and the YAML files of ``conf/``.

    python scripts/key_reference.py

What a key means is the ``#:`` comment above its field, so it is written there and nowhere else; its usual values are
those of the YAML files. ``tests/cli/test_key_reference.py`` keeps the file and its sources in step.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from key_values import ROOTS, is_kind, settings_in, usual_values

from knot_runner.config.settings.families import METHOD_SETTINGS
from knot_runner.config.strict import AtMost, Holds

KEYS = Path(__file__).resolve().parents[1] / "conf" / "KEYS.md"
#: Fields of the whole run that are made from keys of ``partition``.
NOT_KEYS = ("shares", "held_out")
#: Letters of a usual value, and how many there may be; with more, ``by file`` stands for them.
MAX_VALUE, MAX_VALUES = 36, 3
#: Places whose content is told by the table of another place, too.
ALSO = {"method.loss": "`method.server_distillation.loss`"}

HEAD = """# Every key

Written by `python scripts/key_reference.py` from the settings' dataclasses (`knot_runner/config/settings/`) and the
YAML files here; edit those. How the groups make a run is in the [guide](README.md), and `knot-runner ls` shows the
files of each group.

A key is set on the command line by its whole path, as in `method.server.lr=0.5`. *Usual* is what the package's files
have, in the order of their names: a range where there are more than three numbers, `by file` for other or long values,
`none` for a key that has to be given, `below` for keys that have a table of their own. Every group has `name`, which
results call it by; `kind` and `algorithm` say which of a group's tables counts, and stand above it. A value outside its
range is refused in one line.
Hydra's own keys, such as `hydra/launcher`, are in the [guide to sweeps](../knot_runner/sweeps/README.md).
"""


class Undocumented(Exception):
    """A field has no ``#:`` comment."""


def sentence(text: str) -> str:
    """A docstring's or comment's text as one line of Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", " ".join(text.split()))
    return text.replace("``", "`").replace("|", r"\|")


def field_notes(cls: type) -> dict[str, str]:
    """Field of ``cls`` -> the ``#:`` comment above it, its bases' included."""
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


def tables() -> dict[type, list[str]]:
    """Dataclass -> the places where it stands, both in the order of :data:`ROOTS`."""
    found: dict[type, list[str]] = {}

    def visit(place: str, cls: type) -> None:
        places = found.setdefault(cls, [])
        if place not in places:
            places.append(place)
        hints = typing.get_type_hints(cls, include_extras=True)
        for field in dataclasses.fields(cls):
            own = f"{place}.{field.name}" if place else field.name
            for rest, inner in settings_in(hints[field.name]) if own not in ROOTS else ():
                if own not in NOT_KEYS:
                    visit(own + rest, inner)

    for place, classes in ROOTS.items():
        for cls in classes:
            visit(place, cls)
    return found


def shown(value: Any) -> str:
    """A value as YAML has it."""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{text}`" if text else '`""`'


def usual(field: dataclasses.Field, values: list[Any]) -> str:
    """The column of usual values."""
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    if default is not dataclasses.MISSING and values in ([], [None]):
        values = [{} if dataclasses.is_dataclass(default) else default]
    texts = [shown(value) for value in values]
    if not texts:
        return "none"
    if len(texts) > MAX_VALUES and all(type(value) in (int, float) for value in values):
        return f"{shown(min(values))} to {shown(max(values))}"
    if len(texts) > MAX_VALUES or max(map(len, texts)) > MAX_VALUE:
        return "by file"
    return ", ".join(texts).replace("|", r"\|")


def span(rules: Iterable[Any]) -> str:
    """What a number must be, in the words that refuse another one; without any, its largest magnitude."""
    rules = list(rules)
    for rule in rules:
        if isinstance(rule, Holds):
            text = rule.text.partition(";")[0]
            text = re.sub(r"^is neither (.*) nor ", r"\1 or ", text)
            return "at least 0" if text == "is negative" else text.removeprefix("is not ")
    most = [f"at most {rule.most:g}" for rule in rules if isinstance(rule, AtMost)]
    return most[0] if most else ""


def kind_of_value(hint: Any) -> str:
    """The column of types."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    names = {bool: "`true`, `false`", int: "integer", float: "number", str: "word", type(None): "`null`", Any: "any"}
    if origin is Annotated:
        limits = span(arguments[1:])
        return kind_of_value(arguments[0]) + (f" {limits}" if limits else "")
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(kind_of_value, arguments)))
    if origin is list:
        return f"list of {kind_of_value(arguments[0])}"
    if origin is dict:
        return f"NAME: {kind_of_value(arguments[1])}"
    return names.get(hint, "keys")


def own_fields(cls: type, others: Iterable[type] = ()) -> list[dataclasses.Field]:
    """The fields of ``cls`` that none of its bases among ``others`` has, whose table tells them."""
    bases = [base for base in cls.__mro__[1:] if base in others]
    told = {field.name for base in bases for field in dataclasses.fields(base)}
    return [field for field in dataclasses.fields(cls) if field.name not in told]


def rows(cls: type, place: str, values: dict[tuple[type, str], list[Any]], others: Iterable[type] = ()) -> list[str]:
    """The rows of one table, without those in the tables of its bases among ``others``. Raises
    :class:`Undocumented`."""
    notes, hints = field_notes(cls), typing.get_type_hints(cls, include_extras=True)
    made = []
    for field in own_fields(cls, others):
        own = f"{place}.{field.name}" if place else field.name
        if is_kind(hints[field.name]) or field.name == "name" or own in NOT_KEYS or (not place and own in ROOTS):
            continue
        if field.name not in notes:
            raise Undocumented(f"{cls.__module__}.{cls.__name__}.{field.name}")
        kind, found = kind_of_value(hints[field.name]), usual(field, values.get((cls, field.name), []))
        if any(f"{root}.".startswith(f"{own}.") for root in ROOTS):  # its table depends on its kind
            kind = "keys"
        if "keys" in kind and found not in ("`null`", "`[]`", "`{}`"):
            found = "below"
        made.append(f"| `{field.name}` | {kind} | {found} | {notes[field.name]} |")
    return made


def choice(cls: type, place: str) -> str:
    """What chooses this table of a place that has several: ``kind=natural``; "" where there is one."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if is_kind(hints[field.name]):
            return f"{field.name}={typing.get_args(hints[field.name])[0]}"
    named = [name for name, one in METHOD_SETTINGS.items() if one is cls] if place == "method" else []
    return f"algorithm={','.join(named)}" if named else ""


def page() -> str:
    """The whole file."""
    found = tables()
    values = usual_values(found)
    groups = list(dict.fromkeys(place.partition(".")[0] for place in ROOTS if place))
    parts = [HEAD, "Groups: " + ", ".join(f"[{group}](#{group})" for group in groups) + ".\n"]
    for group in ["", *groups]:
        parts.append(f"## {group or 'Beside the groups'}\n")
        for cls, places in found.items():
            lines = rows(cls, places[0], values, found) if places[0].partition(".")[0] == group else []
            if not lines:
                continue
            where = [f"`{place}`" for place in places if place] + [ALSO[place] for place in places if place in ALSO]
            chosen = choice(cls, places[0])
            title = ", ".join(where) + (f" with `{chosen}`" if chosen else "")
            if group:
                parts.append(f"### {title}\n\n{sentence(inspect.getdoc(cls) or '')}\n")
            parts.append("\n".join(["| key | value | usual | what |", "|---|---|---|---|", *lines, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    KEYS.write_text(page(), encoding="utf-8")
