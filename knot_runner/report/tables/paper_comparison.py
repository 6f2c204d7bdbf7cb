"""The paper's numbers for a federated run, and the footnotes of such a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.run_folders import Run, finished_as
from knot_runner.report.run_rows import RowSetting
from knot_runner.report.tables.chilling import LearningCurve, short_of_goal
from knot_runner.report.tables.footnotes import absences, sources
from knot_runner.results.federated import FederatedResult

if TYPE_CHECKING:
    import pandas as pd

#: A run with less than this share of the paper's training images is not comparable by digits.
MIN_SHARE = 0.5


def printed_row(table: PrintedTable | None, case: str, key: RowSetting) -> list[float] | None:
    """The printed row; None if the paper has none, as for rate controls."""
    if table is None or key.control or key.other:
        return None
    row: list[float] | None = table.values.get(case, {}).get(key.temperature)
    return row


def same_data(runs: Iterable[Run], table: PrintedTable | None, case: str) -> bool:
    """Whether our data have the paper's number of classes and at least half as many training images."""
    facts = table.cases.get(case) if table else None
    return facts is None or all(
        len(run.result.labels.names) == facts.classes and run.result.datasets.train >= MIN_SHARE * facts.images
        for run in finished_as(runs, FederatedResult)
    )


def unreached(case: str, rows: pd.DataFrame, curves: Mapping[str, LearningCurve]) -> list[str]:
    """Lines on seeds excluded from the means of rounds and speed-up, with reasons. ``rows``: of a case, from
    :func:`chilling_frame`."""
    reasons: dict[str, list[str]] = {}
    for key, own in rows[rows["finished"]].groupby("key", sort=False):
        short, open_ended = short_of_goal(own), own[own["goal"].isna()]
        missed = f"target not reached within {short['ran'].min()} rounds"
        for reason, seeds in ((missed, short["seed"]), ("no target, its T=4 run is not there", open_ended["seed"])):
            if len(seeds):
                named = f"{key.name}, seed {', '.join(map(str, sorted(seeds)))}"
                reasons.setdefault(reason, []).append(named)
    there = [curves[run.run_id] for run in rows.loc[rows["finished"], "run"]]
    lines = [f"{case}: {reason}: {'; '.join(named)}." for reason, named in reasons.items()]
    if any(len(curve.rows) < curve.rounds for curve in there):
        lines.append(f"{case}: not every round was measured, so rounds are upper bounds.")
    return lines


def paper_lines(rows: pd.DataFrame, runs: Iterable[Run], table: PrintedTable | None) -> list[str]:
    """Lines on missing runs in ``rows`` (:func:`case_rows` of ``runs``) and on data that differ from the paper's."""
    lines = [*absences(rows, rows["case"] + " " + rows["key"].map(lambda key: key.name)), *sources(runs)]
    for case, own in rows.groupby("case", sort=False):
        lines += other_data(case, own["run"], table)
    return lines


def other_data(case: str, members: Iterable[Run], table: PrintedTable | None) -> list[str]:
    """A line on data that differ from the paper's; [] if they do not (:func:`same_data`)."""
    if table is None or same_data(members, table, case):
        return []
    ours, theirs = finished_as(members, FederatedResult)[0].result, table.cases[case]
    return [
        f"{case}: ours are {ours.datasets.train:,} training images and {len(ours.labels.names)} "
        f"classes, the paper's {theirs.images:,} and {theirs.classes}: orientation, not comparison."
    ]
