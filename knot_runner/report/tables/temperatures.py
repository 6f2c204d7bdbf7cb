"""Tables of federated runs: what training at each temperature comes to, by case (FLex&Chill Tables 1 and 2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from knot_runner.report.row_keys import RowSetting, ordered, preset_cases, row_heads, runs_by_case
from knot_runner.report.run_folders import Run
from knot_runner.report.table_model import ColumnGroup, Parts, TableCell, TableRow
from knot_runner.report.tables.aggregate import aggregate
from knot_runner.report.tables.chilling import (
    CHILLING_COLUMNS,
    OF_TARGET,
    WITH,
    CaseRuns,
    LearningCurve,
    Select,
    check_select,
    check_target,
    with_learning_curves,
)
from knot_runner.report.tables.footnotes import cited, comparable
from knot_runner.report.tables.paper_comparison import (
    Slips,
    controlled,
    errata_lines,
    errata_of,
    goal,
    ordering,
    paper_lines,
    paper_number,
    same_data,
    shown_round,
    unreached,
)

#: The paper's rounds are indices from 0: one less than the rounds trained.
FROM_0 = 1


def temperatures_table(
    runs: list[Run],
    table: dict[str, Any] | None,
    metrics: Sequence[str],
    options: Mapping[str, Any],
    command: str,
) -> Parts:
    """A row per temperature (and rate control), a block of columns per case.

    ``options``: target (best_of_T4, or an accuracy), select (final or best), cases (name -> settings that a run of it
    has). Raises :class:`UserError` for options that cannot be.
    """
    target, select = check_target(options.get("target", "best_of_T4")), check_select(options.get("select", "final"))
    runs, courses = with_learning_curves(runs, select, command)
    found = runs_by_case(runs, preset_cases(options, table))
    sweeps = {case: CaseRuns(_courses(rows, courses), target) for case, rows in found.items()}
    names = list(dict.fromkeys(name for metric in metrics for name in WITH.get(metric, (metric,))))
    groups = tuple(_group(case, name) for case in found for name in names)
    keys, slips = ordered(found), errata_of(table, found, names)
    made = []
    for key in keys:
        cells = {g.key: (_cell(sweeps[g.block], found[g.block].get(key), key, g, table, slips),) for g in groups}
        heading = (key.head, key.settings)[: len(row_heads(keys))]
        made.append(TableRow(heading, heading, cells))
    lines = _said(sweeps, names, select) + paper_lines(runs, found, table)
    lines += [line for case in found for line in ordering(case, groups, made)]
    return made, row_heads(keys), groups, lines + errata_lines(slips) + cited(table)


def _said(sweeps: dict[str, CaseRuns], names: list[str], select: Select) -> list[str]:
    """What the columns are, and what they say of each case."""
    aimed = bool(OF_TARGET & set(names))
    target = next(iter(sweeps.values())).target
    lines = ["; ".join(f"{CHILLING_COLUMNS[name].head}: {CHILLING_COLUMNS[name].title}" for name in names) + "."]
    lines.append(shown_round(select) + (f" {goal(target)}" if aimed else ""))
    for case, sweep in sweeps.items() if aimed else ():
        lines += controlled(case, sweep) + unreached(case, sweep)
    return lines


# --------------------------------------------------------------------------------------------------- rows and columns


def _courses(
    rows: dict[RowSetting, dict[int, Run]], courses: dict[str, LearningCurve]
) -> dict[RowSetting, dict[int, LearningCurve]]:
    return {
        key: {seed: courses[run.job.run_id] for seed, run in seeds.items() if run.job.run_id in courses}
        for key, seeds in rows.items()
    }


def _group(case: str, name: str) -> ColumnGroup:
    m = CHILLING_COLUMNS[name]
    metric = f"{name}_{m.unit}" if m.unit else name
    return ColumnGroup(f"{case}: {name}", m.title, (case,), ("",), m.digits, metric, case, m.head, m.signed, m.paper)


def _cell(
    sweep: CaseRuns,
    members: dict[int, Run] | None,
    key: RowSetting,
    group: ColumnGroup,
    table: dict[str, Any] | None,
    slips: Slips,
) -> TableCell:
    case, name = group.block, group.key.removeprefix(f"{group.block}: ")
    paper, mark = paper_number(table, case, key, name, slips)
    runs = list((members or {}).values())
    like = comparable(runs) and same_data(runs, table, case)
    measure = CHILLING_COLUMNS[name]
    cell = aggregate([measure.read(sweep, key, seed) for seed in members or {}], runs, paper, like, measure.top)
    if name == "rounds" and cell.gap is not None:
        cell = dataclasses.replace(cell, gap=cell.gap - FROM_0)
    if name == "rounds" and sweep.short(key):
        cell = dataclasses.replace(cell, text=_beyond(sweep, key), gap=None)
    return dataclasses.replace(cell, mark=mark)


def _beyond(sweep: CaseRuns, key: RowSetting) -> str:
    """``>300`` where no seed meets the target within 300 rounds; ``>300 (2 of 3)`` where two of three do not."""
    short = sweep.short(key)
    asked = [seed for seed in sweep.courses[key] if sweep.goal(key, seed) is not None]
    last = min(sweep.courses[key][seed].rounds for seed in short)
    return f">{last}" + (f" ({len(short)} of {len(asked)})" if len(short) < len(asked) else "")
