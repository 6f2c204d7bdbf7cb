"""Learning curves of finished federated runs, and the target accuracy of a preset: rounds are those trained until it is
met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from knot_runner.metrics import ACCURACY, reached_at
from knot_runner.report.run_folders import Run, damaged, rounds
from knot_runner.results.base import bytes_of
from knot_runner.util.errors import UserError
from knot_runner.util.files import LogRow

#: The target of ``best_of_T4``: the best accuracy that this temperature reaches in its rounds.
WARM = 4.0
MEGABYTE = 1e6


@dataclass(frozen=True)
class LearningCurve:
    """Learning curve of a finished run. ``rows``: log rows of evaluated rounds; ``rounds``: number of rounds run;
    ``sent``: bytes per round in both directions."""

    rows: Sequence[LogRow]
    rounds: int
    sent: Sequence[int]

    @property
    def best(self) -> float:
        """Highest accuracy of any round."""
        return max(float(row[ACCURACY]) for row in self.rows)

    @property
    def clock(self) -> float:
        """Virtual seconds of a whole fleet run."""
        return float(self.rows[-1]["clock"])

    def reaches(self, target: float, axis: Literal["round", "clock"] = "round") -> float | None:
        """Rounds trained, or virtual seconds, until accuracy is ``target`` or more; None if it never is."""
        return reached_at([(row[axis], row[ACCURACY]) for row in self.rows], target)

    def megabytes(self, rounds: int) -> float:
        """10^6 bytes sent in both directions in the first ``rounds`` rounds."""
        return sum(self.sent[:rounds]) / MEGABYTE


def with_learning_curves(runs: Sequence[Run]) -> tuple[list[Run], dict[str, LearningCurve]]:
    """Return (``runs``, those with a damaged ``rounds.jsonl`` marked corrupt; curves of the finished ones by run
    id)."""
    made = []
    curves = {}
    for run in runs:
        if run.status == "done":
            try:
                rows = rounds(run)
                measured = [row for row in rows if ACCURACY in row]
                curves[run.run_id] = LearningCurve(measured, len(rows), [bytes_of([row]) for row in rows])
            except UserError as problem:
                run = damaged(run, problem)
        made.append(run)
    return made, curves


def check_target(value: Any) -> float | Literal["best_of_T4"]:
    """``report.target`` of a preset. Raises :class:`UserError` unless it is an accuracy or best_of_T4."""
    if value == "best_of_T4":
        return "best_of_T4"
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise UserError(f"{value!r} is neither best_of_T4 nor an accuracy above 0, at most 1", "report.target")
