"""Claims as data: the ``report.claims`` of a preset, checked key by key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from knot_runner.config.strict import Holds, build, require, without
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, nearest

#: Value of ``against`` for the same run's model before distillation.
BEFORE = "before"
EXPECTATIONS = ("higher", "lower", "rises", "falls")
#: Default and maximum of a preset's planned number of seeds.
SEEDS = 3
MAX_PLANNED = 1000
IN_RANGE = Holds(lambda seeds: 2 <= seeds <= MAX_PLANNED, f"2 to {MAX_PLANNED} seeds")
A_REASON = Holds(lambda reason: bool(reason.strip()), "a sentence with the reason")
NUMBER_KEYS = ("ratio", "above", "below")
#: Measures of the cost to reach a target. Effects on these measures are ratios.
TARGET_MEASURES = ("rounds", "bytes", "time")


@dataclass(frozen=True)
class Claim:
    """A paper's claim and the comparison that decides it.

    Attributes:
        of, against: Settings of the two groups of runs. The effect is the measure of ``of`` minus the measure of
            ``against``.
        measure: The compared measure; see ``measures.py``.
        expect: The claimed sign of the effect, ``higher`` or ``lower``; or ``{ratio: r}``, which claims that the
            measure of ``against`` is at least r times the measure of ``of``. A claim without ``against`` has
            ``{above: x}`` or ``{below: x}``. A claim with ``trend`` has ``rises`` or ``falls``.
        by: The size that the effect must exceed, in the unit of the measure.
        trend: The numeric setting with which the measure rises or falls. The effect is the change per doubling.
        where: Settings that all compared runs must have, by dotted key. ``arm`` is the preset's arm. A list accepts any
            of the listed values.
        dataset: The data set of the measure, or ALL.
        over: How the accuracy is averaged over clients.
        paper: The paper's effect, in the same unit.
    """

    text: str
    source: str
    measure: str
    expect: str | dict[str, float]
    of: Config = field(default_factory=dict)
    against: Config | str | None = None
    where: Config = field(default_factory=dict)
    dataset: str = "ALL"
    over: str | None = None
    trend: str | None = None
    by: float = 0.0
    paper: float | None = None

    def __post_init__(self) -> None:
        expect = self.expect
        against = self.against
        require(bool(self.text.strip()), "text", "expected the claim in words, got an empty text")
        if isinstance(expect, dict):
            known = len(expect) == 1 and set(expect) <= set(NUMBER_KEYS)
            require(known, "expect", f"expected one of {', '.join(NUMBER_KEYS)} with a number, got {expect}")
            is_above = min(expect.values()) > 0 or not self.logs
            require(is_above, "expect", "expected a number above 0 for ratios, rounds and bytes")
            require(not self.by, "by", "not allowed if 'expect' has a number. Remove 'by'")
            (word,) = expect
        else:
            word = expect
            listed = ", ".join((*EXPECTATIONS, *NUMBER_KEYS))
            require(expect in EXPECTATIONS, "expect", f"unknown value {expect!r} (choose from {listed})")
        alone = against is None
        require(
            alone or isinstance(against, dict) or against == BEFORE,
            "against",
            f"expected settings or 'before', got {against!r}",
        )
        require(
            (word in ("rises", "falls")) == bool(self.trend),
            "expect",
            f"expected 'rises' or 'falls' if and only if 'trend' is set, got {word!r}",
        )
        require(
            (word in ("above", "below")) == (alone and not self.trend),
            "expect",
            f"expected 'above' or 'below' if and only if 'against' is not set, got {word!r}",
        )
        require(alone or not self.trend, "trend", "cannot be combined with 'against'. Remove one of the two")
        require(
            not (self.by and self.logs),
            "by",
            "not allowed for rounds, time and bytes, which are compared by ratio. Use expect={ratio: r}",
        )

    @property
    def logs(self) -> bool:
        """Return whether effects are ratios: the measure is the cost of reaching a target, or ``expect`` is a ratio."""
        return self.measure in TARGET_MEASURES or (isinstance(self.expect, dict) and "ratio" in self.expect)

    @property
    def touched(self) -> frozenset[str]:
        """Return the settings in which ``of`` and ``against`` differ."""
        other = self.against if isinstance(self.against, dict) else {}
        return frozenset(filter(None, (*self.of, *other, self.trend)))


@dataclass(frozen=True)
class ClaimSettings:
    """The keys of a preset's ``report:`` that determine the verdicts on its claims.

    Attributes:
        seeds: The planned number of seeds.
        target: The accuracy to reach, or the name of a rule in ``measures.TARGETS``.
        unlike: The reason why the runs hold out different shares of the training examples.
    """

    claims: list[Claim] | None = None
    seeds: Annotated[int, IN_RANGE] = SEEDS
    target: float | str | None = None
    unlike: Annotated[str, A_REASON] | None = None

    @property
    def needs_target(self) -> bool:
        """Return whether a claim measures the cost of reaching the target."""
        return any(claim.measure in TARGET_MEASURES for claim in self.claims or ())


def claim_settings(spec: Config) -> ClaimSettings:
    """Return the settings of a preset's claims. Raises :class:`UserError` naming the key."""
    others = spec.keys() - ClaimSettings.__dataclass_fields__.keys()
    return build(ClaimSettings, without(spec, *others), "report")


def check_settings(claims: Sequence[Claim], known: Collection[str]) -> None:
    """Raise :class:`UserError` for a setting that is not ``known``, suggesting the nearest one."""
    for i, claim in enumerate(claims):
        for key in sorted(claim.touched | set(claim.where)):
            if key not in known:
                raise UserError(f"unknown setting {key}{nearest(key, known)}", f"report.claims[{i}]")
