"""Table rows of federated runs, by case, temperature, learning rate control and other settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knot_runner.metrics import ACCURACY
from knot_runner.report.run_folders import Run, is_finished
from knot_runner.report.run_rows import Cases, case_of, one_per_seed, others, ranks, run_rows, variant, variants
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: Settings that the key of a row already contains.
SHOWN_KEYS = ("method.temperature", "method.lr_control")
#: The metric whose :func:`variant` separates cases.
OVERALL = f"metrics.{ACCURACY}.ALL"


@dataclass(frozen=True)
class RowSetting:
    """The settings that identify a table row.

    Attributes:
        temperature: Training temperature T. For a learning rate control, the divisor of the learning rate.
        control: Whether the row is a learning rate control. A control run trains at T=1 with the learning rate
            divided by ``temperature``.
        other: All other settings in which the runs of the case differ, as text.
    """

    temperature: float
    control: bool = False
    other: str = ""

    @property
    def heads(self) -> tuple[str, str]:
        """Return the texts of the row's two head cells: the training temperature, and all other settings."""
        if self.control:
            return "1", f"rate=lr/{self.temperature:g}, {self.other}".removesuffix(", ")
        return f"{self.temperature:g}", self.other

    @property
    def name(self) -> str:
        """Return the row's name for use in a sentence. It contains the temperature and the other settings."""
        start = "T=1 at rate lr/" if self.control else "T="
        return f"{start}{self.temperature:g} ({self.other})".removesuffix(" ()")


def case_rows(runs: Sequence[Run], cases: Cases) -> pd.DataFrame:
    """Return the frame of :func:`run_rows` with two more columns.

    The column ``case`` contains names of cases, and the column ``key`` contains :class:`RowSetting` objects. The frame
    has one row per case, key and seed. The given ``cases`` come first, then other cases in the order of ``runs``.
    Within a case, keys have the order of :func:`hottest_first`.

    If the runs of a case evaluate several kinds of models (:func:`variant`), each kind after the first becomes a
    separate case. A learning rate control with ``temperature`` 1 has the same key as the normal T=1 run.

    Raises:
        UserError: A run is not federated.
        ValueError: Two different runs have the same case, key and seed.
    """
    rows = run_rows(runs)
    rows["case"] = [case_of(run, cases) for run in runs]
    for case, members in rows.groupby("case", sort=False):
        shown = variants(OVERALL, members.run)
        for i, run in members.run.items():
            if is_finished(run) and variant(OVERALL, run.result) != shown[0]:
                rows.loc[i, "case"] = f"{case}, {variant(OVERALL, run.result)}"
    for _, members in rows.groupby("case", sort=False):
        for i, run, other in zip(members.index, members.run, others(members.run, SHOWN_KEYS), strict=True):
            temperature, control = map(run.setting, SHOWN_KEYS)
            if control is None:
                raise UserError(
                    f"task={run.task} method={run.method}: not a federated run, so it has no training temperature"
                )
            rows.loc[i, "key"] = RowSetting(float(temperature), control and temperature != 1, other)
    rows = one_per_seed(rows, ["case", "key"], lambda row: f"{row.case}, {row.key.name}")
    order = {"case": ranks([*cases, *rows.case]), "key": ranks(hottest_first(rows.key))}
    return rows.sort_values(["case", "key"], key=lambda values: values.map(order[values.name]), kind="stable")


def hottest_first(keys: Iterable[RowSetting]) -> list[RowSetting]:
    """Return the distinct ``keys``, sorted by ``other`` and then by decreasing temperature.

    At equal temperature, the learning rate control comes last.
    """
    return sorted(set(keys), key=lambda key: (key.other, -key.temperature, key.control))
