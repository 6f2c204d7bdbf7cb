"""Results of distillations and of the temperature probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from knot_runner.config.strict import require
from knot_runner.results.base import (
    Amount,
    ClassNames,
    Count,
    Number,
    RunResult,
    Scores,
    TermFacts,
    check_scores,
)
from knot_runner.results.costs import CostFacts


@dataclass
class SplitSizes:
    """Numbers of examples of one data set; ``role``: of its party."""

    role: str = ""
    train: Amount | None = None
    valid: Amount | None = None
    test: Amount | None = None


@dataclass
class KeptEpoch:
    """The epoch whose weights were kept, and the rule that selected it."""

    epoch: Amount
    select: Literal["best", "last"]


@dataclass
class BoundFacts:
    """The student's loss on distinct training and held-out texts of the transfer set, their ``gap``, and the gap minus
    that of the initial model; the bound itself is in ``bound.json``."""

    texts: Number
    train: Amount
    valid: Amount
    gap: float
    gap_less_start: float


@dataclass(kw_only=True)
class StagesResult(RunResult):
    """Models trained in stages: KNOT, its teachers alone, mutual learning. ``before``: metrics of the global model
    before distillation; ``teachers``: each on its own test set; ``baselines``: every teacher and their ensemble on the
    global model's test set; ``bias``: B_k by teacher [C]. ``parties``: of mutual learning; ``metrics`` and ``before``
    then are of the parties' models, each on its own test set."""

    metrics: Scores
    datasets: dict[str, SplitSizes]
    labels: ClassNames
    before: Scores | None = None
    teachers: Scores | None = None
    baselines: Scores | None = None
    bias: dict[str, list[Amount]] | None = None
    kept_epochs: dict[str, KeptEpoch] | None = None
    bound: BoundFacts | None = None
    costs: CostFacts | None = None
    parties: list[str] | None = None
    selected_epoch: Any = None
    rounds_to_target: Any = None
    rows: Any = None

    def __post_init__(self) -> None:
        require(bool(self.metrics) and bool(self.datasets), "metrics" if not self.metrics else "datasets", "is empty")
        check_scores("metrics", self.metrics)
        check_scores("before", self.before or {})
        for key in ("teachers", "baselines"):
            for name, row in (getattr(self, key) or {}).items():
                check_scores(f"{key}.{name}", {metric: {"": score} for metric, score in row.items()})
        points, classes = self.labels.coordinates, len(self.labels.names)
        require(points is not None and len(points) == classes >= 2, "labels", "has not coordinates for every class")
        require(len({len(point) for point in points}) == 1, "labels", "has coordinates of several lengths")
        for teacher, shares in (self.bias or {}).items():
            require(len(shares) == classes and sum(shares) > 0, f"bias.{teacher}", f"is not of {classes} classes")


@dataclass
class PhaseFacts:
    """A training phase of the student before the last one: its epochs and loss terms."""

    epochs: Number
    terms: dict[str, TermFacts]


@dataclass
class ReleasedFacts:
    """Information that a teacher's owner released beside its weights, and its size."""

    kind: str
    floats: Count
    bytes: Count


@dataclass
class SynthesisFacts:
    """Images synthesised from the teacher: how, how many, the last loss, and the information released for it."""

    kind: str
    images: Count
    loss: float
    released: ReleasedFacts


@dataclass(kw_only=True)
class DistilResult(StagesResult):
    """A distillation by loss terms. ``baselines``: all other models trained for it, on the student's test set."""

    terms: dict[str, TermFacts]
    phases: list[PhaseFacts] | None = None
    synthesis: SynthesisFacts | None = None


@dataclass(kw_only=True)
class ProbeResult(RunResult):
    """A temperature probe; its arrays are in ``probe.safetensors``."""

    temperatures: list[Amount]
    labels: Any = None
    model: Any = None

    def __post_init__(self) -> None:
        positive = bool(self.temperatures) and min(self.temperatures) > 0
        require(positive, "temperatures", f"{self.temperatures} are not all above 0")
