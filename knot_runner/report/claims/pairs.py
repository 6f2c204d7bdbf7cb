"""Selection of the runs that decide a claim, for each seed.

Most claims compare pairs of runs that differ only in the settings that the claim varies. A claim on a trend compares
runs with different values of a numeric setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from knot_runner.config.settings.partition import TRAINING_SHARES, unlike_shares
from knot_runner.config.settings.run import ARM
from knot_runner.report.claims.spec import BEFORE, Claim
from knot_runner.report.compare.settings import SEED, row_numbers, varying
from knot_runner.report.frame import RunSet
from knot_runner.report.run_folders import ModelSide, Run
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: Key of a run: the number of its cell (a combination of the settings that the claim does not vary), numbers for
#: further settings, and the seed.
CellPlace = tuple[float, ...]


@dataclass(frozen=True)
class EffectPart:
    """One summand of an effect: ``weight`` times the measure of ``run``.

    ``side`` selects the model after or before distillation.
    """

    weight: float
    run: Run
    side: ModelSide = "after"


@dataclass(frozen=True)
class Want:
    """A request to compute a measure of one run on resampled test examples.

    Attributes:
        side: Whether the model after or before distillation is measured.
        measure: The name of the metric.
        on: The data set on which the measure is computed. ALL stands for all data sets.
        over: How the metric is averaged over clients; None if the metric is not averaged over clients.
    """

    run_id: str
    side: ModelSide
    measure: str
    on: str = "ALL"
    over: str | None = None


@dataclass(frozen=True)
class Effect:
    """An effect for one seed: a weighted sum of the measures of runs.

    Attributes:
        cell: Numbers that identify the settings of the effect's runs, except the seed.
        parts: The summands.
        value: The value of the effect, or None.
        why: The reason for a missing value.
        wants: One request for each part. () if the measure cannot be computed on resampled test examples.
        bound: 1 if the value is a lower bound, -1 if the value is an upper bound, otherwise 0.
        lost: Whether a record of a run is missing or damaged, or the target accuracy is unknown.
    """

    cell: CellPlace
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

    @property
    def one_sided(self) -> bool:
        """Return whether some runs of the effect diverged while others finished normally."""
        return {"diverged", "done"} <= {run.status for run in self.runs}


def units(claim: Claim, runs: RunSet) -> Iterator[Effect]:
    """Yield the statistical units of ``claim``: the effects that decide it. The runs of an effect may be unfinished.

    Raises:
        UserError: Several runs with the same seed match ``claim.of`` or ``claim.against``; or the setting
            ``claim.trend`` has a value that is not a positive number.
    """
    asked_for = runs.having(claim.where)
    ours = asked_for.having(claim.of)
    cells = _cells(claim, runs)
    if claim.trend:
        yield from _along(claim, ours, cells)
        return
    others = _by_place(claim, asked_for.having(claim.against), cells) if isinstance(claim.against, dict) else {}
    # a ratio is ``against`` / ``of``, so that the ratio of a run that is twice as fast is 2
    sign = -1.0 if claim.logs and claim.against is not None else 1.0
    varied = row_numbers(runs.settings, sorted(claim.touched))
    for (cell, values, seed), run in _by_place(claim, ours, cells, varied).items():
        parts = [EffectPart(sign, run)]
        if claim.against == BEFORE:
            parts.append(EffectPart(-sign, run, "before"))
        elif (cell, seed) in others:
            parts.append(EffectPart(-sign, others[cell, seed]))
        if len(parts) == 2 or claim.against is None:
            yield Effect((cell, values), run.seed, parts)


def unlike_line(claim: Claim, effects: Iterable[Effect]) -> str:
    """Return a message about the first effect whose runs hold out different fractions of the training examples.

    The settings :data:`TRAINING_SHARES` are compared. Settings that the claim varies are ignored. The message is "" if
    there is no such effect.
    """
    for effect in effects:
        if line := unlike_shares([run.config for run in effect.runs], claim.touched):
            return line
    return ""


def _along(claim: Claim, ours: RunSet, cells: pd.Series) -> Iterator[Effect]:
    """Yield one effect per cell and seed: the least-squares slope of the measure against log2 of the claim's ``trend``.

    A cell (a combination of the other settings) has no effect for a seed unless it has a run at every value of the
    setting, and at least two values.
    """
    places = _by_place(claim, ours, cells, ours.runs.run.map(lambda run: _level(claim, run)))
    by_place: dict[CellPlace, list[Run]] = {}
    levels = set()
    for cell, level, seed in sorted(places, key=lambda place: place[1]):
        levels.add(level)
        by_place.setdefault((cell, seed), []).append(places[cell, level, seed])
    if len(levels) < 2:
        return
    logs = np.log2(sorted(levels))
    steps = logs - logs.mean()
    weights = (steps / (steps**2).sum()).tolist()
    for (cell, seed), members in by_place.items():
        if len(members) == len(levels):
            yield Effect((cell,), int(seed), list(map(EffectPart, weights, members)))


def _level(claim: Claim, run: Run) -> float:
    value = run.setting(str(claim.trend))
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UserError(f"claim {claim.text!r}: trend requires numbers above 0, but {claim.trend} is {value!r}")
    return float(value)


def _by_place(claim: Claim, runs: RunSet, *keys: pd.Series) -> dict[CellPlace, Run]:
    """Return a dict from (values of ``keys``, seed) to the run. A run that is requested twice counts once."""
    by_place: dict[CellPlace, Run] = {}
    for i, run in runs.runs.run.items():
        first = by_place.setdefault((*(key[i] for key in keys), run.seed), run)
        if first.run_id != run.run_id:
            both = runs.only(runs.runs.run_id.isin([first.run_id, run.run_id]))
            unlike = ", ".join(sorted(varying(both.counted))[:4])
            raise UserError(
                f"claim {claim.text!r}: the group 'of' or 'against' has several runs per seed. Also filter by {unlike}"
            )
    return by_place


def _cells(claim: Claim, runs: RunSet) -> pd.Series:
    """Return the cell number of each run.

    Runs of a cell differ only in the seed and in the settings that the claim varies. If a claim varies a name or kind,
    the settings that this name selects may differ too (``method.name`` selects all of ``method``), unless the preset
    sweeps them. If a claim varies the arm, the settings of all arms may differ. Held-out shares of the examples may
    differ unless the preset sweeps them; :func:`unlike_line` compares them.
    """
    swept = {part.partition("=")[0].lstrip("+") for part in ", ".join(runs.runs.label).split(", ")}
    free = {SEED, *claim.touched, *(set(TRAINING_SHARES) - swept)}
    free |= {f"{key.partition('.')[0]}.name" for key in claim.touched}
    groups = [key.rpartition(".")[0] + "." for key in claim.touched if key.endswith((".name", ".kind"))]
    if ARM in claim.touched:
        for arm in (runs.runs.run.iloc[0].setting("sweep.arms") or {}).values():
            for key in arm:
                name = key.lstrip("+~").rpartition("@")[2]
                free.add(name)
                groups.append(f"{name}.")
    shared = []
    for key in varying(runs.counted):
        selected = key.startswith(tuple(groups)) and key not in swept
        if key not in free and not selected:
            shared.append(key)
    return row_numbers(runs.settings, shared)
