"""What ``compare`` measures: any number of a result by its dotted key or a short form, and which way is better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from knot_runner.report.records.schema import TOP
from knot_runner.util.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd

    from knot_runner.report.frame import RunSet

Direction = Literal["higher", "lower"]
#: Shown without --measure: of these, those that all runs have; else the first that any has.
PREFERRED = (
    "metrics.accuracy.ALL", "metrics.f1.ALL", "metrics.sd.ALL", "metrics.distance.ALL", "value", "seconds.total",
)  # fmt: skip
#: Of the preferred, those that say how long it took or are shown only where nothing else is.
FALLBACK = ("seconds.total",)
HIGHER = frozenset({"accuracy", "client_accuracy", "f1", "ari", "classes_covered"})
LOWER = frozenset({"sd", "loss", "tempered_loss", "distance", "seconds", "rounds_to_target"})


def known_measures(runs: RunSet) -> list[str]:
    """Every dotted key that is a number, or null, in the result of one of ``runs``."""
    return sorted(runs.metrics["metric"].unique())


def measures_of(runs: RunSet, names: Sequence[str]) -> list[str]:
    """The dotted keys that ``names`` mean; of none the :func:`default_measures`. Raises :class:`UserError`."""
    if not names:
        return default_measures(runs.metrics, len(runs.finished.runs))
    known = known_measures(runs)
    return list(dict.fromkeys(resolve_measure(name, known) for name in names))


def resolve_measure(name: str, keys: Sequence[str], flag: str = "--measure") -> str:
    """The dotted key that ``name`` means: ``f1`` is ``metrics.f1.ALL``, ``f1.MELD`` ``metrics.f1.MELD``, ``seconds``
    ``seconds.total``. Raises :class:`UserError`, which names the ``flag`` it was asked with."""
    there = set(keys)
    for full in (name, f"metrics.{name}", f"metrics.{name}.ALL", f"{name}.ALL", f"{name}.total"):
        if full in there:
            return full
    short = [key.removeprefix("metrics.").removesuffix(".ALL") for key in keys]
    below = [key for key in short if key.startswith(f"{name}.")]
    if below:
        raise UserError(f"{flag}={name}: which one? There is {', '.join(below[:8])}")
    if not keys:
        raise UserError(f"{flag}={name}: none of the runs has finished, so there is nothing to measure")
    hint = nearest(name, short)
    usual = ", ".join(measure_title(key) for key in _preferred(there))
    raise UserError(f"{flag}={name}: no result has it{hint if 'did you mean' in hint else f' (there is: {usual})'}")


def default_measures(metrics: pd.DataFrame, runs: int) -> list[str]:
    """The measures of :data:`PREFERRED` that all of as many finished ``runs`` have; else the first that any has."""
    having = metrics.dropna()["metric"].value_counts()
    return _preferred(set(having.index[having == runs])) or _preferred(set(having.index))[:1]


def _preferred(keys: set[str]) -> list[str]:
    """Those of :data:`PREFERRED` that are among ``keys``; those of :data:`FALLBACK` only where nothing else is."""
    shown = [key for key in PREFERRED if key in keys]
    return [key for key in shown if key not in FALLBACK] or shown


def direction(key: str) -> Direction | None:
    """Whether higher or lower is better; None where that is not known."""
    parts = set(key.split("."))
    if parts & LOWER:
        return "lower"
    return "higher" if parts & HIGHER else None


def is_share(key: str) -> bool:
    """Whether ``key`` is from 0 to 1, and printed as shares are."""
    return any(TOP.get(part) == 1.0 for part in key.split("."))


def measure_title(key: str) -> str:
    """``key`` as one would type it: ``metrics.f1.ALL`` is ``f1``."""
    return key.removeprefix("metrics.").removesuffix(".ALL")


def digits(key: str, values: Sequence[float]) -> int:
    """Digits behind the point that a column of ``values`` is printed with: three of a share, else four in all."""
    if is_share(key) or not values:
        return 3
    if all(float(value).is_integer() for value in values):
        return 0
    largest = max(abs(value) for value in values)
    return next((places for places, limit in ((4, 0.1), (3, 10), (2, 100), (1, 1000)) if largest < limit), 0)
