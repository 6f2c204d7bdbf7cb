"""Evidence for a claim: the effect per seed, its replicates on resampled test items, and missing values."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from knot_runner.config.strict import by_key
from knot_runner.report.claims.items import Bank, Problems, replicates
from knot_runner.report.claims.measures import MISSING, RESULT, TargetRounds, measure_of, read_measure, rounds_of
from knot_runner.report.claims.pairs import Effect, Want, units, unlike_line
from knot_runner.report.claims.spec import TARGET_MEASURES, Claim, planned_seeds, unlike_reason
from knot_runner.report.run_folders import Run, finished
from knot_runner.report.run_rows import variants
from knot_runner.report.statistics.effects import EffectEstimate, Look, estimate_effect, looks
from knot_runner.util.config_yaml import Config

Basis = Literal["seeds and test items", "seeds", "seeds, not the test items that they share", "test items"]


@dataclass(frozen=True)
class Evidence:
    """Evidence for one claim.

    Attributes:
        runs: The number of its jobs.
        seeds: The number of complete seeds, counted from seed 0.
        look: The last interim analysis that these seeds allow. The estimate is over its seeds, or over all
            available ones if there is none.
        at_most, at_least: The number of seeds whose effect is only an upper or lower bound (targets not reached).
        one_sided: Whether runs diverged on one side only.
        refused: Whether it compares runs with different data without a reason.
    """

    estimate: EffectEstimate | None
    runs: int
    seeds: int = 0
    look: Look | None = None
    notes: Sequence[str] = ()
    at_most: int = 0
    at_least: int = 0
    one_sided: bool = False
    basis: Basis = "seeds"
    refused: bool = False


def gather(claims: Sequence[Claim], runs: Sequence[Run], options: Config) -> list[Evidence]:
    """Collect the evidence for each of ``claims``; ``options``: the preset's ``report``.

    Raises:
        UserError: The runs cannot decide a claim.
    """
    rounds = rounds_of(runs, options) if any(claim.measure in TARGET_MEASURES for claim in claims) else None
    found = [[_measured(claim, effect, rounds) for effect in units(claim, runs)] for claim in claims]
    wanted = {want for effect in itertools.chain(*found) for want in effect.wants}
    bank, problems = replicates(sorted(wanted, key=repr), {run.run_id: run for run in finished(runs)})
    seeds = planned_seeds(options)
    reason = unlike_reason(options)
    gathered = []
    for claim, effects in zip(claims, found, strict=True):
        for i, effect in enumerate(effects):
            damaged = [want.run_id for want in effect.wants if want not in bank and want not in problems]
            if damaged:
                effects[i] = replace(effect, why=problems[damaged[0]], lost=True)
        gathered.append(_evidence(claim, effects, bank, problems, seeds, reason))
    return gathered


def _measured(claim: Claim, effect: Effect, rounds: TargetRounds | None) -> Effect:
    """Return ``effect`` with the values from the records of its runs."""
    readings = [read_measure(claim, part.run, part.side, rounds) for part in effect.parts]
    effect = replace(effect, lost=any(reading.lost for reading in readings))
    whys = [reading.why for reading in readings if reading.value is None]
    if whys:
        return replace(effect, why=next((why for why in whys if why != MISSING), MISSING))
    bounds = {int(math.copysign(1, part.weight)) for part, r in zip(effect.parts, readings, strict=True) if r.bound}
    if len(bounds) > 1:
        return replace(effect, why="target not reached on either side")
    values = [reading.value for reading in readings if reading.value is not None]
    if claim.logs and min(values) <= 0:
        return replace(effect, why="the ratio is undefined, since a value is 0")
    values = [math.log(value) for value in values] if claim.logs else values
    value = math.fsum(part.weight * v for part, v in zip(effect.parts, values, strict=True))
    effect = replace(effect, value=value, bound=next(iter(bounds), 0))
    if not measure_of(claim).items:
        return effect
    asked = (claim.measure, claim.dataset, claim.over)
    return replace(effect, wants=[Want(part.run.run_id, part.side, *asked) for part in effect.parts])


def _evidence(
    claim: Claim, effects: Sequence[Effect], bank: Bank, problems: Problems, seeds: int, reason: str | None
) -> Evidence:
    """Return the evidence from all ``effects`` of a claim, including those without a value.

    ``problems``: of measures that cannot be resampled; ``seeds``: planned number of seeds; ``reason``: why the preset
    compares runs with different data.
    """
    reasons = Counter(effect.why for effect in effects if effect.why)
    lost = {effect.seed for effect in effects if effect.lost}
    there = {effect.seed for effect in effects} - lost
    whole = next(seed for seed in itertools.count() if seed not in there)
    look = next(reversed(looks(seeds, whole)), None)
    counted = [effect for effect in effects if not effect.why and (look is None or effect.seed < look.seeds)]
    cells = _balanced(counted)
    if len(counted) > len(cells):
        reasons["their seeds are missing in other settings"] += len(counted) - len(cells)
    notes = [f"{count} of {len(effects)} effects left out: {why}" for why, count in reasons.items()]
    runs = len({run.run_id for effect in effects for run in effect.runs})
    unlike = unlike_line(claim, effects)
    if unlike and not reason:
        line = f"the runs hold out different shares of the training examples: {unlike}"
        return Evidence(None, runs, whole, look, (f"{line}, or allow it with report.unlike=REASON",), refused=True)
    if unlike:
        notes.append(f"{unlike.partition(';')[0]}: {reason}")
    if not cells:
        return Evidence(None, runs, whole, look, notes)
    bounds = Counter(effect.bound for effect in cells)
    words = {-1: "at most", 1: "at least"}
    sides = [f"{word} this value in {bounds[sign]} of {len(cells)}" for sign, word in words.items() if bounds[sign]]
    if sides:
        moment = "at the end of the run" if claim.measure == "time" else "in the next round"
        counts = f"target not reached on one side, counted as if reached {moment}"
        notes.append(f"{counts}; the true effect is {', '.join(sides)}")
    if look is None:
        notes.append(f"no verdict before all runs of seeds 0 to {seeds - 1} are finished")
    elif rest := len(there) - look.seeds:
        judged = f"judged on seeds 0 to {look.seeds - 1}"
        notes.append(f"{judged}; the other {rest} count after all of 0 to {2 * look.seeds - 1} are finished")
    statuses = [{run.status for run in effect.runs} for effect in effects]
    # a diverged run reaches no target, which is reported elsewhere
    apart = claim.measure not in TARGET_MEASURES and any({"diverged", "done"} <= own for own in statuses)
    kinds = [kind for kind in variants(_key(claim), [run for effect in cells for run in effect.runs]) if kind]
    if len(kinds) > 1:
        notes.append(f"the runs are evaluated differently ({'; '.join(kinds)})")
    fixed = {problems[want] for effect in cells for want in effect.wants if want in problems}
    notes += [f"the test items are not resampled: {why}" for why in sorted(fixed)]
    made, basis = _over_seeds(claim, cells, bank if not fixed else None)
    return Evidence(made, runs, whole, look, notes, bounds[-1], bounds[1], apart, basis)


def _key(claim: Claim) -> str:
    """Return the dotted key of results that tells which models the measure evaluates; "" if none is needed."""
    if claim.measure in TARGET_MEASURES:
        return "rounds_to_target"
    if claim.measure.startswith(RESULT):
        return claim.measure.removeprefix(RESULT)
    name = measure_of(claim).key
    return f"metrics.{name}.ALL" if name and not claim.over else ""


def _over_seeds(claim: Claim, cells: Sequence[Effect], bank: Bank | None) -> tuple[EffectEstimate, Basis]:
    """Return the estimate from each seed's mean effect, and its basis: what varies in it.

    ``bank``: None if test items cannot be resampled.
    """
    by_seed = [own for _, own in sorted(by_key((effect.seed, effect) for effect in cells).items())]
    made = [math.fsum(effect.value for effect in own) / len(own) for own in by_seed]
    if bank is None or not measure_of(claim).items:
        alone: Basis = "seeds, not the test items that they share" if measure_of(claim).tested else "seeds"
        return estimate_effect(made, None), alone
    again = np.stack([_again(claim, own, bank) for own in by_seed], axis=1)
    return estimate_effect(made, again), "seeds and test items" if len(by_seed) > 1 else "test items"


def _again(claim: Claim, effects: Sequence[Effect], bank: Bank) -> np.ndarray:
    """Return one seed's mean effect on each of B resamples of the test items [B]."""
    total: np.ndarray | float = 0.0
    for effect in effects:
        for part, want in zip(effect.parts, effect.wants, strict=True):
            values = np.log(np.maximum(bank[want], 1e-12)) if claim.logs else bank[want]
            total = total + part.weight * values
    return np.asarray(total) / len(effects)


def _balanced(effects: Sequence[Effect]) -> list[Effect]:
    """Return the effects of the cells with the most seeds, at the seeds that these cells have in common.

    Each seed's mean is therefore over the same cells.
    """
    seeds = by_key((effect.cell, effect.seed) for effect in effects)
    most = max(map(len, seeds.values()), default=0)
    cells = {cell: own for cell, own in seeds.items() if len(own) == most}
    shared = set.intersection(*map(set, cells.values())) if cells else set()
    return [effect for effect in effects if effect.cell in cells and effect.seed in shared]
