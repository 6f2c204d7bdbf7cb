"""Tables of federated runs: what training at each temperature comes to, by case (FLex&Chill Tables 1 and 2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from knot_runner.report.averaged import averaged
from knot_runner.report.beside import (
    Slips,
    controlled,
    goal,
    ordering,
    paper_number,
    same_data,
    shown,
    slips_of,
    told,
    under,
    unreached,
)
from knot_runner.report.cases import Setting, cases_of, grid, heads, ordered
from knot_runner.report.cells import Cell, Group, Parts, Row
from knot_runner.report.chilling import (
    MEASURES,
    OF_TARGET,
    WITH,
    Course,
    Select,
    Sweep,
    check_select,
    check_target,
    with_courses,
)
from knot_runner.report.footlines import cited, comparable
from knot_runner.report.records_view import Run

#: The paper's rounds are indices from 0: one less than the rounds trained.
FROM_0 = 1


def temperatures(
    runs: list[Run], table: dict[str, Any] | None, metrics: Sequence[str], options: Mapping[str, Any], command: str
) -> Parts:
    """A row per temperature (and rate control), a block of columns per case.

    ``options``: target (best_of_T4, or an accuracy), select (final or best), cases (name -> settings that a run of it
    has). Raises :class:`UserError` for options that cannot be.
    """
    target, select = check_target(options.get("target", "best_of_T4")), check_select(options.get("select", "final"))
    runs, courses = with_courses(runs, select, command)
    found = grid(runs, cases_of(options, table))
    sweeps = {case: Sweep(_courses(rows, courses), target) for case, rows in found.items()}
    names = list(dict.fromkeys(name for metric in metrics for name in WITH.get(metric, (metric,))))
    groups = tuple(_group(case, name) for case in found for name in names)
    keys, slips = ordered(found), slips_of(table, found, names)
    made = []
    for key in keys:
        cells = {g.key: (_cell(sweeps[g.block], found[g.block].get(key), key, g, table, slips),) for g in groups}
        heading = (key.head, key.settings)[: len(heads(keys))]
        made.append(Row(heading, heading, cells))
    lines = _said(sweeps, names, select) + under(runs, found, table)
    lines += [line for case in found for line in ordering(case, groups, made)]
    return made, heads(keys), groups, lines + told(slips) + cited(table)


def _said(sweeps: dict[str, Sweep], names: list[str], select: Select) -> list[str]:
    """What the columns are, and what they say of each case."""
    aimed = bool(OF_TARGET & set(names))
    target = next(iter(sweeps.values())).target
    lines = ["; ".join(f"{MEASURES[name].head}: {MEASURES[name].title}" for name in names) + "."]
    lines.append(shown(select) + (f" {goal(target)}" if aimed else ""))
    for case, sweep in sweeps.items() if aimed else ():
        lines += controlled(case, sweep) + unreached(case, sweep)
    return lines


# --------------------------------------------------------------------------------------------------- rows and columns


def _courses(rows: dict[Setting, dict[int, Run]], courses: dict[str, Course]) -> dict[Setting, dict[int, Course]]:
    return {
        key: {seed: courses[run.job.run_id] for seed, run in seeds.items() if run.job.run_id in courses}
        for key, seeds in rows.items()
    }


def _group(case: str, name: str) -> Group:
    m = MEASURES[name]
    metric = f"{name}_{m.unit}" if m.unit else name
    return Group(f"{case}: {name}", m.title, (case,), ("",), m.digits, metric, case, m.head, m.signed, m.paper)


def _cell(
    sweep: Sweep,
    members: dict[int, Run] | None,
    key: Setting,
    group: Group,
    table: dict[str, Any] | None,
    slips: Slips,
) -> Cell:
    case, name = group.block, group.key.removeprefix(f"{group.block}: ")
    paper, mark = paper_number(table, case, key, name, slips)
    runs = list((members or {}).values())
    like = comparable(runs) and same_data(runs, table, case)
    measure = MEASURES[name]
    cell = averaged([measure.read(sweep, key, seed) for seed in members or {}], runs, paper, like, measure.top)
    if name == "rounds" and cell.gap is not None:
        cell = dataclasses.replace(cell, gap=cell.gap - FROM_0)
    if name == "rounds" and sweep.short(key):
        cell = dataclasses.replace(cell, text=_beyond(sweep, key), gap=None)
    return dataclasses.replace(cell, mark=mark)


def _beyond(sweep: Sweep, key: Setting) -> str:
    """``>300`` where no seed meets the target within 300 rounds; ``>300 (2 of 3)`` where two of three do not."""
    short = sweep.short(key)
    asked = [seed for seed in sweep.courses[key] if sweep.goal(key, seed) is not None]
    last = min(sweep.courses[key][seed].rounds for seed in short)
    return f">{last}" + (f" ({len(short)} of {len(asked)})" if len(short) < len(asked) else "")
