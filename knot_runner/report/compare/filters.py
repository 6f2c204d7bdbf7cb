"""Filters of ``compare``: ``key=a,b``, ``key!=a``, ``key>=number``; and which of them left nothing."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from knot_runner.report.compare.records import RunRecord
from knot_runner.report.compare.settings import as_number, resolve_key, sort_key, typed
from knot_runner.util.errors import UserError

#: Values that an error lists; of more it gives the number.
MAX_VALUES = 12
_FORM = re.compile(r"(?s)(.+?)(!=|>=|<=|=|>|<)(.*)")
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


@dataclass(frozen=True)
class Filter:
    """``text`` as typed; ``key`` not yet resolved; ``wanted``: values as ``written``, one for >=, <=, >, <."""

    text: str
    key: str
    sign: str
    wanted: tuple[str, ...]

    def holds(self, value: str | None) -> bool:
        """Whether a run with ``value`` passes; None, a setting that it does not have, passes ``!=`` alone."""
        if self.sign in ("=", "!="):
            return (value in self.wanted) == (self.sign == "=")
        own, bound = as_number(value), as_number(self.wanted[0])
        return own is not None and bound is not None and _COMPARED[self.sign](own, bound)


def parse_filter(text: str) -> Filter:
    """One filter of the command line. Raises :class:`UserError`."""
    form = _FORM.fullmatch(text)
    if not form:
        raise UserError(f"{text}: is neither a filter (key=value, key!=value, key>=number) nor a flag (--name=value)")
    key, sign, rest = form.groups()
    wanted = tuple(typed(part) for part in split_commas(rest))
    if not all(wanted):
        raise UserError(f"{text}: has no value; {key}=a,b keeps the runs with either")
    if sign in _COMPARED and (len(wanted) > 1 or as_number(wanted[0]) is None):
        raise UserError(f"{text}: {sign} compares with one number")
    return Filter(text, key.strip(), sign, wanted)


def split_commas(text: str) -> list[str]:
    """``a,[1,2]`` is ``a`` and ``[1,2]``."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def select_records(records: Sequence[RunRecord], filters: Sequence[Filter]) -> tuple[list[RunRecord], list[str]]:
    """The records that pass all ``filters``, and a line for every asked value that none of them has.

    Raises :class:`UserError` for a key that no run has, and, where nothing is left, naming the filter that left none.
    """
    known = {key for record in records for key in record.names()}
    left, lines = list(records), []
    for asked in filters:
        key = resolve_key(asked.key, known)
        before, left = left, [record for record in left if asked.holds(record.value(key))]
        there = {record.value(key) for record in before}
        if not left:
            raise UserError(f"{asked.text}: none of {len(before)} runs is so; {_values(key, there)}")
        absent = [value for value in asked.wanted if value not in there] if asked.sign in ("=", "!=") else []
        lines += [f"{asked.text}: no run has {', '.join(absent)}; {_values(key, there)}."] if absent else []
    return left, lines


def _values(key: str, values: set[str | None]) -> str:
    shown = ["(absent)" if value is None else value for value in sorted(values, key=sort_key)]
    more = f" and {len(shown) - MAX_VALUES} more" if len(shown) > MAX_VALUES else ""
    return f"{key} is {', '.join(shown[:MAX_VALUES])}{more}"
