"""Measures of chilled runs, paired over seeds: accuracy, losses, rounds to target and what they gain on T=1.

Rounds to target are rounds trained until it is met; speed-up = rounds(T=1) / rounds(T). The paper's Table 1 prints the
index of the last of them, from 0, which is one less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from knot_runner.metrics import rounds_to_target
from knot_runner.report import run_folders
from knot_runner.report.row_keys import RowSetting
from knot_runner.report.run_folders import Run
from knot_runner.util.errors import UserError

UNCHILLED = RowSetting(1.0)
#: The target of ``best_of_T4``: the best accuracy that this temperature reaches in its rounds.
WARM = 4.0
Select = Literal["final", "best"]


@dataclass(frozen=True)
class LearningCurve:
    """How one finished run went. ``rows``: its measured rounds; ``rounds``: how many it ran; ``shown``: the row whose
    accuracy and losses a table shows."""

    rows: tuple[dict[str, Any], ...]
    rounds: int
    shown: dict[str, Any]

    @property
    def best(self) -> float:
        """Highest accuracy of any round."""
        return max(row["accuracy"] for row in self.rows)

    def reaches(self, target: float) -> int | None:
        """Rounds trained until accuracy is ``target`` or more; None if it never is."""
        return rounds_to_target([(row["round"], row["accuracy"]) for row in self.rows], target)


def learning_curve(run: Run, select: Select, command: str = "") -> LearningCurve:
    """The course of a finished run; ``select``: show the last round, or the (first) one of best accuracy.

    Raises :class:`UserError` naming ``rounds.jsonl`` when it is absent or damaged.
    """
    rows = run_folders.rounds(run, command)
    measured = tuple(row for row in rows if "accuracy" in row)
    shown = measured[-1] if select == "final" else max(measured, key=lambda row: row["accuracy"])
    return LearningCurve(measured, len(rows), shown)


def with_learning_curves(runs: list[Run], select: Select, command: str) -> tuple[list[Run], dict[str, LearningCurve]]:
    """``runs``, those with a damaged ``rounds.jsonl`` as corrupt, and the courses of the finished ones by run id."""
    made, courses = [], {}
    for run in runs:
        if run.status == "done":
            try:
                courses[run.job.run_id] = learning_curve(run, select, command)
            except UserError as problem:
                run = Run(run.job, "corrupt", str(problem))
        made.append(run)
    return made, courses


@dataclass(frozen=True)
class CaseRuns:
    """One case: the courses of its finished runs by row and seed. ``target``: an accuracy (fraction), or that of the
    T=4 run of the same seed and other settings."""

    courses: dict[RowSetting, dict[int, LearningCurve]]
    target: float | Literal["best_of_T4"]

    def course(self, key: RowSetting, seed: int) -> LearningCurve | None:
        return self.courses.get(key, {}).get(seed)

    def plain(self, key: RowSetting) -> RowSetting:
        """The row of T=1 that ``key`` is compared with."""
        return RowSetting(UNCHILLED.temperature, other=key.other)

    def goal(self, key: RowSetting, seed: int) -> float | None:
        """The accuracy to reach; None where the T=4 run that sets it is not there."""
        if self.target != "best_of_T4":
            return self.target
        warm = self.course(RowSetting(WARM, other=key.other), seed)
        return warm.best if warm else None

    def shown(self, key: RowSetting, seed: int, measure: str) -> float | None:
        """``measure`` of the row that the table shows."""
        own = self.course(key, seed)
        return own.shown.get(measure) if own else None

    def delta(self, key: RowSetting, seed: int) -> float | None:
        """Accuracy less that of T=1 at the same seed."""
        own, plain = self.shown(key, seed, "accuracy"), self.shown(self.plain(key), seed, "accuracy")
        return own - plain if own is not None and plain is not None else None

    def rounds(self, key: RowSetting, seed: int) -> int | None:
        """Rounds trained until the target is met; None where it is not, or there is none."""
        own, goal = self.course(key, seed), self.goal(key, seed)
        return own.reaches(goal) if own and goal is not None else None

    def short(self, key: RowSetting) -> list[int]:
        """Seeds whose run does not reach its target."""
        seeds = self.courses.get(key, {})
        return [seed for seed in seeds if self.goal(key, seed) is not None and self.rounds(key, seed) is None]

    def speedup(self, key: RowSetting, seed: int) -> float | None:
        """rounds(T=1) / rounds(T) at the same seed; None where one is not known."""
        own, plain = self.rounds(key, seed), self.rounds(self.plain(key), seed)
        return plain / own if own and plain else None


@dataclass(frozen=True)
class ChillingColumn:
    """A column. ``read(sweep, row, seed)``; ``unit``: what CSV files add to the name; ``paper``: digits it prints;
    ``top``: the most that a share can be."""

    head: str
    title: str
    digits: int
    paper: int
    read: Callable[[CaseRuns, RowSetting, int], float | None]
    signed: bool = False
    unit: str = ""
    top: float | None = None


def _of_row(measure: str, scale: float = 1.0) -> Callable[[CaseRuns, RowSetting, int], float | None]:
    def read(sweep: CaseRuns, key: RowSetting, seed: int) -> float | None:
        value = sweep.shown(key, seed, measure)
        return value * scale if value is not None else None

    return read


def _points(sweep: CaseRuns, key: RowSetting, seed: int) -> float | None:
    value = sweep.delta(key, seed)
    return value * 100 if value is not None else None


#: Column -> what it is. Losses at T cannot be ranked over temperatures: each T has a loss of its own.
CHILLING_COLUMNS = {
    "accuracy": ChillingColumn(
        "accuracy", "of the global model, in percent", 2, 2, _of_row("accuracy", 100), unit="percent", top=100.0
    ),
    "delta": ChillingColumn(
        "vs T=1", "accuracy less that of T=1 at the same seed, in points", 2, 2, _points, True, "points"
    ),
    "f1": ChillingColumn("macro F1", "of the global model", 3, 3, _of_row("f1"), top=1.0),
    "loss": ChillingColumn(
        "loss at T", "test loss of logits / T, not comparable over T", 3, 3, _of_row("tempered_loss")
    ),
    "plain_loss": ChillingColumn("loss", "of the logits as they are", 3, 3, _of_row("loss")),
    "rounds": ChillingColumn("rounds", "rounds trained until the target is met", 1, 0, CaseRuns.rounds),
    "speedup": ChillingColumn("speed-up", "rounds of T=1 / rounds at the same seed", 2, 2, CaseRuns.speedup),
}
#: Columns that need a target.
OF_TARGET = {"rounds", "speedup"}
#: Both losses stand side by side wherever one is asked for.
WITH = {"loss": ("loss", "plain_loss")}


def check_target(value: Any) -> float | Literal["best_of_T4"]:
    """``report.target`` of a preset. Raises :class:`UserError` for anything else than an accuracy or best_of_T4."""
    if value == "best_of_T4":
        return "best_of_T4"
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise UserError(f"report.target: {value!r} is neither best_of_T4 nor an accuracy above 0, at most 1")


def check_select(value: Any) -> Select:
    """``report.select`` of a preset. Raises :class:`UserError` for anything else than final or best."""
    if value not in ("final", "best"):
        raise UserError(f"report.select: {value!r} is neither final nor best")
    return value
