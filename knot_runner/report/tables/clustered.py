"""Tables of clustered federated learning: accuracy by graph and support beside the vanilla algorithm (FedWaD 1-5)."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.render.table_model import ColumnGroup, Parts, TableCell, TableRow
from knot_runner.report.run_rows import preset_cases
from knot_runner.report.tables import clustered_grid as grid
from knot_runner.report.tables.footnotes import absences, cited, comparable, sources
from knot_runner.report.tables.kind import TableRequest, aggregate
from knot_runner.report.tables.paper_comparison import other_data, same_data

if TYPE_CHECKING:
    import pandas as pd

#: Name of the row of gains over all algorithms.
UPLIFT = "mean uplift"
CLUSTERED_HEADS = ("data set", "algorithm", "clients")
Printed = PrintedTable | None


def clustered(request: TableRequest) -> Parts:
    """A row per data set, algorithm and number of clients, plus a row of gains per data set; a block of columns per
    structure and weighting (``metrics``: of :data:`grid.ACCURACY_WEIGHTINGS`). The paper's numbers are shown with its
    own weighting only.

    Raises :class:`UserError` for runs that do not belong in this table.
    """
    table, metrics = request.printed, request.metrics
    frame = grid.clustered_frame(request.runs, preset_cases({}, table), table.algorithms if table else {})
    texts = all("datasets" in run.config["task"] for run in frame["run"])
    columns = _columns(grid.grid_columns(frame), metrics, "texts" if texts else "images")
    heads = (*CLUSTERED_HEADS, "settings") if any(frame["other"]) else CLUSTERED_HEADS
    rows: list[TableRow] = []
    for (data, other), members in frame.groupby(["data", "other"], sort=False):
        printed = None if other else table
        for line, own in members.groupby("line", sort=False):
            cells = {}
            for group, places, weighting in columns:
                cells[group.key] = tuple(_cell(own, line, printed, place, weighting) for place in places)
            names = (data, line.algorithm, str(line.clients), other)[: len(heads)]
            rows.append(TableRow(names, names, cells))
        needed, uplifts = _needed(members, table), {}
        for group, places, weighting in columns:
            uplifts[group.key] = tuple(_uplift(members, needed, printed, place, weighting) for place in places)
        names = (data, UPLIFT, "", other)[: len(heads)]
        rows.append(TableRow(names, names, uplifts))
    note = " Clusters alike is the paper's weighting; it favors small clusters." if grid.PRINTED in metrics else ""
    legend = (
        "Behind a graph: S, points of the interpolating measures. The paper's ± is the standard deviation over trials. "
        f"{UPLIFT}: points above vanilla, mean ± standard deviation over rows, as the paper has it.{note}"
    )
    lines = [legend, *_under(frame, rows, table), *cited(table)]
    return rows, heads, tuple(group for group, _, _ in columns), lines


def _columns(
    of: Sequence[grid.GridColumn], metrics: Sequence[str], examples: str
) -> list[tuple[ColumnGroup, list[grid.GridColumn], str]]:
    """(Column group, its grid columns, weighting) per structure, weighting and support size; vanilla is in the group of
    the smallest support."""
    columns = []
    for structure in dict.fromkeys(place.structure for place in of):
        own = [place for place in of if place.structure == structure]
        supports: list[int | None] = [*sorted({place.support for place in own if place.support is not None})] or [None]
        for metric in metrics:
            weights = grid.ACCURACY_WEIGHTINGS[metric].format(examples=examples)
            title = f"{grid.in_words(structure)}: accuracy in percent, {weights}"
            for support in supports:
                shown = {support, None} if support == supports[0] else {support}
                places = [place for place in own if place.support in shown]
                names, heads = tuple(place.key for place in places), tuple(place.head for place in places)
                key, unit = f"{metric} {' '.join(names)}", f"accuracy_{metric}_percent"
                group = ColumnGroup(key, title, names, 1, unit, title, heads=heads, paper_digits=1)
                columns.append((group, places, metric))
    return columns


def _cell(own: pd.DataFrame, line: grid.GridRow, table: Printed, place: grid.GridColumn, weighting: str) -> TableCell:
    there, mean, std = own[own["key"] == place.key], None, None
    if table is not None and weighting == grid.PRINTED:
        by_clients = table.values.get(line.data, {}).get(line.algorithm, {})
        mean, std = grid.printed_pair(table, by_clients.get(line.clients), place)
    like = comparable(there["run"]) and same_data(there["run"], table, line.data)
    cell = aggregate(there[weighting].dropna(), there, mean, like, top=100.0)
    return dataclasses.replace(cell, paper_std=std)


def _uplift(
    members: pd.DataFrame, needed: Sequence[grid.GridRow], table: Printed, place: grid.GridColumn, weighting: str
) -> TableCell:
    """Mean and federation standard deviation over rows of the gain of clustering over vanilla; empty unless all
    ``needed`` rows are present, since a mean over other rows is a different number."""
    if place == place.vanilla:
        return TableCell()
    mean, std = None, None
    if table is not None and weighting == grid.PRINTED:
        mean, std = grid.printed_pair(table, table.uplift.get(needed[0].data), place)
    gains, counts, planned = [], [], []
    for line in needed:
        own = members[members["line"] == line]
        there = own[own["key"] == place.key]
        ours, plain = (rows[weighting].dropna() for rows in (there, own[own["key"] == place.vanilla.key]))
        if ours.empty or plain.empty:
            return TableCell(paper=mean, paper_std=std)
        gains.append(statistics.fmean(ours) - statistics.fmean(plain))
        counts += [len(ours), len(plain)]
        planned.append(len(there))
    spread = statistics.pstdev(gains) if len(gains) > 1 else None  # undefined for one row
    return TableCell(statistics.fmean(gains), None, min(counts), min(planned), paper=mean, std=spread, paper_std=std)


def _needed(members: pd.DataFrame, table: Printed) -> list[grid.GridRow]:
    """The paper's rows of a data set; if it has none, those of our ``members``."""
    data, other = members["data"].iloc[0], members["other"].iloc[0]
    printed = table.values.get(data, {}) if table else {}
    paper = [grid.GridRow(data, algorithm, clients, other) for algorithm, rows in printed.items() for clients in rows]
    return paper or list(members["line"].unique())


def _under(frame: pd.DataFrame, rows: Sequence[TableRow], table: Printed) -> list[str]:
    """Footnotes on missing runs and on data that differ from the paper's."""
    lines = absences(frame, frame["line"].map(lambda line: line.name)) + sources(frame["run"])
    for data, own in frame.groupby("data", sort=False):
        lines += other_data(data, own["run"], table)
        uplifts = [row for row in rows if row.keys[:2] == (data, UPLIFT)]
        if any(all(cell.mean is None for cells in row.cells.values() for cell in cells) for row in uplifts):
            lines.append(f"{data}: no mean uplift, since not all rows that it is over are there.")
    return lines
