"""Evidence for claims: the estimated effect, the number of seeds, and notes on missing values."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from knot_runner.config.strict import by_key
from knot_runner.report.claims.items import Bank, Problems, replicates
from knot_runner.report.claims.measures import RESULT, TargetRounds, measure_of, read_measure, rounds_of
from knot_runner.report.claims.pairs import Effect, Want, units, unlike_line
from knot_runner.report.claims.spec import TARGET_MEASURES, Claim, ClaimSettings
from knot_runner.report.frame import RunSet
from knot_runner.report.run_folders import NOT_RUN
from knot_runner.report.run_rows import variants
from knot_runner.report.statistics.effects import EffectEstimate, Look, estimate_effect, looks

Basis = Literal["seeds and test items", "seeds", "seeds, not the test items that they share", "test items"]


@dataclass(frozen=True)
class Evidence:
    """Evidence for one claim.

    Attributes:
        estimate: The estimate of the effect; None if no effect can be computed.
        runs: The number of runs that the claim uses, finished or not.
        seeds: The largest n such that all runs of the seeds 0 to n - 1 are usable.
        look: The last interim analysis for which there are enough seeds. The estimate uses only the seeds of this
            analysis. If ``look`` is None, the estimate uses all seeds.
        notes: Notes for the user.
        bounds: ``bounds[1]`` counts the effects that are lower bounds. ``bounds[-1]`` counts the effects that are upper
            bounds. An effect is a bound if one of its runs did not reach the target accuracy.
        one_sided: Whether, for at least one effect, some runs diverged while others finished normally. Always False for
            :data:`TARGET_MEASURES`.
        basis: The sources of variation that the interval covers.
        refused: Whether the claim is refused because its runs hold out different fractions of the training examples.
    """

    estimate: EffectEstimate | None
    runs: int
    seeds: int = 0
    look: Look | None = None
    notes: Sequence[str] = ()
    bounds: Mapping[int, int] = field(default_factory=dict)
    one_sided: bool = False
    basis: Basis = "seeds"
    refused: bool = False


def gather(claims: Sequence[Claim], runs: RunSet, settings: ClaimSettings) -> list[Evidence]:
    """Return the evidence for each claim.

    Args:
        claims: The claims of a preset.
        runs: The runs of the preset, finished or not.
        settings: The preset's settings for claims.

    Raises:
        UserError: A claim does not fit the runs.
    """
    rounds = rounds_of(runs, settings.target) if settings.needs_target else None
    by_claim = []
    wanted: set[Want] = set()
    for claim in claims:
        effects = [_measured(claim, effect, rounds) for effect in units(claim, runs)]
        by_claim.append((claim, effects))
        for effect in effects:
            wanted.update(effect.wants)
    by_id = dict(zip(runs.runs.run_id, runs.runs.run, strict=True))
    bank, problems = replicates(sorted(wanted, key=repr), by_id)
    return [_evidence(*pair, bank, problems, settings) for pair in by_claim]


def _measured(claim: Claim, effect: Effect, rounds: TargetRounds | None) -> Effect:
    """Return ``effect`` with the value from the records of the runs, or with the reason for a missing value."""
    values = []
    bounds = set()
    whys = []
    for part in effect.parts:
        reading = read_measure(claim, part.run, part.side, rounds)
        if reading.lost:
            effect = replace(effect, lost=True)
        if reading.bound:
            bounds.add(int(math.copysign(1, part.weight)))
        if reading.value is None:
            whys.append(reading.why)
        else:
            values.append(reading.value)
    if whys:
        return replace(effect, why=min(whys, key=lambda why: why == NOT_RUN))
    if len(bounds) > 1:
        return replace(effect, why="target not reached on either side of the comparison")
    if claim.logs:
        if min(values) <= 0:
            return replace(effect, why="the ratio is undefined, since a value is 0")
        values = list(map(math.log, values))
    value = math.fsum(part.weight * v for part, v in zip(effect.parts, values, strict=True))
    wants = []
    if measure_of(claim).items:
        wants = [Want(part.run.run_id, part.side, claim.measure, claim.dataset, claim.over) for part in effect.parts]
    return replace(effect, value=value, bound=sum(bounds), wants=wants)


def _evidence(
    claim: Claim, effects: Sequence[Effect], bank: Bank, problems: Problems, settings: ClaimSettings
) -> Evidence:
    """Return the evidence from all ``effects`` of a claim, including effects without a value.

    ``problems`` explains which measures cannot be resampled.
    """
    reasons = Counter(effect.why for effect in effects if effect.why)
    complete = {effect.seed for effect in effects} - {effect.seed for effect in effects if effect.lost}
    whole = 0
    while whole in complete:
        whole += 1
    look = next(reversed(looks(settings.seeds, whole)), None)
    counted = [effect for effect in effects if not effect.why and (look is None or effect.seed < look.seeds)]
    cells = _balanced(counted)
    if len(counted) > len(cells):
        reasons["their seeds are missing in other settings"] += len(counted) - len(cells)
    notes = []
    for why, count in reasons.items():
        notes.append(f"{count} of {len(effects)} effects left out: {why}")
    asked_for = itertools.chain(*(effect.runs for effect in effects))
    evidence = Evidence(None, len({run.run_id for run in asked_for}), whole, look, notes)
    unlike = unlike_line(claim, effects)
    if unlike and not settings.unlike:
        line = f"the runs hold out different shares of the training examples: {unlike}"
        return replace(evidence, notes=[f"{line}, or report.unlike=REASON to allow this"], refused=True)
    if unlike:
        notes.append(f"{unlike.partition(';')[0]}: {settings.unlike}")
    if not cells:
        return evidence
    bounds = Counter(effect.bound for effect in cells)
    sides = []
    for sign, word in ((-1, "at most"), (1, "at least")):
        if bounds[sign]:
            sides.append(f"{word} this value in {bounds[sign]} of {len(cells)} pairs of runs")
    if sides:
        moment = "at the end of the run" if claim.measure == "time" else "in the next round"
        counts = f"a run that did not reach the target counts as if it reached the target {moment}"
        notes.append(f"{counts}; the true effect is {', '.join(sides)}")
    if look is None:
        notes.append(f"no verdict before all runs of seeds 0 to {settings.seeds - 1} are finished")
    elif rest := len(complete) - look.seeds:
        notes.append(
            f"the verdict uses seeds 0 to {look.seeds - 1}; "
            f"the other finished seeds ({rest}) count once seeds 0 to {2 * look.seeds - 1} are finished"
        )
    # target measures already treat a diverged run as a run that does not reach the target
    one_sided = claim.measure not in TARGET_MEASURES and any(effect.one_sided for effect in effects)
    kinds = list(filter(None, variants(_key(claim), itertools.chain(*(effect.runs for effect in cells)))))
    if len(kinds) > 1:
        notes.append(f"the runs are evaluated differently ({'; '.join(kinds)})")
    counted_wants = itertools.chain(*(effect.wants for effect in cells))
    fixed = sorted({problems[want] for want in counted_wants if want in problems})
    for why in fixed:
        notes.append(f"the test items are not resampled: {why}")
    estimate, basis = _over_seeds(claim, cells, bank, is_resampled=measure_of(claim).items and not fixed)
    return replace(evidence, estimate=estimate, bounds=bounds, one_sided=one_sided, basis=basis)


def _key(claim: Claim) -> str:
    """Return the dotted result key of the claim's metric, for :func:`variants`; "" if the claim compares no metric."""
    if claim.measure in TARGET_MEASURES:
        return "rounds_to_target"
    if claim.measure.startswith(RESULT):
        return claim.measure.removeprefix(RESULT)
    name = measure_of(claim).key
    return f"metrics.{name}.ALL" if name and not claim.over else ""


def _over_seeds(claim: Claim, cells: Sequence[Effect], bank: Bank, is_resampled: bool) -> tuple[EffectEstimate, Basis]:
    """Return the estimate from the mean effect of each seed, and the sources of variation that the estimate covers."""
    means = []
    resampled = []
    for _, effects in sorted(by_key((effect.seed, effect) for effect in cells).items()):
        means.append(math.fsum(effect.value for effect in effects) / len(effects))
        if not is_resampled:
            continue
        total: np.ndarray | float = 0.0  # sum of this seed's effects on each of B resamples
        for effect in effects:
            for part, want in zip(effect.parts, effect.wants, strict=True):
                values = np.log(np.maximum(bank[want], 1e-12)) if claim.logs else bank[want]
                total = total + part.weight * values
        resampled.append(np.asarray(total) / len(effects))
    if not is_resampled:
        estimate = estimate_effect(means, None)
        return estimate, "seeds, not the test items that they share" if measure_of(claim).tested else "seeds"
    return estimate_effect(means, np.stack(resampled, axis=1)), "seeds and test items" if means[1:] else "test items"


def _balanced(effects: Sequence[Effect]) -> list[Effect]:
    """Return the effects of the cells that have the most seeds, restricted to the seeds that all those cells have.

    A cell is a combination of the settings that the claim does not vary. The mean of each seed then covers the same
    cells.
    """
    seeds = by_key((effect.cell, effect.seed) for effect in effects)
    most = max(map(len, seeds.values()), default=0)
    shared = {effect.seed for effect in effects}
    for common in seeds.values():
        if len(common) == most:
            shared &= set(common)
    return [effect for effect in effects if len(seeds[effect.cell]) == most and effect.seed in shared]
