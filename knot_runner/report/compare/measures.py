"""Measures of the command ``compare``. Every number in a result is a measure.

A measure has a dotted key, such as ``metrics.f1.ALL``, and a short form, such as ``f1``.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from knot_runner.metrics import METRICS, NUMBERS, Direction, accuracy_first, top_of
from knot_runner.report.render.text import prefix_of
from knot_runner.util.errors import UserError, nearest

if TYPE_CHECKING:
    from knot_runner.report.frame import RunSet

#: The measure that is shown without --measure if the runs have no preferred measure.
FALLBACK = "seconds.total"


def known_measures(runs: RunSet) -> list[str]:
    """Return the dotted keys of all measures in the results of ``runs``."""
    return sorted(runs.metrics.metric.unique())


def measures_of(runs: RunSet, names: Sequence[str]) -> list[str]:
    """Return the dotted keys of the measures in a comparison.

    Args:
        runs: The compared runs.
        names: The names of the measures, see :func:`resolve_measure`. () selects the default measures that all finished
            runs have. If there is no such measure, () selects only the first default measure that any run has.

    Raises:
        UserError: A name is unknown.
    """
    if names:
        known = known_measures(runs)
        return list(dict.fromkeys(resolve_measure(name, known) for name in names))
    having = runs.metrics.dropna().metric.value_counts()
    everywhere = having.index[having == len(runs.finished.runs)]
    return _preferred(everywhere) or _preferred(having.index)[:1]


def resolve_measure(name: str, keys: Sequence[str], flag: str = "--measure") -> str:
    """Return the dotted key that ``name`` stands for. The key is one of ``keys``.

    For example, ``f1`` stands for ``metrics.f1.ALL``, ``f1.MELD`` for ``metrics.f1.MELD``, ``seconds`` for
    ``seconds.total``, and ``bytes`` for ``costs.bytes``.

    Raises:
        UserError: ``name`` is unknown. The message contains the command-line option ``flag``.
    """
    for full in (name, f"metrics.{name}", f"metrics.{name}.ALL", f"{name}.ALL", f"{name}.total", f"costs.{name}"):
        if full in keys:
            return full
    short = list(map(measure_title, keys))
    below = [key for key in short if key.startswith(f"{name}.")]
    if below:
        raise UserError(f"incomplete name (choose from {', '.join(below[:8])})", f"{flag}={name}")
    if not keys:
        raise UserError("none of the runs is finished", f"{flag}={name}")
    hint = nearest(name, short)
    if "did you mean" not in hint:
        hint = f" (choose from {', '.join(map(measure_title, _preferred(keys)))} and the other numbers in result.json)"
    raise UserError(f"not in any result{hint}", f"{flag}={name}")


def _preferred(keys: Container[str]) -> list[str]:
    """Return the preferred measures among ``keys``, or :data:`FALLBACK` if no preferred measure is present."""
    preferred = [f"metrics.{name}.ALL" for name in accuracy_first() if METRICS[name].preferred]
    preferred += [name for name, entry in NUMBERS.items() if entry.preferred]
    shown = [key for key in preferred if key in keys]
    if not shown and FALLBACK in keys:
        shown = [FALLBACK]
    return shown


def direction(key: str) -> Direction | None:
    """Return whether higher or lower values of the measure ``key`` are better; None if this is unknown."""
    key = key.partition(" (")[0]  # without the kind of models in the key of a column
    known = {**NUMBERS, **METRICS}
    ways = {known[part].better for part in key.split(".") if part in known}
    return next((way for way in ("lower", "higher") if way in ways), None)


def measure_title(key: str) -> str:
    """Return the short form of the dotted ``key``: ``f1`` for ``metrics.f1.ALL``, ``bytes`` for ``costs.bytes``."""
    return key.removeprefix("metrics.").removeprefix("costs.").removesuffix(".ALL")


def unit_of(key: str, values: Sequence[float]) -> tuple[str, float]:
    """Return the unit of a column, and the factor by which its ``values`` are divided for display.

    For bytes and FLOPs, the result, such as ("MB", 1e6), depends on the largest value. For other measures, the unit is
    "" and the factor is 1. ``key`` is the dotted key of the measure.
    """
    if key.startswith("costs.bytes"):
        unit = "B"
    elif key.startswith("costs.") and ("flops" in key or key.startswith("costs.stages.")):
        unit = "FLOP"
    else:
        return "", 1.0
    prefix, factor = prefix_of(max(values, default=0.0))
    return f"{prefix}{unit}", factor


def digits(key: str, values: Sequence[float]) -> int:
    """Return the number of decimals for a column. ``values`` holds the displayed numbers of the column.

    Fractions have three decimals, and a column of integers has none. Other columns have enough decimals to show about
    four significant digits.
    """
    if top_of(key) == 1 or not values:
        return 3
    if all(float(value).is_integer() for value in values):
        return 0
    largest = max(map(abs, values))
    if largest < 0.1:
        return 4
    return int(sum(largest < limit for limit in (10, 100, 1000)))
