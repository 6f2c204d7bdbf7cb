"""Fields common to all results, and the types of their values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.strict import Between, require
from knot_runner.metrics import METRICS

Share = Annotated[float, Between(0.0, 1.0)]
#: A distance, loss or time: finite and non-negative.
Amount = Annotated[float, Between(0.0, math.inf)]
Count = Annotated[int, Between(0, math.inf)]
#: At least one.
Number = Annotated[int, Between(1, math.inf)]
#: Metric -> data set (or ALL) -> value.
Scores = dict[str, dict[str, Any]]


@dataclass(kw_only=True)
class RunResult:
    """Fields of every result, for any kind of run; a missing field was not recorded by the version that wrote it."""

    status: Literal["done", "diverged"]
    task: str
    method: str
    seed: int
    kind: str = "distillation"
    source: str = ""
    data: Any = None
    device: str = ""
    threads: int = 1
    code: str = ""
    plugins: Any = None
    versions: Any = None
    files: Any = None
    notes: Any = None
    seconds: Any = None
    label_counts: Any = None
    #: of a fused sweep: maximum number of other jobs running at the same time, which lengthen its seconds
    beside: Any = None
    #: where training diverged (non-finite loss or weights)
    diverged: Any = None
    run_id: str = ""
    digest: Any = None


@dataclass
class TrainTest:
    """Total numbers of images; ``transfer``: of another data set that a server distils on."""

    train: Count
    test: Count
    transfer: Count | None = None


@dataclass
class TermFacts:
    """Weight of a loss term, and the initial ratio of the weighted term to the cross-entropy."""

    weight: Amount
    ratio: float


@dataclass
class ClassNames:
    """Names [C] of the classes and their ``coordinates`` [C, d], if any."""

    names: list[str]
    coordinates: list[list[float]] | None = None


def check_scores(key: str, scores: Scores) -> None:
    """Check, in a ``__post_init__``, that every value of a known metric is a number in the metric's range."""
    for metric, row in scores.items():
        for name, value in row.items() if metric in METRICS else ():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            possible = number and math.isfinite(value) and 0 <= value <= METRICS[metric].top
            require(possible, f"{key}.{metric}.{name}", f"{value!r} is no {METRICS[metric].title}")
