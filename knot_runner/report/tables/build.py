"""Tables as plain data: our means and intervals over seeds next to the paper's numbers, from run folders only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from knot_runner.config.plugins import Table, checked, expect, unlike
from knot_runner.metrics import METRICS, computed_metrics
from knot_runner.report.paper_tables import PrintedTable, read_printed
from knot_runner.report.render.table_model import ResultTable
from knot_runner.report.run_folders import Job, command_for, load_runs, nothing_there
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


#: Every kind of table by name: ``report.kind`` of a preset. A plug-in adds its own.
TABLE_KINDS: Table[TableKind] = Table("TABLE_KINDS", {
    "methods": TableKind(methods_table, computed_metrics, printed="methods"),
    "grid": TableKind(grid_table, METRICS.keys, printed="methods"),
}, _accepted, papers="report")  # fmt: skip


def preset_table(jobs: Sequence[Job], spec: Config, command: str) -> ResultTable:
    """Return the table of a preset whose ``report:`` is ``spec``. Raises the errors of :func:`build_table`."""
    notes = list(spec.get("notes", []))
    kind = spec.get("kind", "methods")
    metrics = spec.get("metrics", table_kind(kind).usual)
    return build_table(jobs, spec.get("paper"), metrics, kind=kind, notes=notes, command=command, options=spec)


def build_table(
    jobs: Sequence[Job],
    paper: str | None,
    metrics: Sequence[str],
    kind: str = "methods",
    notes: Sequence[str] = (),
    command: str = "",
    options: Config | None = None,
) -> ResultTable:
    """Return the table of ``jobs``.

    ``kind`` is one of :data:`TABLE_KINDS`:

    - methods: methods x data sets
    - grid: settings x ALL
    - gains: a grid with each method's gain over ``options["reference"]``, and its teacher
    - personal: a grid with the trade-offs of clients' personalized models
    - locals: data sets, their sizes and local models
    - temperatures: temperatures x cases, for federated runs
    - trace: temperatures x rounds
    - clustered: clients x graphs

    ``paper`` names the printed table to show next to ours. ``metrics`` selects f1, accuracy and sd, in this order. For
    temperatures, ``metrics`` selects from ``CHILLING_COLUMNS``; for clustered, from ``ACCURACY_WEIGHTINGS``; a trace
    has fixed metrics. ``notes`` are printed below the table. ``options`` is the preset's ``report:``.

    Raises :class:`UserError` if no run is done, naming the ``command`` that runs the jobs. Also raises it for an
    unknown kind, metric or printed table, and for runs or a printed table of another task.
    """
    made_by = table_kind(kind)
    printed = printed_table(made_by, kind, paper, metrics)
    runs = load_runs(jobs, command)
    if not any(run.status in ("done", "diverged") for run in runs):
        raise nothing_there(runs)
    rows, heads, groups, lines = made_by.make(TableRequest(runs, printed, metrics, options or {}, command))
    lines = [*lines, *one_class(runs)]
    if rest := command_for(runs):
        lines = [*lines, f"Create the missing runs with: {rest}"]
    title = printed.caption if printed else f"{', '.join(dict.fromkeys(run.task for run in runs))}: {kind}"
    return ResultTable(kind, title, heads, groups, rows, [*lines, *notes], layout=made_by.layout)


def table_kind(name: str) -> TableKind:
    """Return the kind of table ``name``.

    Raises:
        UserError: ``name`` is unknown.
    """
    if name not in TABLE_KINDS:
        raise UserError(f"unknown kind of table {name!r}{nearest(name, TABLE_KINDS)}", "report.kind")
    return TABLE_KINDS[name]


def printed_table(made_by: TableKind, kind: str, paper: str | None, metrics: Sequence[str]) -> PrintedTable | None:
    """Return the paper's table to show next to ours, after checking that ``kind`` and ``metrics`` fit."""
    known = made_by.metrics() if made_by.metrics else metrics
    for metric in metrics:
        if metric not in known:
            raise UserError(f"unknown metric {metric!r}{nearest(metric, known)}", "report.metrics")
    table = read_printed(paper) if paper else None
    if table and table.kind != made_by.printed:
        raise UserError(f"the published table {paper} cannot be shown next to a table of kind '{kind}'")
    if made_by.needs and table is None:
        raise UserError(f"a table of kind '{kind}' needs the published table ({made_by.needs})")
    return table
