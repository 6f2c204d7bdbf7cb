"""Tables as plain data: our means and intervals over seeds beside the paper's numbers, from run folders alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from knot_runner.metrics import METRICS, computed_metrics
from knot_runner.report import paper_tables
from knot_runner.report.render.table_model import (
    METHOD_NAMES,
    ColumnGroup,
    Parts,
    ResultTable,
    TableCell,
    TableRow,
    display,
)
from knot_runner.report.run_folders import UNUSED, Job, Run, load_runs, nothing_there
from knot_runner.report.statistics import mean_interval
from knot_runner.report.tables.aggregate import aggregate
from knot_runner.report.tables.federated.chilling import CHILLING_COLUMNS
from knot_runner.report.tables.federated.clustered import ACCURACY_WEIGHTINGS, clustered
from knot_runner.report.tables.federated.temperatures import temperatures_table, trace
from knot_runner.report.tables.footnotes import (
    absences,
    cited,
    comparable,
    finished,
    missing_columns,
    nearness,
    protocol,
    sources,
)
from knot_runner.report.tables.made_with import made_with
from knot_runner.report.tables.methods.baselines import BASELINES_LINE, baseline_rows
from knot_runner.report.tables.methods.gains import gain_groups, gain_lines, with_gains
from knot_runner.report.tables.methods.personal import (
    PERSONAL_METRICS,
    TRADE_OFF_GROUPS,
    TRADE_OFF_LINE,
    with_trade_offs,
)
from knot_runner.util.errors import UserError, nearest

#: Kind of table -> kind of the printed table that can stand beside it.
TABLE_KINDS = {
    "methods": "methods",
    "grid": "methods",
    "gains": "methods",
    "personal": "methods",
    **{k: k for k in ("locals", "temperatures", "trace", "clustered")},
}
#: Kinds that take their rows or columns from the printed table -> one that fits.
PRINTED_FIRST = {"locals": "knot_table1", "trace": "chill_mnist_notebook"}
SIZES = ("train", "valid", "test")
#: Metrics that lie from 0 to this.
SHARES = {"f1": 1.0, "accuracy": 1.0}


def preset_table(jobs: Sequence[Job], spec: Mapping[str, Any], command: str) -> ResultTable:
    """The table of a preset whose ``report:`` is ``spec``. Raises as :func:`build_table`."""
    notes = [*spec.get("notes", []), made_with([job.config for job in jobs])]
    default = PERSONAL_METRICS if spec.get("kind") == "personal" else ["f1", "sd"]
    return build_table(
        jobs, spec.get("paper"), spec.get("metrics", default), kind=spec.get("kind", "methods"),
        notes=notes, command=command, options=spec,
    )  # fmt: skip


def build_table(
    jobs: Sequence[Job],
    paper: str | None,
    metrics: Sequence[str],
    kind: str = "methods",
    notes: Sequence[str] = (),
    command: str = "",
    options: Mapping[str, Any] | None = None,
) -> ResultTable:
    """The table of ``jobs``.

    ``kind``: methods (methods x data sets), grid (settings x ALL), gains (a grid with what each method gains on
    ``options["reference"]``, and its teacher), personal (a grid with the trade-offs of clients' own
    models), locals (data sets, their sizes and local models),
    temperatures (x cases, of federated runs), trace (temperatures x rounds) or clustered (clients x graphs).
    ``paper``: name of the printed table to set beside it. ``metrics``: which of f1, accuracy, sd, in this order; for
    temperatures which of ``CHILLING_COLUMNS``, for clustered of ``ACCURACY_WEIGHTINGS``; a trace has its own.
    ``notes`` go under the table. ``options``: of kind temperatures, see there; ``baselines``: of methods, whether the
    global model before, the best teacher and the ensemble have rows.

    Raises :class:`UserError` when no run is there, naming the ``command`` that makes them; for an unknown kind, metric
    or printed table; and for runs or a printed table of another task.
    """
    table = _checked(kind, paper, metrics)
    runs = load_runs(jobs)
    if not any(run.status in ("done", "diverged") for run in runs):
        raise nothing_there(runs, command)
    rows, heads, groups, lines = _parts(runs, kind, table, metrics, options or {}, command)
    if command and any(run.status in ("missing", *UNUSED) for run in runs):
        lines.append(f"The rest is made by: {command}")
    title = table["caption"] if table else f"{', '.join(dict.fromkeys(run.job.task for run in runs))}: {kind}"
    return ResultTable(kind, title, heads, groups, tuple(rows), (*lines, *notes))


def _checked(kind: str, paper: str | None, metrics: Sequence[str]) -> dict[str, Any] | None:
    if kind not in TABLE_KINDS:
        raise UserError(f"there is no table of kind {kind!r}{nearest(kind, TABLE_KINDS)}")
    own = {"temperatures": CHILLING_COLUMNS, "trace": metrics, "clustered": ACCURACY_WEIGHTINGS}
    own |= dict.fromkeys(("grid", "personal"), METRICS)
    known = own.get(kind, computed_metrics())
    for metric in metrics:
        if metric not in known:
            raise UserError(f"there is no metric {metric!r}{nearest(metric, known)}")
    table = paper_tables.read_printed(paper) if paper else None
    if table and table["kind"] != TABLE_KINDS[kind]:
        raise UserError(f"{paper} cannot stand beside a table of kind {kind}")
    if kind in PRINTED_FIRST and table is None:
        raise UserError(f"a table of kind {kind} needs the printed table beside it ({PRINTED_FIRST[kind]})")
    return table


def _parts(
    runs: list[Run], kind: str, table: Any, metrics: Sequence[str], options: Mapping[str, Any], command: str
) -> Parts:
    if kind == "temperatures":
        return temperatures_table(runs, table, metrics, options, command)
    if kind == "trace":
        return trace(runs, table, command)
    if kind == "clustered":
        return clustered(runs, table, metrics)
    if kind == "locals":
        return _locals(runs, table, metrics[0])
    return _methods(runs, table, metrics, kind, options)


# ------------------------------------------------------------------------------------------------ methods x data sets


def _methods(
    runs: list[Run], table: dict[str, Any] | None, metrics: Sequence[str], kind: str, options: Mapping[str, Any]
) -> Parts:
    _one_task(runs, table)
    rows = _rows_of_methods(runs)
    measured = [frozenset(run.result["metrics"].get(metrics[0], {})) - {"ALL"} for run in finished(runs)]
    columns = _columns(table, runs) if kind == "methods" else ("ALL",)
    like = comparable(runs)
    all_alike = like and table is not None and all(names == set(table["columns"]) - {"ALL"} for names in measured)
    labelled = any(label for _, label in rows)

    def cell(members: list[Run], metric: str, column: str, method: str) -> TableCell:
        ours = [run.metric(metric, column) for run in members]
        theirs = paper_tables.printed_value(table, metric, method, column) if table else None
        return aggregate(ours, members, theirs, all_alike if column == "ALL" else like, _top(metric))

    groups = tuple(_group(metric, columns, runs) for metric in metrics)
    made = []
    for (method, label), members in rows.items():
        cells = {group.key: tuple(cell(members, group.key, c, method) for c in columns) for group in groups}
        keys, heads = ((method, label), (display(method), label)) if labelled else ((method,), (display(method),))
        made.append(TableRow(keys, heads, cells))
    extra = baseline_rows(runs, groups, labelled) if options.get("baselines") else []
    lines = [*absences({_name(key): members for key, members in rows.items()}), *sources(runs), *protocol(runs)]
    lines += missing_columns(columns, measured, table)
    lines += nearness(groups, made) + cited(table)
    lines += [BASELINES_LINE] if extra else []
    if kind == "gains":
        reference = str(options.get("reference", ""))
        groups += gain_groups(metrics[0], reference)
        lines += gain_lines(rows, reference)
        made = with_gains(made, rows, metrics[0], reference)
    if kind == "personal":
        groups += TRADE_OFF_GROUPS
        lines.append(TRADE_OFF_LINE)
        made = with_trade_offs(made, rows)
    made += extra
    return made, ("method", "settings") if labelled else ("method",), groups, lines


def _top(metric: str) -> float | None:
    """The most that ``metric`` can be, None where it has no bound."""
    top = METRICS[metric].top
    return top if math.isfinite(top) else None


def _one_task(runs: list[Run], table: dict[str, Any] | None) -> None:
    tasks = sorted({run.job.task for run in runs})
    if len(tasks) > 1:
        raise UserError(f"a table of methods is of one task; these runs are of {', '.join(tasks)}")
    if table and table["task"] != tasks[0]:
        raise UserError(f"Table {table['table']} of the paper is of task {table['task']}; these runs are of {tasks[0]}")


def _rows_of_methods(runs: list[Run]) -> dict[tuple[str, str], list[Run]]:
    """(method, label) -> its runs, methods in the paper's order, others and labels in the order asked for."""
    rows: dict[tuple[str, str], dict[int, Run]] = defaultdict(dict)
    for run in runs:
        seeds = rows[run.job.method, run.job.label]
        if seeds.get(run.job.seed, run).job.run_id != run.job.run_id:
            raise ValueError(f"two runs share {run.job.method!r}, {run.job.label!r} and seed {run.job.seed}")
        seeds[run.job.seed] = run
    place = {method: i for i, method in enumerate(METHOD_NAMES)}
    ordered = sorted(rows, key=lambda key: place.get(key[0], len(place)))  # stable: equal places keep their order
    return {key: list(rows[key].values()) for key in ordered}


def _columns(table: dict[str, Any] | None, runs: list[Run]) -> tuple[str, ...]:
    """The paper's data sets, then our others, the global ones last; then ALL."""
    blocks = [block for run in finished(runs) for block in run.result["metrics"].values()]
    ours, of_global = dict.fromkeys(name for block in blocks for name in block), _global_sets(runs)
    ordered = sorted(ours, key=lambda name: name in of_global)
    theirs = table["columns"] if table else []
    return (*(name for name in dict.fromkeys([*theirs, *ordered]) if name != "ALL"), "ALL")


def _global_sets(runs: list[Run]) -> set[str]:
    """The data sets of the global model; of images there are counts, no parties."""
    roles = {}
    for run in finished(runs):
        for name, facts in run.result["datasets"].items():
            roles[name] = facts.get("role") if isinstance(facts, dict) else None
    return {name for name, role in roles.items() if role == "global"}


def _group(metric: str, columns: tuple[str, ...], runs: list[Run]) -> ColumnGroup:
    shown, of_global = METRICS[metric], _global_sets(runs)
    title = f"{shown.title} ({shown.better} is better)"
    return ColumnGroup(metric, title, columns, of_global=tuple(c for c in columns if c in of_global))


# ------------------------------------------------------------------------------------------------ data sets and locals


def _locals(runs: list[Run], table: dict[str, Any], metric: str) -> Parts:
    groups = (
        ColumnGroup("sizes", "texts", SIZES, digits=0),
        ColumnGroup("score", "score of the local model", ("score",)),
    )
    by_task: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_task[run.job.task].append(run)
    known = table["datasets"]
    place = {task: i for i, task in enumerate(known)}
    rows = []
    for task in sorted(by_task, key=lambda task: place.get(task, len(place))):
        members, there = by_task[task], finished(by_task[task])
        found = [name for run in there for name in run.result["datasets"]]
        for name in dict.fromkeys([*known.get(task, {}), *found]):
            facts = known.get(task, {}).get(name, {})
            score = facts.get("metric", metric)
            sizes = [(run, run.result["datasets"].get(name, {})) for run in there]
            scores = [(run, run.result.get("teachers", {}).get(name, {})) for run in there]
            cells = {
                "sizes": tuple(_local_cell(members, sizes, part, facts.get(part)) for part in SIZES),
                "score": (_local_cell(members, scores, score, facts.get("score"), SHARES.get(score)),),
            }
            rows.append(TableRow((task, name), (task, name), cells))
    lines = [*absences(dict(by_task)), *sources(runs), *protocol(runs), *cited(table)]
    scores_of = {facts["metric"] for sets in known.values() for facts in sets.values() if "metric" in facts}
    if scores_of == {"f1", "accuracy"}:
        lines.append("score: macro F1 for sa and erc, accuracy for nli, on the data set's own test part.")
    return rows, ("task", "data set"), groups, lines


def _local_cell(
    members: list[Run],
    facts: Sequence[tuple[Run, Mapping[str, float]]],
    key: str,
    paper: float | None,
    top: float | None = None,
) -> TableCell:
    """One value per seed: runs of one seed that differ only in the method share their local models."""
    by_seed: dict[int, list[float]] = defaultdict(list)
    for run, own in facts:
        if own.get(key) is not None:
            by_seed[run.job.seed].append(own[key])
    per_seed = [mean_interval(values)[0] for values in by_seed.values()]
    return aggregate(per_seed, members, paper, comparable(members), top)


def _name(key: tuple[str, str]) -> str:
    return " ".join(filter(None, (display(key[0]), key[1])))
