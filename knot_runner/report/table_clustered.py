"""Tables of clustered federated learning: accuracy by graph and support beside the vanilla algorithm (FedWaD 1-5)."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from knot_runner.report.averaged import averaged
from knot_runner.report.beside import other_data, same_data
from knot_runner.report.cases import cases_of
from knot_runner.report.cells import Cell, Group, Parts, Row
from knot_runner.report.clustered import (
    PRINTED,
    WEIGHTINGS,
    Line,
    Place,
    Placed,
    accuracy,
    in_words,
    over_seeds,
    placed,
    places,
    printed_pair,
    printed_uplift,
)
from knot_runner.report.footlines import absences, cited, comparable, sources
from knot_runner.report.gains import gain
from knot_runner.report.gains_said import sentences
from knot_runner.report.records_view import Run

#: Names of the rows of gains: of an algorithm, in the place of its clients, and of all, in the place of an algorithm.
GAIN, UPLIFT = "gain", "mean uplift"
HEADS = ("data set", "algorithm", "clients")
Printed = dict[str, Any] | None


@dataclass(frozen=True)
class Columns:
    """A group of columns, the places that they are, and the weighting of their accuracies."""

    group: Group
    places: tuple[Place, ...]
    weighting: str


def clustered(runs: list[Run], table: Printed, metrics: Sequence[str]) -> Parts:
    """A row per data set, algorithm and number of clients, one of gains per algorithm and one per data set; a block of
    columns per structure and weighting (``metrics``: of :data:`WEIGHTINGS`). The paper's numbers stand beside its own
    weighting.

    Raises :class:`UserError` for runs that have no row here.
    """
    found = placed(runs, cases_of({}, table), table["algorithms"] if table else {})
    columns = _columns(places(found), metrics)
    heads = (*HEADS, "settings") if any(line.other for line in found) else HEADS
    rows = []
    for data, other in dict.fromkeys((line.data, line.other) for line in found):
        members = [line for line in found if (line.data, line.other) == (data, other)]
        for algorithm in dict.fromkeys(line.algorithm for line in members):
            own = [line for line in members if line.algorithm == algorithm]
            for line in own:
                names = (data, algorithm, str(line.clients), other)
                rows.append(_row(names, heads, columns, functools.partial(_cell, found, line, table)))
            gains = functools.partial(_gain, found, own, table)
            rows.append(_row((data, algorithm, GAIN, other), heads, columns, gains))
        needed = _needed(data, other, table) or members
        rows.append(_row((data, UPLIFT, "", other), heads, columns, functools.partial(_uplift, found, needed, table)))
    said = [_legend(metrics), *sentences(found, places(found), table), *_under(found, rows, table)]
    return rows, heads, tuple(one.group for one in columns), said + cited(table)


def _columns(of: Sequence[Place], metrics: Sequence[str]) -> list[Columns]:
    """A group per structure, weighting and support size; vanilla stands with the smallest support."""
    made = []
    for structure in dict.fromkeys(place.structure for place in of):
        own = [place for place in of if place.structure == structure]
        supports = sorted({place.support for place in own if place.support is not None}) or [None]
        for metric in metrics:
            for support in supports:
                there = [place for place in own if place.support in (support, *([None] * (support == supports[0])))]
                made.append(Columns(_group(there, metric), tuple(there), metric))
    return made


def _group(there: Sequence[Place], metric: str) -> Group:
    structure, names = there[0].structure, tuple(place.key for place in there)
    title = f"{in_words(structure)}: accuracy in percent, {WEIGHTINGS[metric]}"
    unit, heads = f"accuracy_{metric}_percent", tuple(place.head for place in there)
    key = f"{metric} {' '.join(names)}"
    return Group(key, title, names, ("",) * len(names), 1, unit, title, heads=heads, paper_digits=1)


# ---------------------------------------------------------------------------------------------------------------- rows


def _row(
    names: tuple[str, ...], heads: Sequence[str], columns: Sequence[Columns], cell: Callable[[Place, str], Cell]
) -> Row:
    names = names[: len(heads)]
    cells = {one.group.key: tuple(cell(place, one.weighting) for place in one.places) for one in columns}
    return Row(names, names, cells)


def _cell(found: Placed, line: Line, table: Printed, place: Place, weighting: str) -> Cell:
    members = list(found[line].get(place, {}).values())
    mean, std = (printed_pair(table, line, place) if weighting == PRINTED else None) or (None, None)
    like = comparable(members) and same_data(members, table, line.data)
    cell = averaged([accuracy(run, weighting) for run in members], members, mean, like, top=100.0)
    return dataclasses.replace(cell, paper_std=std)


def _gain(found: Placed, own: Sequence[Line], table: Printed, place: Place, weighting: str) -> Cell:
    """Of an algorithm on vanilla, the mean over client numbers, paired over seeds."""
    one = gain(found, own, place, weighting, table if weighting == PRINTED else None)
    planned = max(len(found[line].get(place, {})) for line in own)
    if place == place.vanilla or one is None:
        return Cell(planned=planned)
    return Cell(one.mean, one.half, one.seeds, planned, paper=one.paper)


def _uplift(found: Placed, needed: Sequence[Line], table: Printed, place: Place, weighting: str) -> Cell:
    """Mean and population standard deviation over rows of what clustering gains on vanilla; absent unless all rows
    ``needed`` are there, since a mean over other rows is another number."""
    if place == place.vanilla:
        return Cell()
    line, read = needed[0], functools.partial(accuracy, weighting=weighting)
    printed = printed_uplift(table, line, place) if weighting == PRINTED else None
    mean, std = printed or (None, None)
    pairs = [[over_seeds(found, row, column, read) for column in (place, place.vanilla)] for row in needed]
    if not all(ours and plain for ours, plain in pairs):
        return Cell(paper=mean, paper_std=std)
    gains = [statistics.fmean(ours.values()) - statistics.fmean(plain.values()) for ours, plain in pairs]
    seeds = min(len(values) for both in pairs for values in both)
    planned = min(len(found[row][place]) for row in needed)
    return Cell(statistics.fmean(gains), None, seeds, planned, paper=mean, std=statistics.pstdev(gains), paper_std=std)


def _needed(data: str, other: str, table: Printed) -> list[Line]:
    """The rows that the paper has of a data set."""
    printed = table["values"].get(data, {}) if table else {}
    return [Line(data, algorithm, clients, other) for algorithm, rows in printed.items() for clients in rows]


# --------------------------------------------------------------------------------------------------------- lines below


def _legend(metrics: Sequence[str]) -> str:
    note = " Clusters alike is the paper's weighting; it favours small clusters." if PRINTED in metrics else ""
    return (
        "Behind a graph: S, points of the interpolating measures. The paper's ± is the standard deviation over trials. "
        f"{GAIN}: points above vanilla, mean over the numbers of clients, paired by seed; {UPLIFT}: mean ± standard "
        f"deviation over rows, as the paper has it.{note}"
    )


def _under(found: Placed, rows: Sequence[Row], table: Printed) -> list[str]:
    """What is missing, and where the data are not the paper's."""
    members = {line: [run for seeds in columns.values() for run in seeds.values()] for line, columns in found.items()}
    lines = absences({line.name: own for line, own in members.items()})
    lines += sources([run for own in members.values() for run in own])
    for data in dict.fromkeys(line.data for line in found):
        lines += other_data(data, [run for line, own in members.items() if line.data == data for run in own], table)
        uplifts = [row for row in rows if row.keys[:2] == (data, UPLIFT)]
        if any(all(cell.mean is None for cells in row.cells.values() for cell in cells) for row in uplifts):
            lines.append(f"{data}: no mean uplift, since not all rows that it is over are there.")
    return lines
