"""From a claim to numbers: the effect of each seed, what resampled test items make of it, and what is not known."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from knot_runner.report.claims.bootstrap import EffectEstimate, estimate_effect
from knot_runner.report.claims.items import Problems, Want, replicates
from knot_runner.report.claims.looks import Look, last_look, looks
from knot_runner.report.claims.measures import (
    MISSING,
    Reading,
    TargetRounds,
    measure_of,
    read_measure,
    rounds_of,
)
from knot_runner.report.claims.pairs import EffectPart, Unit, units
from knot_runner.report.claims.spec import Claim, planned_seeds
from knot_runner.report.run_folders import Run

Basis = Literal["seeds and test items", "seeds", "seeds, not the test items that they share", "test items"]


@dataclass(frozen=True)
class Evidence:
    """Of one claim. ``runs``: jobs that it is on; ``seeds``: how many are whole, from 0 on; ``look``: the last one that
    these allow, over whose seeds the estimate is (without one: over all that are there); ``at_most``, ``at_least``:
    seeds whose true effect is that shown or less, or more (targets not reached); ``one_sided``: whether runs diverged
    on one side alone."""

    estimate: EffectEstimate | None
    runs: int
    seeds: int = 0
    look: Look | None = None
    notes: tuple[str, ...] = ()
    at_most: int = 0
    at_least: int = 0
    one_sided: bool = False
    basis: Basis = "seeds"


@dataclass(frozen=True)
class Effect:
    """A unit that has a number; ``bound``: 1 where the true one is that or more, -1 where it is that or less."""

    unit: Unit
    value: float
    bound: int = 0


@dataclass
class FoundEffects:
    """The effects of a claim that the records hold; ``reasons``: how many they do not, and why; ``lost``: seeds with
    records that are not there, or damaged."""

    effects: list[Effect]
    reasons: Counter[str]
    lost: set[int]


def gather(claims: Sequence[Claim], runs: Sequence[Run], options: Mapping[str, Any], command: str) -> list[Evidence]:
    """The evidence on each of ``claims``; ``options``: the preset's ``report``. Raises :class:`UserError` for claims
    that their runs cannot decide."""
    rounds = rounds_of(runs, options, command) if any(claim.measure == "rounds" for claim in claims) else None
    planned = [units(claim, runs) for claim in claims]
    found = [_effects(claim, own, rounds) for claim, own in zip(claims, planned, strict=True)]
    wanted = {
        _want(claim, part)
        for claim, own in zip(claims, found, strict=True)
        if measure_of(claim).items
        for effect in own.effects
        for part in effect.unit.parts
    }
    by_id = {run.job.run_id: run for run in runs}
    bank, problems = replicates(sorted(wanted, key=repr), by_id, command)
    for claim, own in zip(claims, found, strict=True):
        if measure_of(claim).items:
            _leave_out_unreadable(claim, own, bank, problems)
    seeds = planned_seeds(options)
    return [_evidence(claim, own, one, bank, seeds) for claim, own, one in zip(claims, planned, found, strict=True)]


def _want(claim: Claim, part: EffectPart) -> Want:
    return Want(part.run.job.run_id, part.side, claim.measure, claim.dataset, claim.over)


def _effects(claim: Claim, planned: Sequence[Unit], rounds: TargetRounds | None) -> FoundEffects:
    """What the records of the ``planned`` units hold."""
    found = FoundEffects([], Counter(), set())
    for unit in planned:
        readings = [read_measure(claim, part.run, part.side, rounds) for part in unit.parts]
        effect, why = _effect(claim, unit, readings)
        if effect:
            found.effects.append(effect)
        else:
            found.reasons[why] += 1
        if any(reading.lost for reading in readings):
            found.lost.add(unit.seed)
    return found


def _effect(claim: Claim, unit: Unit, readings: Sequence[Reading]) -> tuple[Effect | None, str]:
    whys = [reading.why for reading in readings if reading.value is None]
    if whys:
        return None, next((why for why in whys if why != MISSING), MISSING)
    bounds = {int(math.copysign(1, part.weight)) for part, r in zip(unit.parts, readings, strict=True) if r.bound}
    if len(bounds) > 1:
        return None, "target not reached on either side"
    values = [reading.value for reading in readings if reading.value is not None]
    if claim.logs and min(values) <= 0:
        return None, "there is no ratio to 0"
    values = [math.log(value) for value in values] if claim.logs else values
    value = math.fsum(part.weight * v for part, v in zip(unit.parts, values, strict=True))
    return Effect(unit, value, next(iter(bounds), 0)), ""


def _evidence(
    claim: Claim, planned: Sequence[Unit], found: FoundEffects, bank: Mapping[Want, np.ndarray], seeds: int
) -> Evidence:
    """Of ``found`` among the ``planned`` units; ``seeds``: how many the claims are planned on."""
    there = {unit.seed for unit in planned} - found.lost
    whole = next(seed for seed in itertools.count() if seed not in there)
    look = last_look(seeds, whole)
    counted = [effect for effect in found.effects if look is None or effect.unit.seed < look.seeds]
    cells, reasons = _balanced(counted), found.reasons
    if len(counted) > len(cells):
        reasons["their settings have fewer seeds"] += len(counted) - len(cells)
    notes = [f"{count} of {len(planned)} effects left out: {why}" for why, count in reasons.items()]
    runs = len({part.run.job.run_id for unit in planned for part in unit.parts})
    if not cells:
        return Evidence(None, runs, whole, look, tuple(notes))
    bounds = Counter(effect.bound for effect in cells)
    notes += _on_bounds(bounds, len(cells)) + _on_look(look, whole, seeds, len(there))
    apart = claim.measure != "rounds" and _diverged_apart(planned)  # one that diverges reaches no target, which is told
    made, basis = _over_seeds(claim, cells, bank)
    return Evidence(made, runs, whole, look, tuple(notes), bounds[-1], bounds[1], apart, basis)


def _leave_out_unreadable(
    claim: Claim, found: FoundEffects, bank: Mapping[Want, np.ndarray], problems: Problems
) -> None:
    """Leave out the effects whose runs' test items are not on record, and say why."""
    kept = []
    for effect in found.effects:
        if all(_want(claim, part) in bank for part in effect.unit.parts):
            kept.append(effect)
        else:
            ids = [part.run.job.run_id for part in effect.unit.parts]
            found.reasons[next(problems[run_id] for run_id in ids if run_id in problems)] += 1
            found.lost.add(effect.unit.seed)
    found.effects = kept


def _over_seeds(claim: Claim, cells: Sequence[Effect], bank: Mapping[Want, np.ndarray]) -> tuple[EffectEstimate, Basis]:
    """The estimate over each seed's mean effect, and what it is over."""
    seeds = sorted({effect.unit.seed for effect in cells})
    by_seed = [[effect for effect in cells if effect.unit.seed == seed] for seed in seeds]
    made = [math.fsum(effect.value for effect in own) / len(own) for own in by_seed]
    if not measure_of(claim).items:
        alone: Basis = "seeds, not the test items that they share" if measure_of(claim).tested else "seeds"
        return estimate_effect(made, None), alone
    again = np.stack([_again(claim, own, bank) for own in by_seed], axis=1)
    return estimate_effect(made, again), "seeds and test items" if len(seeds) > 1 else "test items"


def _again(claim: Claim, effects: Sequence[Effect], bank: Mapping[Want, np.ndarray]) -> np.ndarray:
    """One seed's mean effect on resampled items [B]."""
    total = 0.0
    for effect in effects:
        for part in effect.unit.parts:
            values = bank[_want(claim, part)]
            total = total + part.weight * (np.log(np.maximum(values, 1e-12)) if claim.logs else values)
    return np.asarray(total) / len(effects)


def _balanced(effects: Sequence[Effect]) -> list[Effect]:
    """The effects of the cells with the most seeds, at the seeds that all of these have, so that each seed's mean is
    over the same cells."""
    seeds: dict[Any, set[int]] = defaultdict(set)
    for effect in effects:
        seeds[effect.unit.cell].add(effect.unit.seed)
    most = max(map(len, seeds.values()), default=0)
    cells = {cell: own for cell, own in seeds.items() if len(own) == most}
    shared = set.intersection(*cells.values()) if cells else set()
    return [effect for effect in effects if effect.unit.cell in cells and effect.unit.seed in shared]


def _diverged_apart(planned: Sequence[Unit]) -> bool:
    """Whether a unit has runs that diverged, and finished ones."""
    return any({"diverged", "done"} <= {part.run.status for part in unit.parts} for unit in planned)


def _on_bounds(bounds: Counter[int], count: int) -> list[str]:
    """What was put in the place of a target that is not reached."""
    if not (bounds[1] or bounds[-1]):
        return []
    words = {-1: "at most", 1: "at least"}
    sides = [f"{word} that in {bounds[sign]} of {count}" for sign, word in words.items() if bounds[sign]]
    counted = "target not reached on one side, which counts as if it were in the next round"
    return [f"{counted}; the true effect is {', '.join(sides)}"]


def _on_look(look: Look | None, whole: int, planned: int, there: int) -> list[str]:
    """Which seeds do not count yet, of those that are ``there``."""
    following = next(one.seeds for one in looks(planned) if one.seeds > whole)
    if look is None:
        return [f"no verdict before all runs of seeds 0 to {planned - 1} are there"]
    rest = there - look.seeds
    return (
        [f"judged on seeds 0 to {look.seeds - 1}; the other {rest} count once all of 0 to {following - 1} are there"]
        if rest
        else []
    )
