"""Measures of chilled runs, paired over seeds: accuracy, losses, rounds to target and gains over T=1.

Rounds to target are rounds trained until it is met; speed-up = rounds(T=1) / rounds(T). The paper's Table 1 prints the
index of the last of them, from 0, which is one less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from knot_runner.metrics import ACCURACY, reached_at
from knot_runner.report.run_folders import Run, damaged, rounds
from knot_runner.report.run_rows import RowSetting
from knot_runner.results.base import bytes_of
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts, LogRow

if TYPE_CHECKING:
    import pandas as pd

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


def chilling_frame(
    rows: pd.DataFrame, curves: dict[str, LearningCurve], target: float | Literal["best_of_T4"]
) -> pd.DataFrame:
    """``rows`` of :func:`case_rows` plus the columns ``other`` (settings of their key), ``finished``, ``ran`` (rounds),
    ``goal`` (accuracy to reach: ``target``, or the best of the T=4 run with the same seed and other
    settings), and each of :data:`CHILLING_COLUMNS`. NaN: unknown, or the goal is not met."""
    import pandas as pd

    frame = rows.assign(other=[key.other for key in rows["key"]]).reset_index(drop=True)
    own = [curves.get(run_id) for run_id in frame["run_id"]]
    frame["finished"] = [curve is not None for curve in own]
    frame["goal"] = target
    if target == "best_of_T4":
        best = pd.Series([curve.best if curve else None for curve in own], dtype="float64")
        frame["goal"] = _of_twin(frame, WARM, best.to_frame("goal"))["goal"]
    found = []
    for curve, goal in zip(own, frame["goal"], strict=True):
        facts: Facts = {"ran": 0}  # of a run that is not finished
        if curve is not None:
            shown = {name: curve.rows[-1].get(measure) for name, measure in SHOWN_MEASURES.items()}
            facts = {"ran": curve.rounds, "rounds": curve.reaches(goal), **shown}
        found.append(facts)
    measures = ["rounds", *SHOWN_MEASURES]
    numbers = pd.DataFrame(found, columns=["ran", *measures])
    frame = frame.join(numbers.astype(dict.fromkeys(measures, "float64")))
    plain = _of_twin(frame, 1.0, frame[["accuracy", "rounds"]])
    return frame.assign(
        accuracy=100 * frame["accuracy"],
        delta=100 * (frame["accuracy"] - plain["accuracy"]),
        speedup=plain["rounds"] / frame["rounds"],
    )


def _of_twin(frame: pd.DataFrame, temperature: float, values: pd.DataFrame) -> pd.DataFrame:
    """For each row, the ``values`` of the run at ``temperature`` with the same case, other settings and seed."""
    import pandas as pd

    place = ["case", "other", "seed"]
    twins = frame["key"] == frame["other"].map(lambda other: RowSetting(temperature, other=other))
    known = frame[place].join(values)[twins].set_index(place)
    return known.reindex(pd.MultiIndex.from_frame(frame[place])).set_index(frame.index)


def short_of_goal(rows: pd.DataFrame) -> pd.DataFrame:
    """The ``rows`` (of :func:`chilling_frame`) whose finished run does not meet its goal."""
    return rows[rows["finished"] & rows["goal"].notna() & rows["rounds"].isna()]


@dataclass(frozen=True)
class ChillingColumn:
    """A column. ``unit``: added to the name in CSV files; ``paper``: digits that the paper prints; ``top``: maximum of
    a share."""

    head: str
    title: str
    digits: int
    paper: int
    signed: bool = False
    unit: str = ""
    top: float | None = None


#: Column -> its measure in the last row of ``rounds.jsonl``.
SHOWN_MEASURES = {"accuracy": "accuracy", "f1": "f1", "loss": "tempered_loss", "plain_loss": "loss"}
#: Column -> its description. Losses at T cannot be ranked over temperatures: each T has a different loss.
CHILLING_COLUMNS = {
    "accuracy": ChillingColumn("accuracy", "in percent", 2, 2, unit="percent", top=100.0),
    "delta": ChillingColumn("vs T=1", "accuracy less that of T=1 at the same seed, in points", 2, 2, True, "points"),
    "f1": ChillingColumn("macro F1", "unweighted mean over classes", 3, 3, top=1.0),
    "loss": ChillingColumn("loss at T", "test loss of logits / T, not comparable over T", 3, 3),
    "plain_loss": ChillingColumn("loss", "of the logits as they are", 3, 3),
    "rounds": ChillingColumn("rounds", "rounds trained until the target is met", 1, 0),
    "speedup": ChillingColumn("speed-up", "rounds of T=1 / rounds at the same seed", 2, 2),
}
#: Columns that need a target.
OF_TARGET = {"rounds", "speedup"}


def check_target(value: Any) -> float | Literal["best_of_T4"]:
    """``report.target`` of a preset. Raises :class:`UserError` unless it is an accuracy or best_of_T4."""
    if value == "best_of_T4":
        return "best_of_T4"
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise UserError(f"{value!r} is neither best_of_T4 nor an accuracy above 0, at most 1", "report.target")
