"""Tables of clustered federated learning: accuracy by graph and support beside the vanilla algorithm (FedWaD 1-5)."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from knot_runner.report.row_keys import preset_cases
from knot_runner.report.run_folders import Run
from knot_runner.report.table_model import ColumnGroup, Parts, TableCell, TableRow
from knot_runner.report.tables.aggregate import aggregate
from knot_runner.report.tables.clustered_grid import (
    ACCURACY_WEIGHTINGS,
    PRINTED,
    GridColumn,
    GridRow,
    Placed,
    grid_columns,
    grid_of,
    in_words,
    over_seeds,
    printed_pair,
    printed_uplift,
    weighted_accuracy,
)
from knot_runner.report.tables.clustering_gain import gain
from knot_runner.report.tables.footnotes import absences, cited, comparable, sources
from knot_runner.report.tables.gain_sentences import sentences
from knot_runner.report.tables.paper_comparison import other_data, same_data

#: Names of the rows of gains: of an algorithm, in the place of its clients, and of all, in the place of an algorithm.
GAIN, UPLIFT = "gain", "mean uplift"
CLUSTERED_HEADS = ("data set", "algorithm", "clients")
Printed = dict[str, Any] | None


@dataclass(frozen=True)
class TableColumns:
    """A group of columns, the places that they are, and the weighting of their accuracies."""

    group: ColumnGroup
    places: tuple[GridColumn, ...]
    weighting: str


def clustered(runs: list[Run], table: Printed, metrics: Sequence[str]) -> Parts:
    """A row per data set, algorithm and number of clients, one of gains per algorithm and one per data set; a block of
    columns per structure and weighting (``metrics``: of :data:`ACCURACY_WEIGHTINGS`). The paper's numbers stand beside
    its own weighting.

    Raises :class:`UserError` for runs that have no row here.
    """
    found = grid_of(runs, preset_cases({}, table), table["algorithms"] if table else {})
    columns = _columns(grid_columns(found), metrics)
    heads = (*CLUSTERED_HEADS, "settings") if any(line.other for line in found) else CLUSTERED_HEADS
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
    said = [_legend(metrics), *sentences(found, grid_columns(found), table), *_under(found, rows, table)]
    return rows, heads, tuple(one.group for one in columns), said + cited(table)


def _columns(of: Sequence[GridColumn], metrics: Sequence[str]) -> list[TableColumns]:
    """A group per structure, weighting and support size; vanilla stands with the smallest support."""
    made = []
    for structure in dict.fromkeys(place.structure for place in of):
        own = [place for place in of if place.structure == structure]
        supports = sorted({place.support for place in own if place.support is not None}) or [None]
        for metric in metrics:
            for support in supports:
                there = [place for place in own if place.support in (support, *([None] * (support == supports[0])))]
                made.append(TableColumns(_group(there, metric), tuple(there), metric))
    return made


def _group(there: Sequence[GridColumn], metric: str) -> ColumnGroup:
    structure, names = there[0].structure, tuple(place.key for place in there)
    title = f"{in_words(structure)}: accuracy in percent, {ACCURACY_WEIGHTINGS[metric]}"
    unit, heads = f"accuracy_{metric}_percent", tuple(place.head for place in there)
    key = f"{metric} {' '.join(names)}"
    return ColumnGroup(key, title, names, ("",) * len(names), 1, unit, title, heads=heads, paper_digits=1)


# ---------------------------------------------------------------------------------------------------------------- rows


def _row(
    names: tuple[str, ...],
    heads: Sequence[str],
    columns: Sequence[TableColumns],
    cell: Callable[[GridColumn, str], TableCell],
) -> TableRow:
    names = names[: len(heads)]
    cells = {one.group.key: tuple(cell(place, one.weighting) for place in one.places) for one in columns}
    return TableRow(names, names, cells)


def _cell(found: Placed, line: GridRow, table: Printed, place: GridColumn, weighting: str) -> TableCell:
    members = list(found[line].get(place, {}).values())
    mean, std = (printed_pair(table, line, place) if weighting == PRINTED else None) or (None, None)
    like = comparable(members) and same_data(members, table, line.data)
    cell = aggregate([weighted_accuracy(run, weighting) for run in members], members, mean, like, top=100.0)
    return dataclasses.replace(cell, paper_std=std)


def _gain(found: Placed, own: Sequence[GridRow], table: Printed, place: GridColumn, weighting: str) -> TableCell:
    """Of an algorithm on vanilla, the mean over client numbers, paired over seeds."""
    one = gain(found, own, place, weighting, table if weighting == PRINTED else None)
    planned = max(len(found[line].get(place, {})) for line in own)
    if place == place.vanilla or one is None:
        return TableCell(planned=planned)
    return TableCell(one.mean, one.half, one.seeds, planned, paper=one.paper)


def _uplift(found: Placed, needed: Sequence[GridRow], table: Printed, place: GridColumn, weighting: str) -> TableCell:
    """Mean and population standard deviation over rows of what clustering gains on vanilla; absent unless all rows
    ``needed`` are there, since a mean over other rows is another number."""
    if place == place.vanilla:
        return TableCell()
    line, read = needed[0], functools.partial(weighted_accuracy, weighting=weighting)
    printed = printed_uplift(table, line, place) if weighting == PRINTED else None
    mean, std = printed or (None, None)
    pairs = [[over_seeds(found, row, column, read) for column in (place, place.vanilla)] for row in needed]
    if not all(ours and plain for ours, plain in pairs):
        return TableCell(paper=mean, paper_std=std)
    gains = [statistics.fmean(ours.values()) - statistics.fmean(plain.values()) for ours, plain in pairs]
    seeds = min(len(values) for both in pairs for values in both)
    planned = min(len(found[row][place]) for row in needed)
    return TableCell(
        statistics.fmean(gains), None, seeds, planned, paper=mean, std=statistics.pstdev(gains), paper_std=std
    )


def _needed(data: str, other: str, table: Printed) -> list[GridRow]:
    """The rows that the paper has of a data set."""
    printed = table["values"].get(data, {}) if table else {}
    return [GridRow(data, algorithm, clients, other) for algorithm, rows in printed.items() for clients in rows]


# --------------------------------------------------------------------------------------------------------- lines below


def _legend(metrics: Sequence[str]) -> str:
    note = " Clusters alike is the paper's weighting; it favours small clusters." if PRINTED in metrics else ""
    return (
        "Behind a graph: S, points of the interpolating measures. The paper's ± is the standard deviation over trials. "
        f"{GAIN}: points above vanilla, mean over the numbers of clients, paired by seed; {UPLIFT}: mean ± standard "
        f"deviation over rows, as the paper has it.{note}"
    )


def _under(found: Placed, rows: Sequence[TableRow], table: Printed) -> list[str]:
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
