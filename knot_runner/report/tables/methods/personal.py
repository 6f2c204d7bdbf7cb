"""Trade-offs of clients' own models as columns: ID accuracy at an OOD accuracy near the last round's, and area."""

from __future__ import annotations

from knot_runner.report.render.table_model import ColumnGroup, Parts
from knot_runner.report.row_keys import lookup
from knot_runner.report.run_folders import Run
from knot_runner.report.tables.aggregate import aggregate
from knot_runner.report.tables.kind import TableRequest
from knot_runner.report.tables.methods.methods import methods_by_data

#: Default metrics of a table of kind personal.
PERSONAL_METRICS = ("id_accuracy", "ood_accuracy", "clients_hurt")
#: Key of a group of columns -> key of its number in ``personalisation`` of a result.
TRADE_OFFS = {"matched": "id_at_matched_ood.1", "area": "area", "steps": ""}
TRADE_OFF_GROUPS = (
    ColumnGroup(
        "matched", "best ID accuracy at an OOD accuracy of at most a point less", ("ALL",), head="ID at OOD -1"
    ),
    ColumnGroup("area", "area of the trade-off curve", ("ALL",), 4, head="area"),
    ColumnGroup("steps", "optimiser steps of a client after the rounds", ("ALL",), 0, head="steps"),
)
TRADE_OFF_LINE = (
    "ID: a client's model on its own test examples, OOD: on each other client's, all clients alike. ID at OOD -1: the "
    "best of the run's measured models whose OOD accuracy is at most a point below that of the last round. Area: what "
    "the curve of (OOD, ID) dominates above guessing's OOD and the last round's ID accuracy; both include the last "
    "round's model."
)


def personal_table(request: TableRequest) -> Parts:
    """A grid with the trade-offs of clients' own models."""
    found = methods_by_data(request, ("ALL",))
    cells = []
    for own in found.members:
        cells.append({key: aggregate([_value(run, key) for run in own["run"]], own) for key in TRADE_OFFS})
    return found.with_columns(TRADE_OFF_GROUPS, cells, [TRADE_OFF_LINE]).parts(request)


def _value(run: Run, key: str) -> float | None:
    facts = run.result.get("personalisation") if run.status == "done" else None
    if not facts:
        return None
    if key == "steps":
        return max(point["sgd_steps"] for point in facts["points"])
    return lookup(facts, TRADE_OFFS[key])
