"""What distillation gains on the student alone: points of a metric, paired over seeds, with their 95% interval."""

from __future__ import annotations

from collections.abc import Mapping

from knot_runner.metrics import METRICS
from knot_runner.report.render.table_model import ColumnGroup, TableCell, TableRow
from knot_runner.report.run_folders import Run
from knot_runner.report.tables.aggregate import aggregate

#: (method, label) -> its runs
MethodRows = Mapping[tuple[str, str], list[Run]]
GAIN, TEACHER = "gain", "teacher"


def gain_groups(metric: str, reference: str) -> tuple[ColumnGroup, ColumnGroup]:
    """The columns of the gain over ``reference``, a method, in ``metric``, and of the best teacher."""
    title = METRICS[metric].title
    return (
        ColumnGroup(
            GAIN, f"{title} less that of {reference} at the same seed, in points", ("ALL",), 1, head="gain", signed=True
        ),
        ColumnGroup(TEACHER, f"{title} of the teacher, the best one of several", ("ALL",), head="teacher"),
    )


def gain_cells(rows: MethodRows, key: tuple[str, str], metric: str, reference: str) -> dict[str, tuple[TableCell, ...]]:
    """Cells of :func:`gain_groups` in row ``key``; a gain is over the seeds that both have, by the reference's row of
    the same label where it has one, else by its first."""
    references = {label: members for (method, label), members in rows.items() if method == reference}
    own = references.get(key[1], next(iter(references.values()), []))
    base = {run.job.seed: run.metric(metric, "ALL") for run in own if run.status == "done"}
    members, gains, teachers = rows[key], [], []
    for run in members:
        value = run.metric(metric, "ALL") if run.status == "done" else None
        other = base.get(run.job.seed)
        paired = value is not None and other is not None and key[0] != reference
        gains.append(100 * (value - other) if paired else None)
        teachers.append(_best_teacher(run, metric))
    return {GAIN: (aggregate(gains, members, None, True),), TEACHER: (aggregate(teachers, members, None, True),)}


def _best_teacher(run: Run, metric: str) -> float | None:
    """Of the frozen teachers that the run's student learnt from, on the student's test set."""
    if run.status != "done":
        return None
    baselines = run.result.get("baselines") or {}
    values = [own[metric] for name, own in baselines.items() if name.startswith("teacher")]
    if not values:
        return None
    return max(values) if METRICS[metric].better == "higher" else min(values)


def gain_lines(rows: MethodRows, reference: str) -> list[str]:
    """What is to be said where gains are over nothing."""
    if any(method == reference for method, _ in rows):
        return []
    return [f"No run of {reference or 'report.reference'} is asked for, so there is no gain to show."]


def with_gains(made: list[TableRow], rows: MethodRows, metric: str, reference: str) -> list[TableRow]:
    """The rows of a table of methods, in the order of ``rows``, with the cells of :func:`gain_groups`."""
    return [
        TableRow(row.keys, row.heads, {**row.cells, **gain_cells(rows, key, metric, reference)})
        for key, row in zip(rows, made, strict=True)
    ]
