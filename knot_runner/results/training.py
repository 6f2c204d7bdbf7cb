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
    """The epoch whose weights were kept, and whether this epoch is the best or the last one."""

    epoch: Amount
    select: Literal["best", "last"]


@dataclass
class BoundFacts:
    """Losses of the student on the distinct texts of the transfer set.

    The generalization bound of KNOT's Theorem 5.2 is in ``bound.json``.

    Attributes:
        texts: Number of training texts.
        train: Loss on the training texts.
        valid: Loss on the held-out texts.
        gap: ``valid`` minus ``train``.
        gap_less_start: ``gap`` minus the gap of the initial model.
    """

    texts: Number
    train: Amount
    valid: Amount
    gap: float
    gap_less_start: float


@dataclass(kw_only=True)
class StagesResult(RunResult):
    """Result of a run in stages: KNOT, KNOT's teachers without distillation, or mutual learning.

    The meaning of ``metrics`` depends on the method:

    - KNOT: metrics of the global model after distillation
    - KNOT's teachers without distillation: metrics of each teacher on its own test set
    - mutual learning: metrics of each party's model on the party's own test set

    Attributes:
        before: Like ``metrics``, but before distillation or mutual learning.
        teachers: Metrics of each teacher on its own test set.
        baselines: Metrics on the global model's test set, for every teacher and for the ensemble of all teachers.
        bias: A dict from each teacher to a list with one item per label: the fraction of random examples for which the
            teacher predicts this label.
        kept_epochs: A dict from the name of each stage to its selected epoch.
        parties: The names of the parties in mutual learning.
        selected_epoch: The epoch of the student's selected weights; None if nothing was distilled.
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
    """A training phase before the student's last phase. ``terms`` holds the phase's loss terms by name."""

    epochs: Number
    terms: dict[str, TermFacts]


@dataclass
class ReleasedFacts:
    """Information that the owner of a teacher released in addition to the teacher's weights.

    ``kind`` names the kind of information. ``floats`` and ``bytes`` give its size.
    """

    kind: str
    floats: Count
    bytes: Count


@dataclass
class SynthesisFacts:
    """Images that were synthesized from the teacher to replace real training images.

    Attributes:
        kind: The method of synthesis.
        images: The number of images.
        loss: The loss of the last step of the synthesis.
        released: The information that the teacher's owner released for the synthesis.
    """

    kind: str
    images: Count
    loss: float
    released: ReleasedFacts


@dataclass(kw_only=True)
class DistillResult(StagesResult):
    """Result of a distillation that minimizes a sum of loss terms.

    The inherited attribute ``baselines`` holds the metrics of other models on the student's test set. These models are
    the teachers and the other students. If there are several such models, their ensemble is included.

    Attributes:
        terms: The loss terms of the last phase of training, by name.
        phases: All phases of training except the last; None if there is only one phase.
        synthesis: The synthesized images, if the student was trained without real images.
    """

    terms: dict[str, TermFacts]
    phases: list[PhaseFacts] | None = None
    synthesis: SynthesisFacts | None = None
