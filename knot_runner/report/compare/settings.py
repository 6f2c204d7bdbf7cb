"""Settings of many runs as text, filters of runs, and the settings that distinguish runs.

A frame of settings has one row per run and one column per dotted key. A setting that a run lacks is NaN.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knot_runner.report.render.text import first_few
from knot_runner.report.run_rows import leaves, ranks
from knot_runner.util.config_yaml import unquoted
from knot_runner.util.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd

    from knot_runner.report.frame import RunSet

#: Keys that name the choice in a group. Lists of differing keys begin with these keys. Other keys follow by group
#: (:data:`ORDER`); within a group, keys with fewer dots come first.
GROUP_NAMES = ("task.name", "method.name", "model.name", "partition.kind", "training.name", "task.source")
#: Keys that are shown whenever runs differ in these keys, even if other keys already distinguish the runs.
KEPT = GROUP_NAMES[:2]
ORDER = ("method", "training", "partition", "model", "task")
SEED = "seed"
#: Largest number that is compared as a number. Larger numbers, including infinity, are compared as text.
MAX_PLAIN = 1e300
#: An error lists at most this number of values, and counts the others.
MAX_VALUES = 12
# numbers that YAML 1.1 reads as strings
_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")
_FILTER = re.compile(r"(?s)(.+?)(!=|>=|<=|=|>|<)(.*)")
_COMPARED = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def flatten_settings(values: Mapping[Any, Any]) -> dict[str, str]:
    """Return nested settings as a flat dict from dotted key to value. An empty mapping is treated as a value.

    Each value is text in canonical form, see :func:`written`.
    """
    return {key: written(value) for key, value in leaves(values).items()}


def written(value: Any) -> str:
    """Return a value as text in canonical form: ``4`` for ``4.0``, ``0.01`` for ``1e-2``, and ``[1,2]`` for a list."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, dict):
        return json.dumps(value, default=str)
    return str(value)


def typed(text: str) -> str:
    """Return the canonical form of a value that a user typed: ``1`` for ``1.0``, and ``true`` for ``True``.

    See :func:`written`.
    """
    text = text.strip()
    if text.startswith("["):
        return text.replace(" ", "")
    if text.lower() in ("true", "false", "null"):
        return text.lower()
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return written(kind(text))
    return text


def as_number(text: str | None) -> float | int | None:
    """Return ``text`` as a number; None if ``text`` is missing or is not a number in canonical form.

    The canonical form is that of :func:`written`. For example, ``007`` is not in this form.
    """
    if not isinstance(text, str):  # NaN of pandas
        return None
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            value = kind(text)
            if abs(value) < MAX_PLAIN and written(value) == text:
                return value
    return None


def typed_column(texts: pd.Series) -> pd.Series:
    """Return ``texts`` as numbers if every text is a number; otherwise, return ``texts``. Missing values stay missing.

    The numbers are integers if all texts are integers, and otherwise floats.
    """
    numbers = {text: as_number(text) for text in texts.dropna().unique()}
    if None in numbers.values():
        return texts
    whole = numbers and all(isinstance(value, int) and abs(value) < 2**53 for value in numbers.values())
    return texts.map(numbers).astype("Int64" if whole else "float64")


def sort_key(text: str | None) -> tuple[int, float, str]:
    """Return the sort key of a setting's value. Numbers come first, then texts, then missing values."""
    if not isinstance(text, str):
        return 2, 0.0, ""
    value = as_number(text)
    return (1, 0.0, text) if value is None else (0, float(value), "")


def sort_places(texts: pd.Series) -> pd.Series:
    """Return the rank of each text in the order of :func:`sort_key`. Equal texts have the same rank."""
    rank = ranks(sorted(texts.dropna().unique(), key=sort_key))
    return texts.map(rank).fillna(len(rank)).astype("int64")


def resolve_key(key: str, known: Iterable[str], what: str = "setting", files: str = "config.yaml") -> str:
    """Return the full dotted key that ``key`` stands for.

    The name of a config group stands for the group's key ``name`` or ``kind``: ``task`` for ``task.name``.

    Args:
        key: The key as the user typed it.
        known: The full dotted keys.
        what: The noun for the key in the error message.
        files: The files that contain the keys, for the error message.

    Raises:
        UserError: ``key`` is unknown. The message lists known keys that end with ``key``. If there are none, the
            message suggests the most similar known key.
    """
    keys = set(known)
    for full in (key, f"{key}.name", f"{key}.kind"):
        if full in keys:
            return full
    ends = sorted((full for full in keys if full.endswith(f".{key}")), key=lambda full: (full.count("."), full))[:4]
    if ends:
        raise UserError(f"no run has this {what} (did you mean {' or '.join(map(repr, ends))}?)", key)
    hint = nearest(key, keys | {full.removesuffix(".name") for full in keys})
    if "did you mean" not in hint:
        hint = f". See {files} for the keys"
    raise UserError(f"no run has this {what}{hint}", key)


def resolve_keys(keys: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the full dotted keys that ``keys`` stand for (see :func:`resolve_key`), without duplicates."""
    return tuple(dict.fromkeys(resolve_key(key, known) for key in keys))


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return a dict from each dotted key to its shortest unique ending, such as ``lr`` for ``training.lr``.

    The endings ``.name`` and ``.kind`` are dropped first: ``method.name`` becomes ``method``.
    """
    ends = {}
    for key in keys:
        parts = key.removesuffix(".name").removesuffix(".kind").split(".")
        ends[key] = [".".join(parts[-i:]) for i in range(1, len(parts) + 1)]
    counts = Counter(itertools.chain(*ends.values()))
    short = {}
    for key, names in ends.items():
        short[key] = next((name for name in names if counts[name] == 1), names[-1])
    return short


def varying(settings: pd.DataFrame) -> list[str]:
    """Return the keys of the settings in which the runs differ. Keys in :data:`GROUP_NAMES` come first.

    The list includes settings that only some of the runs have.
    """
    return sorted(settings.columns[settings.nunique(dropna=False) > 1], key=_preference)


def telling(settings: pd.DataFrame, keys: Sequence[str], kept: Sequence[str] = KEPT) -> list[str]:
    """Return a small subset of ``keys`` that distinguishes the runs as well as all ``keys`` do.

    Args:
        settings: A frame of settings.
        keys: The keys to choose from. Earlier keys are preferred.
        kept: Keys that are not removed from the subset even if later keys make them redundant.
    """
    settings = settings.reindex(columns=list(keys))

    def kinds(of: list[str]) -> int:
        return len(settings.drop_duplicates(of)) if of else 1

    chosen: list[str] = []
    for key in keys:
        if kinds([*chosen, key]) > kinds(chosen):
            chosen.append(key)
    for key in reversed(chosen):
        rest = [other for other in chosen if other != key]
        if key not in kept and kinds(rest) == kinds(chosen):
            chosen = rest
    return chosen


def row_numbers(settings: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    """Return the index of each run's table row, starting at 0.

    Runs with equal values of the settings ``keys`` are in the same row. The rows are sorted by these values.
    """
    import pandas as pd

    if not keys:
        return pd.Series(0, settings.index)
    return settings[list(keys)].apply(sort_places).groupby(list(keys)).ngroup()


def _preference(key: str) -> tuple[int, int, int, str]:
    group = key.partition(".")[0]
    return (*GROUP_NAMES, key).index(key), (*ORDER, group).index(group), key.count("."), key


@dataclass(frozen=True)
class Filter:
    """A filter of runs, such as ``training.lr<0.1``.

    Attributes:
        text: The filter as the user typed it.
        key: The key as the user typed it, see :func:`resolve_key`.
        sign: The comparison: =, !=, >=, <=, > or <.
        wanted: The values to compare with, in canonical form (see :func:`written`). There is exactly one value if
            ``sign`` is >=, <=, > or <.
    """

    text: str
    key: str
    sign: str
    wanted: tuple[str, ...]

    def holds(self, values: pd.Series) -> pd.Series:
        """Return a Boolean series that states whether each run passes the filter.

        ``values`` holds the value of the setting for each run. A run without the setting passes only filters with
        ``!=``.
        """
        if self.sign in ("=", "!="):
            return values.isin(self.wanted) == (self.sign == "=")
        numbers = values.map(as_number).astype("float64")  # NaN passes none
        passing: pd.Series = _COMPARED[self.sign](numbers, float(self.wanted[0]))
        return passing


def parse_filter(text: str) -> Filter:
    """Return the filter that a user typed on the command line, such as ``training.lr<0.1``.

    Raises:
        UserError: ``text`` is not a valid filter.
    """
    form = _FILTER.fullmatch(text)
    if not form:
        raise UserError("expected a filter (key=value, key!=value, key>=number) or an option (--name=value)", text)
    key, sign, rest = form.groups()
    wanted = tuple(typed(unquoted(part)) for part in split_commas(rest))
    if not all(wanted):
        raise UserError(f"a value is missing. Use {key}=a,b to select the runs with either value", text)
    if sign in _COMPARED and (len(wanted) > 1 or as_number(wanted[0]) is None):
        raise UserError(f"expected a single number after '{sign}'", text)
    return Filter(text, key.strip(), sign, wanted)


def split_commas(text: str) -> list[str]:
    """Split ``text`` at commas outside brackets: ``a,[1,2]`` becomes ``a`` and ``[1,2]``."""
    parts = [""]
    depth = 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return list(map(str.strip, parts))


def key_names(text: str) -> tuple[str, ...]:
    """Return the keys in a comma-separated list."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def select_runs(runs: RunSet, filters: Sequence[Filter]) -> tuple[RunSet, list[str]]:
    """Return the runs that pass all ``filters``, and notes.

    A note lists the values that a filter names but no run has.

    Raises:
        UserError: No run has the key of a filter, or no run passes all filters. The message names the key or
            the filter.
    """
    known = runs.keys()
    lines = []
    for condition in filters:
        key = resolve_key(condition.key, known)
        values = runs.settings[key]
        passing = condition.holds(values)
        present = values.unique()
        shown = f"{key} has the values {first_few(sorted_texts(present), MAX_VALUES)}"
        if not passing.any():
            raise UserError(f"none of {len(values)} runs matches. {shown}", condition.text)
        runs = runs.only(passing)
        absent = [value for value in condition.wanted if value not in present]
        if absent and condition.sign in ("=", "!="):
            lines.append(f"{condition.text}: no run has the value {', '.join(absent)}. {shown}.")
    return runs, lines


def sorted_texts(values: Iterable[str]) -> list[str]:
    """Return ``values`` in the order of :func:`sort_key`, with ``(absent)`` for each missing value."""
    return [value if isinstance(value, str) else "(absent)" for value in sorted(values, key=sort_key)]
