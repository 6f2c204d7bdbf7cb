"""What all results have in common, and the types that their values are of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.strict import Between, require
from knot_runner.metrics import METRICS

Share = Annotated[float, Between(0.0, 1.0)]
#: A distance, loss or time: finite, not negative.
Amount = Annotated[float, Between(0.0, math.inf)]
Count = Annotated[int, Between(0, math.inf)]
#: At least one.
Number = Annotated[int, Between(1, math.inf)]
#: Metric -> data set (or ALL) -> value.
Scores = dict[str, dict[str, Any]]


@dataclass(kw_only=True)
class RunResult:
    """What every result says, whatever the kind of run; what is absent was not said by the version that wrote it."""

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
    #: of a fused sweep: up to how many other jobs its seconds waited for
    beside: Any = None
    #: where training diverged (non-finite loss or weights)
    diverged: Any = None
    run_id: str = ""
    digest: Any = None


@dataclass
class TrainTest:
    """Images in all; ``transfer``: those of another data set that a server distils on."""

    train: Count
    test: Count
    transfer: Count | None = None


@dataclass
class ClassNames:
    """Classes by their names, [C], and their ``coordinates`` [C, d], where they have any."""

    names: list[str]
    coordinates: list[list[float]] | None = None


def check_scores(key: str, scores: Scores) -> None:
    """In a ``__post_init__``: every value of a metric of the table is a number within what the metric can take."""
    for metric, row in scores.items():
        for name, value in row.items() if metric in METRICS else ():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            possible = number and math.isfinite(value) and 0 <= value <= METRICS[metric].top
            require(possible, f"{key}.{metric}.{name}", f"{value!r} is no {METRICS[metric].title}")
