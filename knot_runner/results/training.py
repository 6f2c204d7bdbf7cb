"""Results of distillations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from knot_runner.config.strict import require
from knot_runner.results import (
    Amount,
    ClassNames,
    Count,
    Number,
    RunResult,
    Scores,
    SplitSizes,
    TermFacts,
    check_scores,
)


@dataclass
class KeptEpoch:
    """The epoch whose weights were selected, and the rule of selection (``best`` or ``last``)."""

    epoch: Amount
    select: Literal["best", "last"]


@dataclass
class BoundFacts:
    """The student's loss on training and on held-out texts of the transfer set, without duplicates.

    ``gap`` is the held-out loss minus the training loss. ``gap_less_start`` is ``gap`` minus the same difference for
    the initial model. The bound itself is in ``bound.json``.
    """

    texts: Number
    train: Amount
    valid: Amount
    gap: float
    gap_less_start: float


@dataclass(kw_only=True)
class StagesResult(RunResult):
    """Result of a run in stages: KNOT, KNOT's teachers without distillation, or mutual learning.

    Attributes:
        before: Metrics of the global model before distillation.
        teachers: Metrics of each teacher on its own test set.
        baselines: Metrics of every teacher, and of the ensemble of teachers, on the global model's test set.
        bias: Teacher k -> bias B_k: for each label, the fraction of random examples for which teacher k predicts it.
        parties: The parties of mutual learning. In mutual learning, ``metrics`` and ``before`` describe each party's
            model on the party's own test set.
    """

    datasets: dict[str, SplitSizes] = field()
    labels: ClassNames = field()
    before: Scores | None = None
    teachers: Scores | None = None
    baselines: Scores | None = None
    bias: dict[str, list[Amount]] | None = None
    kept_epochs: dict[str, KeptEpoch] | None = None
    bound: BoundFacts | None = None
    parties: list[str] | None = None
    selected_epoch: int | None = None
    rows: Any = None

    @property
    def global_sets(self) -> list[str]:
        """Return the names of the data sets on which the global model is tested."""
        return [name for name, sizes in self.datasets.items() if sizes.role == "global"]

    def __post_init__(self) -> None:
        require(bool(self.metrics), "metrics", "empty")
        require(bool(self.datasets), "datasets", "empty")
        check_scores("metrics", self.metrics)
        check_scores("before", self.before or {})
        for key in ("teachers", "baselines"):
            for name, row in (getattr(self, key) or {}).items():
                check_scores(f"{key}.{name}", {metric: {"": score} for metric, score in row.items()})
        points = self.labels.coordinates or []
        classes = len(self.labels.names)
        require(len(points) == classes >= 2, "labels", "expected coordinates for each class")
        require(len({len(point) for point in points}) == 1, "labels", "expected coordinates of equal length")
        for teacher, shares in (self.bias or {}).items():
            require(
                len(shares) == classes and sum(shares) > 0,
                f"bias.{teacher}",
                f"expected shares of {classes} classes, with a sum above 0",
            )


@dataclass
class PhaseFacts:
    """A training phase of the student before the last phase: number of epochs, and loss terms."""

    epochs: Number
    terms: dict[str, TermFacts]


@dataclass
class ReleasedFacts:
    """Information that the owner of a teacher released in addition to the teacher's weights.

    ``kind`` names the information. ``floats`` and ``bytes`` give the size of this information.
    """

    kind: str
    floats: Count
    bytes: Count


@dataclass
class SynthesisFacts:
    """Images synthesized from the teacher: kind of synthesis, number, last loss, and released information."""

    kind: str
    images: Count
    loss: float
    released: ReleasedFacts


@dataclass(kw_only=True)
class DistillResult(StagesResult):
    """Result of a distillation by loss terms.

    ``baselines``: metrics, on the student's test set, of all other models that were trained for the distillation.
    """

    terms: dict[str, TermFacts]
    phases: list[PhaseFacts] | None = None
    synthesis: SynthesisFacts | None = None
