"""Settings of many runs side by side: as text that compares, by dotted key, and which of them set runs apart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from knot_runner.util.errors import UserError, nearest

#: Dotted key -> value as :func:`written`; a key that a run does not have is absent.
SettingsText = Mapping[str, str]
#: What names a choice is the first answer to how runs differ; the rest by group, the shallower key first.
GROUP_NAMES = ("task.name", "method.name", "model.name", "partition.kind", "training.name", "task.source")
#: Shown wherever they differ, even if other settings say the same.
KEPT = GROUP_NAMES[:2]
ORDER = ("method", "training", "partition", "model", "task")
#: Numbers from here on are compared as words, infinity among them.
MAX_PLAIN = 1e300
# numbers that YAML 1.1 takes for words
_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")


# -------------------------------------------------------------------------------------------------------------- values


def flatten_settings(values: Mapping[Any, Any], before: str = "") -> dict[str, str]:
    """Dotted key -> :func:`written` value, of all leaves of nested ``values``; an empty mapping is a leaf."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat |= flatten_settings(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = written(value)
    return flat


def written(value: Any) -> str:
    """``value`` as one types it, the same for the same value: ``4.0`` is ``4``, ``1e-2`` is ``0.01``, ``[1,2]``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, str):
        return written(float(value)) if _EXPONENT.fullmatch(value) else value
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    return json.dumps(value, default=str) if isinstance(value, dict) else str(value)


def typed(text: str) -> str:
    """What a user typed for a value, as :func:`written` has it: ``1.0`` is ``1``, ``True`` is ``true``."""
    text = text.strip()
    if text.startswith("["):
        return text.replace(" ", "")
    if text.lower() in ("true", "false", "null"):
        return text.lower()
    try:
        return written(int(text))
    except ValueError:
        pass
    try:
        return written(float(text))
    except ValueError:
        return text


def as_number(text: str | None) -> float | int | None:
    """The number that ``text`` is the :func:`written` form of; None for a word, such as ``007``."""
    for kind in (int, float):
        try:
            value = kind(text)
        except (ValueError, TypeError):
            continue
        return value if abs(value) < MAX_PLAIN and written(value) == text else None  # not nan
    return None


def sort_key(text: str | None) -> tuple[int, float, str]:
    """Numbers by size, then words, then what is absent."""
    if text is None:
        return 2, 0.0, ""
    value = as_number(text)
    return (1, 0.0, text) if value is None else (0, float(value), "")


# ---------------------------------------------------------------------------------------------------------------- keys


def resolve_key(key: str, known: Iterable[str]) -> str:
    """The dotted key that ``key`` means: itself, or for a group its name (``task`` is ``task.name``).

    Raises :class:`UserError` with the keys that end like it, or the nearest one.
    """
    keys = set(known)
    for full in (key, f"{key}.name", f"{key}.kind"):
        if full in keys:
            return full
    ends = sorted((full for full in keys if full.endswith(f".{key}")), key=lambda full: (full.count("."), full))[:4]
    if ends:
        raise UserError(f"{key}: no run has this setting (did you mean {' or '.join(map(repr, ends))}?)")
    hint = nearest(key, keys | {full.removesuffix(".name") for full in keys})
    raise UserError(
        f"{key}: no run has this setting{hint if 'did you mean' in hint else '; keys are as in config.yaml'}"
    )


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Each key's last part, or as many parts as set it apart from the others; ``method.name`` is ``method``."""
    plain = {key: key.removesuffix(".name").removesuffix(".kind") for key in keys}
    short = {}
    for key, text in plain.items():
        parts = text.split(".")
        ends = (".".join(parts[-n:]) for n in range(1, len(parts) + 1))
        others = [other for own, other in plain.items() if own != key]
        short[key] = next((end for end in ends if not any(f".{o}".endswith(f".{end}") for o in others)), text)
    return short


# ------------------------------------------------------------------------------------------------------- differences


def varying(rows: Sequence[SettingsText]) -> list[str]:
    """Keys in which ``rows`` differ, a key that only some have among them, in the order of :data:`ORDER`."""
    if not rows:
        return []
    first, keys = rows[0], dict.fromkeys(key for row in rows for key in row)
    return sorted((key for key in keys if any(row.get(key) != first.get(key) for row in rows)), key=_preference)


def telling(rows: Sequence[SettingsText], keys: Sequence[str], kept: Sequence[str] = KEPT) -> list[str]:
    """The few of ``keys`` that set ``rows`` apart as finely as all of them do, earlier ones first; of ``kept`` each
    that tells rows apart which those before it do not."""
    wanted = len({tuple(row.get(key) for key in keys) for row in rows})
    chosen: list[str] = []
    found, labels = 1, [0] * len(rows)
    for key in keys:
        codes: dict[tuple[int, str | None], int] = {}
        finer = [codes.setdefault((label, row.get(key)), len(codes)) for label, row in zip(labels, rows, strict=True)]
        if len(codes) > found:
            chosen, found, labels = [*chosen, key], len(codes), finer
        if found == wanted:
            break
    for key in reversed([key for key in chosen if key not in kept]):
        rest = [other for other in chosen if other != key]
        if len({tuple(row.get(other) for other in rest) for row in rows}) == wanted:
            chosen = rest
    return chosen


def _preference(key: str) -> tuple[int, int, int, str]:
    if key in GROUP_NAMES:
        return 0, GROUP_NAMES.index(key), 0, key
    group = key.partition(".")[0]
    return 1, ORDER.index(group) if group in ORDER else len(ORDER), key.count("."), key
