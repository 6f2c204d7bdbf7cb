"""Selection of the runs that decide a claim, by seed: pairs without other differences, or runs along a setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from knot_runner.config.settings.partition import TRAINING_SHARES, unlike_shares
from knot_runner.config.settings.run import ARM
from knot_runner.report.claims.spec import BEFORE, Claim, config_leaves
from knot_runner.report.run_folders import Run
from knot_runner.util.errors import UserError

ModelSide = Literal["after", "before"]
#: Settings that do not affect a run's numbers, and the seed.
UNREAD = ("paths", "tracker", "sweep", "report", "seed")
#: (Settings that a place is told by, seed) -> the run there.
Places = dict[tuple[Any, int], Run]
#: A run's remaining settings, as text.
Rest = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class EffectPart:
    """``weight`` times the measure of a run; ``side``: whether of the model before or after distillation."""

    weight: float
    run: Run
    side: ModelSide = "after"


@dataclass(frozen=True)
class Want:
    """A requested measure of a run.

    It is a metric of predictions ``on`` a data set or ALL, or accuracy ``over`` its clients.
    """

    run_id: str
    side: ModelSide
    measure: str
    on: str = "ALL"
    over: str | None = None


@dataclass(frozen=True)
class Effect:
    """One effect: the sum of its ``parts``, at one ``seed``.

    Attributes:
        cell: The settings that its runs share.
        value: Its value, from the records of its runs, or None.
        why: Why it has no value.
        wants: The measures of its parts to resample; () for a measure that cannot be resampled.
        bound: 1 if the value is a lower bound, -1 if it is an upper bound.
        lost: Whether one of its records is missing or damaged.
    """

    cell: Any
    seed: int
    parts: Sequence[EffectPart]
    value: float | None = None
    why: str = ""
    wants: Sequence[Want] = ()
    bound: int = 0
    lost: bool = False

    @property
    def runs(self) -> list[Run]:
        """Return the runs of all parts."""
        return [part.run for part in self.parts]


def units(claim: Claim, runs: Sequence[Run]) -> list[Effect]:
    """Return the effects that decide ``claim``, whether or not their ``runs`` are finished.

    Raises:
        UserError: Two different runs match the same side of an effect.
    """
    asked_for = [run for run in runs if run.has(claim.where)]
    ours = [run for run in asked_for if run.has(claim.of)]
    rest = _rest(claim, runs)
    if claim.trend:
        return _along(claim, ours, rest)
    others: Places = {}
    if isinstance(claim.against, dict):
        others = _by_place(claim, [run for run in asked_for if run.has(claim.against)], rest)
    # a ratio is ``against`` / ``of``, so that twice as fast is 2
    sign = -1.0 if claim.logs and claim.against is not None else 1.0
    found = []
    for (cell, seed), run in _by_place(claim, ours, lambda run: (rest(run), _values(claim, run))).items():
        parts = [EffectPart(sign, run)]
        if claim.against == BEFORE:
            parts.append(EffectPart(-sign, run, "before"))
        elif claim.against is not None:
            other = others.get((cell[0], seed))
            if other is None:
                continue
            parts.append(EffectPart(-sign, other))
        found.append(Effect(cell, seed, parts))
    return found


def unlike_line(claim: Claim, found: Iterable[Effect]) -> str:
    """Return how the held-out shares of an effect's runs differ without the claim asking for it; "" if they do not."""
    lines = (unlike_shares([run.config for run in effect.runs], claim.touched) for effect in found)
    return next(filter(None, lines), "")


def _along(claim: Claim, ours: list[Run], rest: Callable[[Run], Rest]) -> list[Effect]:
    """Return the effects for the least-squares slope of the measure over log2 of the setting.

    There are none unless all its values exist.
    """
    places = _by_place(claim, ours, lambda run: (rest(run), _level(claim, run)))
    levels = np.array(sorted({level for (_, level), _ in places}))
    if len(levels) < 2:
        return []
    steps = np.log2(levels) - np.log2(levels).mean()
    weights = (steps / (steps**2).sum()).tolist()
    found = []
    for cell, seed in dict.fromkeys((cell, seed) for (cell, _), seed in places):
        members = [places.get(((cell, level), seed)) for level in levels.tolist()]
        parts = [EffectPart(w, run) for w, run in zip(weights, members, strict=True) if run]
        if len(parts) == len(levels):
            found.append(Effect(cell, seed, parts))
    return found


def _level(claim: Claim, run: Run) -> float:
    value = run.setting(str(claim.trend))
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UserError(f"claim {claim.text!r}: trend requires numbers above 0, but {claim.trend} is {value!r}")
    return float(value)


def _by_place(claim: Claim, runs: Iterable[Run], place: Callable[[Run], Any]) -> Places:
    """Return (``place``, seed) -> run. A run that is requested twice counts once."""
    found: Places = {}
    for run in runs:
        first = found.setdefault((place(run), run.seed), run)
        if first.run_id != run.run_id:
            a = config_leaves(first.config)
            b = config_leaves(run.config)
            unlike = sorted(key for key in {**a, **b} if a.get(key) != b.get(key) and not _unread(key))
            raise UserError(f"claim {claim.text!r}: a side matches two runs. Select one by {', '.join(unlike[:4])}")
    return found


def _rest(claim: Claim, runs: Sequence[Run]) -> Callable[[Run], Rest]:
    """Return a function that returns the settings which the runs of a pair must share.

    These are all settings that the claim does not vary.

    A varied name or kind includes the settings it selects (``method.name``: all of ``method``), unless they are swept.
    A varied arm includes the settings of the arms. Shares of held-out examples need not be equal, unless they are
    swept; :func:`unlike_line` compares them.
    """
    swept = {part.partition("=")[0].lstrip("+") for run in runs for part in run.label.split(", ")}
    free = claim.touched | {f"{key.partition('.')[0]}.name" for key in claim.touched}
    free |= set(TRAINING_SHARES) - swept
    groups = tuple(key.rpartition(".")[0] + "." for key in claim.touched if key.endswith((".name", ".kind")))
    if ARM in claim.touched:
        arms = runs[0].setting("sweep.arms") or {}
        of_arms = {key.lstrip("+~").rpartition("@")[2] for own in arms.values() for key in own}
        free |= of_arms
        groups += tuple(f"{key}." for key in of_arms)
    return lambda run: settings_of(run, lambda key: key in free or (key.startswith(groups) and key not in swept))


def settings_of(run: Run, varied: Callable[[str], bool]) -> Rest:
    """Return the settings of ``run`` that affect its numbers, without the seed and the ``varied`` ones."""
    config = config_leaves(run.config)
    return tuple(sorted((key, repr(value)) for key, value in config.items() if not (_unread(key) or varied(key))))


def _unread(key: str) -> bool:
    return key.partition(".")[0] in UNREAD


def _values(claim: Claim, run: Run) -> tuple[str, ...]:
    return tuple(repr(run.setting(key)) for key in sorted(claim.touched))
