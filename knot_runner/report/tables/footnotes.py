"""Footnotes of tables: which numbers are missing, and what limits comparisons of the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from knot_runner.config.settings.families import TASK_KINDS
from knot_runner.config.settings.partition import unlike_shares
from knot_runner.config.settings.run_id import kind_of
from knot_runner.config.strict import by_key
from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.render.text import first_few
from knot_runner.report.run_folders import UNUSED, Run, finished
from knot_runner.results import ONE_CLASS
from knot_runner.results.federated import FederatedResult
from knot_runner.results.training import StagesResult

if TYPE_CHECKING:
    import pandas as pd

#: A run is compared with the paper only if it has at least this share of the paper's training images.
MIN_SHARE = 0.5
#: A line names at most this number of rows or damaged files, and counts the others.
_MAX_NAMED = 4


def absences(rows: pd.DataFrame, names: pd.Series) -> Iterator[str]:
    """Yield footnotes on missing runs and on damaged results.

    Table rows that lack the same seeds for the same reasons share one footnote.

    Args:
        rows: A frame with one row per run, as returned by :func:`run_rows`.
        names: For each run, the name of the table row to which the run belongs.
    """
    cases = []
    reasons = rows.state.where(rows.state.isin(UNUSED), rows.problem)
    for name, members in rows.groupby(names, sort=False):
        absent = members.seed[members.state != "done"].astype(str)
        if len(absent):
            seeds = absent.groupby(reasons, sort=False).unique().map(", ".join)
            why = "; ".join("seed " + seeds + " " + seeds.index)
            cases.append((f"{len(members) - len(absent)} of {len(members)} runs are finished ({why}).", name))
    for case, of_case in by_key(cases).items():
        yield f"{first_few(of_case, _MAX_NAMED, more=' rows, each')}: {case}"
    yield from not_counted(rows.run)


def not_counted(runs: Iterable[Run]) -> Iterator[str]:
    """Yield lines on results that exist but are not used (see :data:`UNUSED`), such as damaged results.

    The first few results have one line each. If there are further results, the last line states their number.
    """
    problems = list(dict.fromkeys(run.problem for run in runs if run.status in UNUSED))
    for problem in problems[:_MAX_NAMED]:
        yield f"Not counted: {problem}."
    rest = len(problems) - _MAX_NAMED
    if rest > 0:
        yield f"Not counted: {rest} more results that are damaged, or from different data or versions."


def sources(runs: Iterable[Run]) -> Iterator[str]:
    """Yield footnotes if runs have several data sources, if a run uses no real data, or if training sizes differ."""
    kinds = sorted({run.result.source for run in finished(runs)})
    if len(kinds) > 1:
        yield f"The runs mix data from several sources ({', '.join(kinds)})."
    for run in finished(runs):
        if run.result.source == "embedded":
            yield f"{TASK_KINDS[kind_of(run.setting('task') or {})].embedded}: not comparable with published results."
            break
    yield from training_sizes(runs)


def training_sizes(runs: Iterable[Run]) -> Iterator[str]:
    """Yield a footnote for each task whose methods train on different numbers of examples."""
    for task, members in by_key((run.task, run) for run in finished(runs)).items():
        if not unlike_shares(run.config for run in members):
            continue
        sizes = []
        for run in members:
            trained_on = run.result.datasets  # of the clients of a federated run, or the student of a distillation
            if isinstance(run.result, StagesResult):
                trained_on = trained_on[run.result.global_sets[0]]
            sizes.append((run.method, f"{trained_on.train:,.0f}"))
        named = [f"{method} {', '.join(counts)}" for method, counts in by_key(dict.fromkeys(sizes)).items()]
        yield f"Methods train on different numbers of examples of task {task}: {'; '.join(named)}."


def one_class(runs: Iterable[Run]) -> Iterator[str]:
    """Yield a footnote that lists the runs whose model predicts the same class for every test example."""
    names = []
    for run in finished(runs):
        if any(note.startswith(ONE_CLASS) for note in run.result.notes):
            names.append(f"{run.task} {run.method} {run.result.run_id}")
    if names:
        yield f"These runs predict only one class: {first_few(names, _MAX_NAMED, more=' runs')}."


def comparable(runs: Iterable[Run]) -> bool:
    """Return whether all finished ``runs`` use real data. Results on other data are not comparable with the papers."""
    return all(run.result.source != "embedded" for run in finished(runs))


def missing_columns(
    columns: tuple[str, ...], measured: list[frozenset[str]], table: PrintedTable | None
) -> Iterator[str]:
    """Yield up to two footnotes on missing data sets, which make the values in the column ALL incomparable.

    If the runs have different data sets, the values are not comparable between runs. If the paper has data sets that no
    run has, the values are not comparable with the paper.

    Args:
        columns: The columns of the table: names of data sets, and ALL.
        measured: The names of the data sets in each run.
        table: The paper's table, or None.
    """
    if len(set(measured)) > 1:
        yield "The runs have different data sets, so ALL is not comparable."
    ours = set().union(*measured)
    absent = [name for name in columns if name not in ours | {"ALL"}]
    if absent and measured and table:
        rest = ", ".join(name for name in columns if name in ours - {"ALL"})
        yield (
            f"No run has {', '.join(absent)}. ALL is the mean over {rest} here but over more data sets in the paper, "
            "so no gap is shown."
        )


def cited(table: PrintedTable | None) -> Iterator[str]:
    """Yield the source of the paper's table, then the notes of this table. If ``table`` is None, yield nothing."""
    if table is not None:
        number = f", Table {table.table}" if table.table is not None else ""
        yield f"paper: {table.paper.partition(':')[0]}, arXiv {table.arxiv} ({table.venue}){number}."
        yield from table.notes


def other_data(case: str, runs: Iterable[Run], table: PrintedTable | None) -> list[str]:
    """Return a list that contains a footnote only if our data for ``case`` are not comparable with the paper's data.

    The data are not comparable if the numbers of classes differ, or if a run has less than half of the paper's training
    images.
    """
    if not table or case not in table.cases:
        return []
    theirs = table.cases[case]
    for run in finished(runs):
        ours = run.result
        if not isinstance(ours, FederatedResult):
            continue
        images = ours.datasets.train
        classes = len(ours.labels.names)
        if classes != theirs.classes or images < MIN_SHARE * theirs.images:
            return [
                f"{case}: this task has {images:,} training images and {classes} classes, the paper's has "
                f"{theirs.images:,} and {theirs.classes}. The results are not comparable."
            ]
    return []
