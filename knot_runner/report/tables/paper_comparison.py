"""What the paper prints beside a federated run, and the lines under such a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from knot_runner.report.row_keys import Grid, RowSetting
from knot_runner.report.run_folders import Run
from knot_runner.report.statistics import mean_interval
from knot_runner.report.table_model import ColumnGroup, TableRow
from knot_runner.report.tables.chilling import CaseRuns
from knot_runner.report.tables.footnotes import absences, finished, sources
from knot_runner.report.text import number

#: Fewer training images than this share of the paper's make a run of another size, not to be compared by digits.
MIN_SHARE = 0.5
#: Mark -> case, T, columns and text of what is wrong with a printed number.
Slips = dict[str, dict[str, Any]]


def printed_row(table: dict[str, Any] | None, case: str, key: RowSetting) -> list[float] | None:
    """The printed row; None where the paper has none, as for rate controls."""
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
    marks = (
        mark
        for mark, slip in slips.items()
        if (slip["case"], slip["T"]) == (case, key.temperature) and name in slip["columns"]
    )
    return row[table["columns"].index(name)], "".join(marks)


def errata_of(table: dict[str, Any] | None, cases: Iterable[str], names: Iterable[str]) -> Slips:
    """Printed numbers of these ``cases`` and columns that need a word, by the letter that marks them."""
    known, shown_cases, columns = table["slips"] if table else [], set(cases), set(names)
    there = [slip for slip in known if slip["case"] in shown_cases and columns & set(slip["columns"])]
    return dict(zip("abcdefgh", there, strict=False))


def errata_lines(slips: Slips) -> list[str]:
    """One line per mark."""
    return [f"{mark}: {slip['case']}, T={slip['T']:g}: {slip['text']}." for mark, slip in slips.items()]


def same_data(runs: Iterable[Run], table: dict[str, Any] | None, case: str) -> bool:
    """Whether our data have the paper's number of classes and at least half as many training images."""
    facts = table["cases"].get(case) if table else None
    return facts is None or all(
        len(run.result["labels"]["names"]) == facts["classes"]
        and run.result["datasets"]["train"] >= MIN_SHARE * facts["images"]
        for run in finished(runs)
    )


# --------------------------------------------------------------------------------------------------- lines below


def shown_round(select: str) -> str:
    """Which round accuracy and losses are of."""
    return "Shown: the last round." if select == "final" else "Shown: the round of best accuracy."


def goal(target: float | str) -> str:
    """What counts as reached."""
    return (
        "Target: the best accuracy of the T=4 run of the same seed."
        if target == "best_of_T4"
        else f"Target: accuracy {100 * float(target):g}%."
    )


def controlled(case: str, sweep: CaseRuns) -> list[str]:
    """What of a chilled run's rounds a larger rate alone explains: estimates, paired by seed."""
    lines = []
    for twin in (key for key in sweep.courses if key.control):
        key = RowSetting(twin.temperature, other=twin.other)
        pairs = [(sweep.rounds(twin, seed), sweep.rounds(key, seed)) for seed in sweep.courses.get(key, {})]
        gaps = [float(one - other) for one, other in pairs if one is not None and other is not None]
        if gaps:
            mean, half = mean_interval(gaps)
            spread = f" ± {number(half, 1)}" if half is not None else ""
            seeds = f"{len(gaps)} seed{'s' * (len(gaps) > 1)}"
            plus = "+" if round(mean, 1) > 0 else ""
            lines.append(
                f"{case}: rounds of {twin.name} less those of {key.name}: {plus}{number(mean, 1)}{spread} ({seeds})."
            )
        elif pairs:
            lines.append(f"{case}: {twin.name} and {key.name} have no seed in which both reach the target.")
    return lines


def unreached(case: str, sweep: CaseRuns) -> list[str]:
    """Seeds that are in no mean of rounds or speed-up, and why."""
    reasons: dict[str, list[str]] = {}
    for key, seeds in sweep.courses.items():
        short = sweep.short(key)
        if short:
            last = min(seeds[seed].rounds for seed in short)
            reasons.setdefault(f"target not reached within {last} rounds", []).append(_of_seeds(key, short))
        open_ended = [seed for seed in seeds if sweep.goal(key, seed) is None]
        if open_ended:
            reasons.setdefault("no target, its T=4 run is not there", []).append(_of_seeds(key, open_ended))
    sparse = any(len(own.rows) < own.rounds for seeds in sweep.courses.values() for own in seeds.values())
    lines = [f"{case}: {reason}: {'; '.join(rows)}." for reason, rows in reasons.items()]
    return lines + ([f"{case}: not every round was measured, so rounds are upper bounds."] if sparse else [])


def _of_seeds(key: RowSetting, seeds: list[int]) -> str:
    return f"{key.name}, seed {', '.join(map(str, sorted(seeds)))}"


def paper_lines(runs: list[Run], found: Grid, table: dict[str, Any] | None) -> list[str]:
    """What is missing, and where the data are not the paper's."""
    rows = {f"{case} {key.name}": list(seeds.values()) for case, r in found.items() for key, seeds in r.items()}
    lines = [*absences(rows), *sources(runs)]
    for case, settings in found.items():
        lines += other_data(case, [run for seeds in settings.values() for run in seeds.values()], table)
    return lines


def other_data(case: str, members: Iterable[Run], table: dict[str, Any] | None) -> list[str]:
    """The line on data that are not the paper's; none where they are (:func:`same_data`)."""
    runs = list(members)
    if table is None or same_data(runs, table, case):
        return []
    ours, theirs = finished(runs)[0].result, table["cases"][case]
    return [
        f"{case}: ours are {ours['datasets']['train']:,} training images and {len(ours['labels']['names'])} "
        f"classes, the paper's {theirs['images']:,} and {theirs['classes']}: orientation, not comparison."
    ]


def ordering(case: str, groups: Sequence[ColumnGroup], rows: list[TableRow]) -> list[str]:
    """How many pairs of temperatures come in the paper's order: orderings and ratios say more here than digits."""
    counts = []
    for group in groups:
        if group.block != case or group.head not in ("accuracy", "rounds"):
            continue
        cells = [row.cells[group.key][0] for row in rows]
        there = [(c.mean, c.paper) for c in cells if c.mean is not None and c.paper is not None and not c.text]
        unlike = [(a, b) for a, b in itertools.combinations(there, 2) if a[1] != b[1]]
        if unlike:
            alike = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in unlike)
            counts.append(f"{group.head} {alike} of {len(unlike)}")
    return [f"{case}: pairs of temperatures in the paper's order: {', '.join(counts)}."] if counts else []
