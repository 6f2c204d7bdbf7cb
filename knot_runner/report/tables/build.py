"""Tables as plain data, from run folders only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from knot_runner.config.plugins import Table, checked, expect, unlike
from knot_runner.metrics import METRICS, computed_metrics
from knot_runner.report.paper_tables import PrintedTable, read_printed
from knot_runner.report.render.table_model import ResultTable
from knot_runner.report.run_folders import Job, command_for, load_runs, require_results
from knot_runner.report.tables.footnotes import one_class
from knot_runner.report.tables.kind import TableKind, TableRequest
from knot_runner.report.tables.methods import grid_table, methods_table
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, nearest


def _accepted(where: str, kind: TableKind) -> TableKind:
    expect(where, kind, TableKind)
    return replace(kind, make=checked(where, kind.make, _problem))


def _problem(parts: object, request: TableRequest) -> str:
    wanted = "(rows, heads, column groups, footnotes)"
    if not isinstance(parts, tuple):
        return unlike(parts, tuple, wanted)
    return "" if len(parts) == 4 else f"a tuple of {len(parts)} instead of {wanted}"


#: Name in ``report.kind`` -> kind of table. A plug-in can add kinds.
TABLE_KINDS: Table[TableKind] = Table("TABLE_KINDS", {
    "methods": TableKind(methods_table, computed_metrics, printed="methods"),
    "grid": TableKind(grid_table, METRICS.keys, printed="methods"),
}, _accepted, papers="report")  # fmt: skip


def preset_table(jobs: Sequence[Job], spec: Config, command: str) -> ResultTable:
    """Return the table of a preset.

    Args:
        jobs: The jobs of the preset, finished or not.
        spec: The preset's section ``report:``.
        command: The command that runs the jobs, for messages.

    Raises:
        UserError: No run is done or diverged, a name in ``spec`` is unknown, or the runs do not fit the table.
    """
    name = spec.get("kind", "methods")
    if name not in TABLE_KINDS:
        raise UserError(f"unknown kind of table {name!r}{nearest(name, TABLE_KINDS)}", "report.kind")
    kind = TABLE_KINDS[name]
    printed = printed_table(name, spec)
    runs = load_runs(jobs, command)
    require_results(runs)
    request = TableRequest(runs, printed, spec.get("metrics", kind.usual), spec)
    rows, heads, groups, lines = kind.make(request)
    lines = [*lines, *one_class(runs)]
    if rest := command_for(runs):
        lines.append(f"Create the missing runs with: {rest}")
    title = f"{', '.join(dict.fromkeys(run.task for run in runs))}: {name}"
    if printed:
        title = printed.caption
    return ResultTable(title, heads, groups, rows, [*lines, *spec.get("notes", ())], layout=kind.layout)


def printed_table(name: str, spec: Config) -> PrintedTable | None:
    """Return the paper's table that ``spec`` selects for comparison; None if ``spec`` selects no table.

    Args:
        name: The kind of our table, a key of :data:`TABLE_KINDS`.
        spec: The preset's section ``report:``.

    Raises:
        UserError: (1) A metric is unknown. (2) The selected paper's table is unknown or has the wrong kind. (3) Our
            table requires a paper's table, but ``spec`` selects none.
    """
    kind = TABLE_KINDS[name]
    metrics = spec.get("metrics", kind.usual)
    known = metrics
    if kind.metrics:
        known = kind.metrics()
    for metric in metrics:
        if metric not in known:
            raise UserError(f"unknown metric {metric!r}{nearest(metric, known)}", "report.metrics")
    paper = spec.get("paper")
    if not paper and kind.needs:
        raise UserError(f"a table of kind '{name}' needs the published table ({kind.needs})")
    if not paper:
        return None
    table = read_printed(paper)
    if table.kind != kind.printed:
        raise UserError(f"the published table {paper} cannot be shown next to a table of kind '{name}'")
    return table
