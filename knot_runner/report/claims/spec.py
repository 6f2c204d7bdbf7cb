"""Claims as data: the settings under ``report.claims`` of a preset."""

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
A_REASON = Holds(lambda reason: bool(reason.strip()), "a reason why the methods hold out different shares of examples")
NUMBER_KEYS = ("ratio", "above", "below")
#: Measures of the cost to reach a target. Effects on these measures are ratios.
TARGET_MEASURES = ("rounds", "bytes", "time")


@dataclass(frozen=True)
class Claim:
    """A claim in a paper, and the comparison of runs that decides the claim.

    The attributes ``of`` and ``against`` select two groups of runs. The effect is the measure of the first group minus
    the measure of the second group. If effects are ratios (see :attr:`logs`), the effect is the second group's measure
    divided by the first group's measure. Without ``against`` and ``trend``, the effect is the measure of the first
    group.

    Attributes:
        text: The claim in words.
        source: The place of the claim in the paper.
        measure: The name of the compared measure, see :func:`measure_of`.
        expect: The claimed effect, in one of these forms:

            - ``higher`` or ``lower``: the measure is higher or lower in the first group than in the second
            - ``{ratio: r}``: the measure of the second group is at least r times that of the first group
            - ``{above: x}`` or ``{below: x}``, without ``against``: the measure is above or below x
            - ``rises`` or ``falls``, with ``trend``: the measure rises or falls as the setting ``trend`` increases

        of, against: The settings that select the two groups. With ``against="before"``, the second group consists of
            the first group's models before distillation.
        where: The settings that all compared runs must have, as a dict from dotted key to value. A value may be a list
            of accepted values. The key ``arm`` selects an arm of the preset.
        dataset: The data set on which the measure is computed. ALL stands for all data sets.
        over: How an accuracy is averaged over clients: ``weighted``, ``unweighted`` or ``clusters``. None if the
            measure is not averaged over clients.
        trend: A numeric setting. The effect is the change of the measure per doubling of this setting.
        by: The size that the effect must exceed, in the unit of the measure.
        paper: The effect in the paper, in the unit in which effects are displayed.
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
            require(is_above, "expect", "ratios, and values of 'rounds', 'time' or 'bytes', must be above 0")
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
            f"with 'trend', expected 'rises' or 'falls', got {word!r}" if self.trend else f"{word!r} requires 'trend'",
        )
        require(
            (word in ("above", "below")) == (alone and not self.trend),
            "expect",
            f"{word!r} {'requires' if alone else 'cannot be combined with'} 'against'",
        )
        require(alone or not self.trend, "trend", "cannot be combined with 'against'. Remove one of the two")
        require(
            not (self.by and self.logs),
            "by",
            "not allowed for 'rounds', 'time' and 'bytes', which are compared as ratios. Use expect={ratio: NUMBER}",
        )

    @property
    def logs(self) -> bool:
        """Return whether effects are ratios.

        Effects are ratios if ``expect`` is a ratio, or if the measure is the cost of reaching a target accuracy.
        """
        return self.measure in TARGET_MEASURES or (isinstance(self.expect, dict) and "ratio" in self.expect)

    @property
    def touched(self) -> frozenset[str]:
        """Return the keys of the settings that the claim varies: the keys in ``of``, ``against`` and ``trend``."""
        other = self.against if isinstance(self.against, dict) else {}
        return frozenset(filter(None, (*self.of, *other, self.trend)))


@dataclass(frozen=True)
class ClaimSettings:
    """The claim settings in a preset's section ``report:``.

    Attributes:
        claims: The claims of the preset.
        seeds: The planned number of seeds.
        target: The accuracy to reach, or the name of a rule in ``measures.TARGETS``.
        unlike: The reason why compared runs may hold out different fractions of the training examples. Without a
            reason, a claim is refused if its compared runs hold out different fractions.
    """

    claims: list[Claim] | None = None
    seeds: Annotated[int, IN_RANGE] = SEEDS
    target: float | str | None = None
    unlike: Annotated[str, A_REASON] | None = None

    @property
    def needs_target(self) -> bool:
        """Return whether at least one claim measures the cost of reaching the target accuracy."""
        return any(claim.measure in TARGET_MEASURES for claim in self.claims or ())


def claim_settings(spec: Config) -> ClaimSettings:
    """Return the claim settings of a preset. ``spec`` is the preset's section ``report:``.

    Raises:
        UserError: A value is invalid. The message names the key.
    """
    others = spec.keys() - ClaimSettings.__dataclass_fields__.keys()
    return build(ClaimSettings, without(spec, *others), "report")


def check_settings(claims: Sequence[Claim], known: Collection[str]) -> None:
    """Check that claims contain only known settings. ``known`` holds the dotted keys of all known settings.

    Raises:
        UserError: A setting is unknown. The message suggests the nearest known setting.
    """
    for i, claim in enumerate(claims):
        for key in sorted(claim.touched | set(claim.where)):
            if key not in known:
                raise UserError(f"unknown setting {key}{nearest(key, known)}", f"report.claims[{i}]")
