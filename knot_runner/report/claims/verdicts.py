"""Verdicts on a preset's claims: holds, does not hold, or undecided.

:func:`judge` estimates each effect and its interval from pairs of runs (see ``statistics/effects.py``). Two corrections
keep the rate of false verdicts over all claims within 5%, even if seeds are added repeatedly:

- The p-value is divided by the fraction of the 5% that the present interim analysis may spend.
- Holm's method corrects the p-values for the number of claims.

Effects are ratios if the claim states a ratio, or if the measure is the cost of reaching a target accuracy. The mean of
ratios is the geometric mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from knot_runner.report.claims.evidence import Basis, Evidence, gather
from knot_runner.report.claims.items import RECORDS
from knot_runner.report.claims.measures import measure_of
from knot_runner.report.claims.spec import Claim, check_settings, claim_settings
from knot_runner.report.frame import run_set
from knot_runner.report.run_folders import Job, load_runs
from knot_runner.report.statistics.effects import ALPHA, EffectEstimate, holm, interval, p_value, seeds_suggested
from knot_runner.report.statistics.intervals import clipped_interval
from knot_runner.util.config_yaml import Config

Decision = Literal["holds", "does not hold", "undecided", "refused", "no runs"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim.

    Attributes:
        effect: The effect in ``unit``, printed with ``digits`` decimals; None if missing.
        low, high: The ends of the 95% interval of the effect.
        ratio: Whether the effect is a ratio.
        signed: Whether the effect is a difference. A difference is printed with its sign.
        claimed: The claimed range of the effect as text, such as ``> 0.5``.
        paper: The effect in the paper.
        seeds: The number of seeds from which the effect is computed.
        more_seeds: Approximate number of additional seeds needed to decide the claim with 80% power. 101 means that
            more than 100 seeds are needed, or that no number of seeds suffices. None means that the number is unknown,
            or that the claim is already decided.
        planned: The preset's planned number of seeds.
        look: The number of seeds in the interim analysis that gives the verdict; 0 before the first analysis.
        share: The fraction of the 5% type-I error that the interim analysis may spend. None before the first analysis.
        p: The p-value without correction.
        adjusted: The p-value, corrected for interim analyses and for the number of claims.
        basis: The sources of variation that the interval covers.
        over: How the accuracy is averaged over clients.
        runs: The number of requested runs that the claim uses, finished or not.
    """

    text: str
    source: str
    verdict: Decision
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    digits: int = 2
    ratio: bool = False
    signed: bool = True
    claimed: str = ""
    paper: float | None = None
    seeds: int = 0
    more_seeds: int | None = None
    planned: int = 0
    look: int = 0
    share: float | None = None
    p: float | None = None
    adjusted: float | None = None
    basis: Basis = "seeds"
    over: str | None = None
    runs: int = 0
    note: str = ""


def judge(jobs: Sequence[Job], spec: Config, command: str = "") -> list[Verdict]:
    """Return the verdict on each claim of a preset.

    Args:
        jobs: The jobs of the preset, finished or not.
        spec: The preset's section ``report:``.
        command: The command that runs the preset, for messages.

    Raises:
        UserError: A claim has an unknown key, setting or measure, or matches several runs with the same seed.
    """
    settings = claim_settings(spec)
    claims = settings.claims or []
    runs = run_set(Path(), load_runs(jobs, command, RECORDS))
    check_settings(claims, runs.keys())
    gathered = gather(claims, runs, settings)
    ps = []
    spent = {}
    for i, (claim, evidence) in enumerate(zip(claims, gathered, strict=True)):
        p = None
        of_look = 1.0
        if evidence.estimate and evidence.look:
            p = p_value(evidence.estimate, threshold(claim)[0])
            of_look = 1.0 if p is None else min(1.0, p / evidence.look.share)
        ps.append(p)
        if evidence.runs:  # also those that have no p yet: the family stays the same
            spent[i] = of_look
    adjusted = dict(zip(spent, holm(list(spent.values())), strict=True))
    left = sum(p >= ALPHA for p in adjusted.values())  # what Holm's next step divides by
    parts = enumerate(zip(claims, gathered, ps, strict=True))
    return [_verdict(*part, adjusted.get(i, 1.0), settings.seeds, left, command) for i, part in parts]


def threshold(claim: Claim) -> tuple[float, int]:
    """Return the threshold of a claim's effect, and the side on which the claim holds.

    The side is 1 if the claim holds above the threshold, and -1 if it holds below the threshold. If the effect is a
    ratio, the threshold applies to the logarithm of the ratio. Otherwise, the threshold is in the unit of stored
    values; for accuracy, it is a fraction.
    """
    scale = measure_of(claim).scale
    if isinstance(claim.expect, dict):
        ((word, value),) = claim.expect.items()
        side = -1 if word == "below" else 1
        return (math.log(value) if claim.logs else value / scale), side
    flipped = claim.logs and not claim.trend  # fewer rounds are a larger ratio
    side = 1 if (claim.expect in ("higher", "rises")) != flipped else -1
    return side * claim.by / scale, side


def _verdict(
    claim: Claim, evidence: Evidence, p: float | None, adjusted: float, planned: int, left: int, command: str
) -> Verdict:
    estimate = evidence.estimate
    measure = measure_of(claim)
    compared = bool(claim.against or claim.trend)
    ratio = claim.logs and compared
    unit = "times" if ratio else measure.unit
    if claim.trend:
        unit += " per doubling"
    need, side = threshold(claim)
    sign = ">" if side > 0 else "<"
    verdict = Verdict(
        claim.text, claim.source, "no runs", paper=claim.paper, digits=measure.digits,
        signed=compared and not ratio, unit=unit, ratio=ratio, over=claim.over, runs=evidence.runs,
        claimed=f"{sign} {_displayed(claim, need) + 0.0:g}", basis=evidence.basis, planned=planned,
    )  # fmt: skip
    if evidence.refused:
        return replace(verdict, verdict="refused", note="; ".join(evidence.notes))
    if not evidence.runs:
        return verdict
    if estimate is None:
        notes = list(evidence.notes)
        if command:
            notes.append(f"create them with: {command}")
        return replace(verdict, note="; ".join(notes))
    gap = (estimate.effect - need) * side
    decision, blocked = _decide(evidence, estimate, p, adjusted, gap, side)
    if adjusted >= ALPHA:
        more = seeds_suggested(estimate, abs(gap), planned, evidence.seeds, max(left, 1))
        verdict = replace(verdict, more_seeds=more)
    if not estimate.flat:
        low, high = (_displayed(claim, value) for value in interval(estimate))
        if not compared:
            low, high = clipped_interval(low, high, measure.top)
        verdict = replace(verdict, low=low, high=high)
    if evidence.look:
        verdict = replace(verdict, look=evidence.look.seeds, share=evidence.look.share)
    if p is not None:
        verdict = replace(verdict, p=p, adjusted=adjusted)
    return replace(
        verdict, verdict=decision, effect=_displayed(claim, estimate.effect), seeds=estimate.seeds,
        note="; ".join(filter(None, (*evidence.notes, blocked))),
    )  # fmt: skip


def _displayed(claim: Claim, value: float) -> float:
    """Return an effect or a threshold in the displayed unit."""
    return math.exp(value) if claim.logs else measure_of(claim).scale * value


def _decide(
    evidence: Evidence, estimate: EffectEstimate, p: float | None, adjusted: float, gap: float, side: int
) -> tuple[Decision, str]:
    """Return the decision and, for an undecided claim, the reason if it is known; otherwise ""."""
    if p is None:
        return "undecided", "one seed" if evidence.look else ""
    if adjusted >= ALPHA and estimate.flat:
        return "undecided", "all seeds have the same effect, so only their number counts (sign test)"
    if adjusted >= ALPHA:
        return "undecided", ""
    if evidence.one_sided:
        return "undecided", "in some pairs, only one of the two runs diverged"
    if evidence.bounds.get(-side if gap > 0 else side):
        return "undecided", "the true effect may exceed the bound, since some targets were not reached"
    return ("holds" if gap > 0 else "does not hold"), ""
