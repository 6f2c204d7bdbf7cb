"""Results of runs: one dataclass per kind of run. A result is stored in ``result.json``.

This module defines the fields that all kinds of runs have. When a result object is created, the type and the range of
every value are checked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.plugins import load
from knot_runner.config.settings.families import FAMILIES
from knot_runner.config.settings.sizes import AT_LEAST_ONE, NOT_NEGATIVE
from knot_runner.config.strict import AtMost, build, require
from knot_runner.metrics import METRICS
from knot_runner.util.errors import UserError

Share = Annotated[float, AtMost(1.0), NOT_NEGATIVE]
#: A finite, non-negative distance, loss or time.
Amount = Annotated[float, AtMost(math.inf), NOT_NEGATIVE]
Count = Annotated[int, AtMost(1e30), NOT_NEGATIVE]
#: A positive integer.
Number = Annotated[int, AtMost(1e30), AT_LEAST_ONE]
#: Metric -> data set (or ALL) -> value.
Scores = dict[str, dict[str, Any]]


#: Kinds of evaluated models.
Evaluated = Literal["global", "clusters", "personalized"]
#: Descriptions of the kinds of evaluated models.
EVALUATED: dict[str, str] = {
    "global": "one global model, on all test examples",
    "clusters": "cluster models, each on its clients' test examples",
    "personalized": "own models, each on its own test examples",
}
#: Examples on which an epoch, step or model was selected. ``valid``: held-out examples; ``generated``: images generated
#: by a data-free method. Test examples are never used.
SelectedOn = Literal["valid", "generated"]
#: Beginning of the note on a run that was computed on several machines.
SEVERAL_MACHINES = "this run was computed on several machines"
#: Beginning of the note on a run whose model predicts a single class.
ONE_CLASS = "warning: every test example is predicted to be of class"


@dataclass
class TrainTest:
    """Counts of examples in a federated run.

    Attributes:
        train: Number of examples on which clients train.
        test: Number of test examples.
        transfer: Number of images in a separate transfer set; None if there is none.
        valid: Number of examples that clients hold out.
    """

    train: Count
    test: Count
    transfer: Count | None = None
    valid: Count | None = None


@dataclass
class SplitSizes:
    """Counts of examples in the splits of one data set.

    ``role`` is the role of the data set, such as ``global``.
    """

    role: str = ""
    train: Amount | None = None
    valid: Amount | None = None
    test: Amount | None = None


@dataclass
class TermFacts:
    """The weight of a loss term, and the relative size of the term at the beginning of training.

    ``ratio`` is the weighted term divided by the cross-entropy.
    """

    weight: Amount
    ratio: float


@dataclass
class ClassNames:
    """The names and coordinates of the C classes of a task.

    ``coordinates`` has shape [C, d], or is None for classes without coordinates.
    """

    names: list[str]
    coordinates: list[list[float]] | None = None


def check_scores(key: str, scores: Scores) -> None:
    """Check that every value of a known metric in ``scores`` is in the range of this metric.

    ``key`` is the dotted key of ``scores`` in the result, for the error message.
    """
    for metric, row in scores.items():
        if metric not in METRICS:
            continue
        for name, value in row.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            possible = number and math.isfinite(value) and 0 <= value <= METRICS[metric].top
            require(possible, f"{key}.{metric}.{name}", f"{value!r} is not a valid {METRICS[metric].title}")


#: Cost keys in a row of ``rounds.jsonl``: sums over the round's clients. FLOPs that cannot be counted are null.
BYTES = ("bytes_down", "bytes_up")
FLOPS = ("client_flops", "server_flops")
#: How the FLOPs of a result are counted.
FORMULA = (
    "3 F per example and epoch of training, F per example of inference; F: matrix products, convolutions and attention "
    "of one forward pass (backward = twice forward: Kaplan et al. 2020, section 2.1)"
)


@dataclass(kw_only=True)
class CostFacts:
    """Costs of a whole run. FLOPs that cannot be counted are None.

    Attributes:
        sent: Text that describes which messages are counted.
        bytes: Sum of ``bytes_down`` and ``bytes_up``.
        bytes_to_target: Total bytes until the end of the round that reaches the target accuracy; None if no round
            reaches the target.
        formula: Text that describes how FLOPs are counted.
        example_flops: FLOPs of the forward pass of one example. This number is F in ``formula``.
        example_tokens: Mean number of tokens per text. ``example_flops`` is for a text of this length.
        stages: A dict from the name of each stage of a distillation to the FLOPs of this stage.
        personal_flops: FLOPs of personalization after the last round. These FLOPs are included in ``client_flops``.
    """

    sent: str
    bytes_up: Count
    bytes_down: Count
    bytes: Count
    bytes_per_round: Amount
    client_flops: Count | None
    server_flops: Count | None
    formula: str
    bytes_to_target: Count | None
    example_flops: Count | None = None
    example_tokens: Count | None = None
    stages: dict[str, Count | None] | None = None
    personal_flops: Count | None = None


@dataclass(kw_only=True)
class Seconds:
    """Durations of a run and of its parts, in seconds. A duration is None if the run has no such part.

    Attributes:
        total: The whole run.
        rounds: All rounds of a federated run.
        stages: A dict from the name of each stage of a distillation to the duration of this stage.
        distances: Computation of the distances between all pairs of clients or data sets.
        personalization: Personalization after the last round.
        federated: Computation of the federated Wasserstein distance.
        exact: Computation of the exact Wasserstein distance.
        descent: Gradient descent on the points of a coreset.
    """

    total: Amount | None = None
    rounds: Amount | None = None
    stages: dict[str, Amount] | None = None
    distances: Amount | None = None
    personalization: Amount | None = None
    federated: Amount | None = None
    exact: Amount | None = None
    descent: Amount | None = None


@dataclass(kw_only=True)
class RunResult:
    """Result of a run, with the fields that all kinds of runs have.

    A plug-in may derive a class with further fields.
    """

    status: Literal["done", "diverged"]
    task: str
    method: str
    seed: int
    kind: str
    #: metric -> data set (or ALL) -> value
    metrics: Scores = field(default_factory=dict)
    #: kind of models that ``metrics``, ``best`` and ``rounds_to_target`` evaluate; None: diverged, or no predictions
    evaluated: Evaluated | None = None
    #: examples that selected the evaluated weights; None: nothing was selected
    selected_on: SelectedOn | None = None
    #: numbers of examples, including held-out examples
    datasets: Any = None
    labels: ClassNames | None = None
    costs: CostFacts | None = None
    source: str = ""
    data: str = ""
    device: str = ""
    threads: int = 1
    #: CPU instructions, threads, torch and GPU, which affect rounding
    machine: str = ""
    code: str = ""
    plugins: dict[str, str | None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    files: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: Seconds = field(default_factory=Seconds)
    label_counts: Any = None
    #: the round, client or step in which training diverged (non-finite loss or weights)
    diverged: Any = None
    run_id: str = ""
    written_by: str = ""
    #: file -> its sha256
    digest: dict[str, str] = field(default_factory=dict)

    @property
    def made_by(self) -> dict[str, Any]:
        """Return the versions of the code, the plug-ins and the libraries with which the run was computed."""
        return {"code": self.code, "plugins": self.plugins, "versions": self.versions}


@dataclass(kw_only=True)
class DivergedResult(RunResult):
    """Result of a diverged run of any kind.

    ``privacy`` is the privacy guarantee at the time of divergence, or None for a run without differential privacy.
    """

    privacy: Any = None


def diverged_result(facts: dict[str, Any]) -> DivergedResult:
    """Return the result of a diverged run, built from ``facts``.

    Entries of ``facts`` that are not fields of :class:`DivergedResult` are ignored.
    """
    known = {key: value for key, value in facts.items() if key in DivergedResult.__dataclass_fields__}
    return build(DivergedResult, known, "")


def bytes_of(rows: Sequence[dict[str, Any]]) -> int:
    """Return the number of bytes that the server and the clients sent, summed over the log ``rows``."""
    return sum(row[key] for row in rows for key in BYTES)


def summed_costs(rows: Sequence[dict[str, Any]]) -> dict[str, int | None]:
    """Return a dict from the key of each cost, such as ``bytes_up``, to the sum of this cost over the log ``rows``.

    A sum is None if the cost is unknown in at least one row.
    """
    costs: dict[str, int | None] = dict.fromkeys((*BYTES, *FLOPS))
    for key in costs:
        values = [row[key] for row in rows]
        if None not in values:
            costs[key] = sum(values)
    return costs


def total_costs(rows: Sequence[dict[str, Any]], reached: int | None, sent: str, **facts: Any) -> dict[str, Any]:
    """Return the fields of :class:`CostFacts` as a dict.

    Args:
        rows: The log rows of all rounds, in order.
        reached: The number of rounds until the target accuracy was reached; None if the target was not reached.
        sent: Text that describes which messages are counted.
        **facts: Fields that are added to the dict unchanged.
    """
    total = bytes_of(rows)
    return {
        "sent": sent,
        **summed_costs(rows),
        "bytes": total,
        "bytes_per_round": total / max(len(rows), 1),
        "bytes_to_target": None if reached is None else bytes_of(rows[:reached]),
        "formula": FORMULA,
        **facts,
    }


def result_of(content: dict[str, Any]) -> RunResult:
    """Return the result object for the parsed ``content`` of a ``result.json``.

    If the plug-in of this kind of run is not loaded, the object has only the fields of :class:`RunResult`.

    Raises:
        UserError: A key or value is wrong.
    """
    family = FAMILIES.get(str(content.get("kind")))
    cls: type[RunResult] = RunResult
    if family is None:
        content = {key: value for key, value in content.items() if key in RunResult.__dataclass_fields__}
    else:
        cls = load(family.result)
    if content.get("status") == "diverged":
        cls = DivergedResult
    try:
        return build(cls, content, "")
    except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError):  # forged content
        raise UserError("contains values of the wrong type") from None
