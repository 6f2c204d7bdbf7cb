"""The paper's numbers for a federated run, and the footnotes of such a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from knot_runner.report.render.table_model import ColumnGroup, TableRow
from knot_runner.report.render.text import signed_with_half
from knot_runner.report.run_folders import Run
from knot_runner.report.run_rows import RowSetting
from knot_runner.report.statistics.intervals import mean_interval
from knot_runner.report.tables.chilling import LearningCurve, short_of_goal
from knot_runner.report.tables.footnotes import absences, finished, sources
from knot_runner.util.messages import counted

if TYPE_CHECKING:
    import pandas as pd

#: A run with less than this share of the paper's training images is not comparable by digits.
MIN_SHARE = 0.5
#: Mark -> case, T, columns and text of an error in a printed number.
Slips = dict[str, dict[str, Any]]


def printed_row(table: dict[str, Any] | None, case: str, key: RowSetting) -> list[float] | None:
    """The printed row; None if the paper has none, as for rate controls."""
    if table is None or key.control or key.other:
        return None
    return table["values"].get(case, {}).get(key.temperature)


def paper_number(
    table: dict[str, Any] | None, case: str, key: RowSetting, name: str, slips: Slips
) -> tuple[float | None, str]:
    """The printed number and the marks of its ``slips``."""
    row = printed_row(table, case, key)
    if table is None or row is None or name not in table["columns"]:
        return None, ""
    own = [mark for mark, slip in slips.items() if (slip["case"], slip["T"]) == (case, key.temperature)]
    marks = "".join(mark for mark in own if name in slips[mark]["columns"])
    return row[table["columns"].index(name)], marks


def errata_of(table: dict[str, Any] | None, cases: Iterable[str], names: Iterable[str]) -> Slips:
    """Printed numbers of these ``cases`` and columns that need a remark, by their mark (a letter)."""
    known, shown_cases, columns = table["slips"] if table else [], set(cases), set(names)
    there = [slip for slip in known if slip["case"] in shown_cases and columns & set(slip["columns"])]
    return dict(zip("abcdefgh", there, strict=False))


def same_data(runs: Iterable[Run], table: dict[str, Any] | None, case: str) -> bool:
    """Whether our data have the paper's number of classes and at least half as many training images."""
    facts = table["cases"].get(case) if table else None
    return facts is None or all(
        len(run.result["labels"]["names"]) == facts["classes"]
        and run.result["datasets"]["train"] >= MIN_SHARE * facts["images"]
        for run in finished(runs)
    )


def controlled(case: str, rows: pd.DataFrame) -> list[str]:
    """Lines on how much of the change in a chilled run's rounds a larger learning rate alone explains: estimates,
    paired by seed. ``rows``: of a case, from :func:`chilling_frame`."""
    rounds, lines = rows[rows["finished"]].pivot(index="seed", columns="key", values="rounds"), []
    for twin in (key for key in rows["key"].unique() if key.control):
        key = RowSetting(twin.temperature, other=twin.other)
        if key not in rounds:
            continue
        gaps = (rounds[twin] - rounds[key]).dropna().tolist() if twin in rounds else []
        if gaps:
            mean, half = mean_interval(gaps)
            less = f"{signed_with_half(mean, half)} ({counted(len(gaps), 'seed')})"
            lines.append(f"{case}: rounds of {twin.name} less those of {key.name}: {less}.")
        else:
            lines.append(f"{case}: {twin.name} and {key.name} have no seed in which both reach the target.")
    return lines


def unreached(case: str, rows: pd.DataFrame, curves: Mapping[str, LearningCurve]) -> list[str]:
    """Lines on seeds excluded from the means of rounds and speed-up, with reasons. ``rows``: as for
    :func:`controlled`."""
    reasons: dict[str, list[str]] = {}
    for key, own in rows[rows["finished"]].groupby("key", sort=False):
        short, open_ended = short_of_goal(own), own[own["goal"].isna()]
        missed = f"target not reached within {short['ran'].min()} rounds"
        for reason, seeds in ((missed, short["seed"]), ("no target, its T=4 run is not there", open_ended["seed"])):
            if len(seeds):
                named = f"{key.name}, seed {', '.join(map(str, sorted(seeds)))}"
                reasons.setdefault(reason, []).append(named)
    there = [curves[run.job.run_id] for run in rows.loc[rows["finished"], "run"]]
    lines = [f"{case}: {reason}: {'; '.join(named)}." for reason, named in reasons.items()]
    sparse = any(len(curve.rows) < curve.rounds for curve in there)
    return lines + [f"{case}: not every round was measured, so rounds are upper bounds."] * sparse


def paper_lines(rows: pd.DataFrame, runs: Iterable[Run], table: dict[str, Any] | None) -> list[str]:
    """Lines on missing runs in ``rows`` (:func:`case_rows` of ``runs``) and on data that differ from the paper's."""
    lines = [*absences(rows, rows["case"] + " " + rows["key"].map(lambda key: key.name)), *sources(runs)]
    for case, own in rows.groupby("case", sort=False):
        lines += other_data(case, own["run"], table)
    return lines


def other_data(case: str, members: Iterable[Run], table: dict[str, Any] | None) -> list[str]:
    """A line on data that differ from the paper's; [] if they do not (:func:`same_data`)."""
    if table is None or same_data(members, table, case):
        return []
    ours, theirs = finished(members)[0].result, table["cases"][case]
    return [
        f"{case}: ours are {ours['datasets']['train']:,} training images and {len(ours['labels']['names'])} "
        f"classes, the paper's {theirs['images']:,} and {theirs['classes']}: orientation, not comparison."
    ]


def ordering(case: str, groups: Sequence[ColumnGroup], rows: list[TableRow]) -> list[str]:
    """A line on how many pairs of temperatures are ordered as in the paper: orderings and ratios are more informative
    here than digits."""
    counts = []
    for group in groups:
        if group.block != case or group.head not in ("accuracy", "rounds"):
            continue
        cells = [row.cells[group.key][0] for row in rows]
        there = [(c.mean, c.paper) for c in cells if c.mean is not None and c.paper is not None and not c.text]
        unlike = [(a, b) for a, b in itertools.combinations(there, 2) if a[1] != b[1]]
        if unlike:
            agreeing = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in unlike)
            counts.append(f"{group.head} {agreeing} of {len(unlike)}")
    return [f"{case}: pairs of temperatures in the paper's order: {', '.join(counts)}."] if counts else []
