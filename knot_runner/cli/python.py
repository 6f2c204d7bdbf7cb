"""The program from Python: what the command line does, as functions that return what it would print.

``overrides`` are those of the command line (``["task=femnist", "method=fedavg", "seed=0,1"]``), flags such as
``--config-dir=DIR`` among them. A mistake raises :class:`~knot_runner.util.errors.UserError` with the one line that the
command would print. Notes and progress go to the standard logger ``knot_runner`` (``logging.basicConfig(level="INFO")``
shows them).
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.util.errors import UserError
from knot_runner.util.messages import LOGGER, messages_to, print_on_stderr

if TYPE_CHECKING:
    import pandas as pd

    from knot_runner.composing.job import ComposedJob


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended: its ``folder``, and ``result``, the content of ``result.json``."""

    folder: Path
    result: dict[str, Any]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """What was logged of every round (federated), epoch or stage: the rows of ``rounds.jsonl``; [] without any.

        Raises :class:`UserError` where the file is not the one that the result was written with.
        """
        from knot_runner.records import has_record, read_record

        name = "rounds.jsonl"
        if not has_record(self.folder, self.result, name):
            return []
        return [json.loads(line) for line in read_record(self.folder, self.result, name).splitlines()]


@dataclass(frozen=True)
class RunSelection:
    """Runs below ``out`` that pass the filters, for :meth:`frame`."""

    filters: tuple[str, ...]
    out: Path

    def frame(self) -> pd.DataFrame:
        """One row per run and metric; see :func:`knot_runner.report.frame.tidy_frame` for the columns."""
        from knot_runner.report.frame import tidy_frame

        return tidy_frame(self.out, self.filters)


def compose(overrides: Sequence[str] = ()) -> list[ComposedJob]:
    """Every job that the overrides ask for, composed and checked; nothing runs and torch is not imported."""
    from knot_runner.composing.commands import compose_all

    return compose_all(list(overrides))[0]


def run(overrides: Sequence[str] | ComposedJob = ()) -> FinishedRun:
    """One run in this process: a finished one is found, an unfinished one goes on from its last commit.

    ``overrides``: or a job of :func:`compose`. Raises :class:`UserError`, also where they ask for several runs.
    """
    from knot_runner.composing.job import ComposedJob
    from knot_runner.pipelines.runs.single_run import complete_run
    from knot_runner.sweeps.job import run_context
    from knot_runner.util.files import require_writable

    jobs = [overrides] if isinstance(overrides, ComposedJob) else compose(overrides)
    if len(jobs) != 1:
        raise UserError(f"{len(jobs)} runs are asked for; kr.sweep runs a grid, kr.run one of kr.compose(...)")
    job = jobs[0]
    require_writable(Path(job.settings.paths.out), "paths.out")

    def progress(title: str, done: int, total: int, text: str) -> None:
        LOGGER.debug("%s %d/%d %s", title, done, total, text)

    context = run_context(job, progress, LOGGER.info)
    with _main_left_alone():
        return FinishedRun(job.folder, complete_run(context))


@contextlib.contextmanager
def _main_left_alone() -> Iterator[None]:
    """Within, processes are started without importing the user's ``__main__``, which multiprocessing does by default:
    a script without an ``if __name__ == "__main__"`` would begin once more in each of them."""
    prepared = spawn.get_preparation_data

    def without_main(name: str) -> dict[str, Any]:
        return {key: value for key, value in prepared(name).items() if not key.startswith("init_main_from")}

    spawn.get_preparation_data = without_main
    try:
        yield
    finally:
        spawn.get_preparation_data = prepared


def sweep(overrides: Sequence[str]) -> list[FinishedRun]:
    """All runs of a grid or preset, by the launcher that the overrides name; those that have ended, in their order.

    Raises :class:`UserError` where any of them failed, with their number; the others are kept, and the same call
    goes on with what is missing.
    """
    from knot_runner.cli.launch import run_jobs
    from knot_runner.records import read_result

    jobs = compose(overrides)
    with _main_left_alone(), messages_to(print_on_stderr):
        code = run_jobs(list(overrides))
    results = [(job.folder, read_result(job.folder)) for job in jobs]
    missing = sum(result is None for _, result in results)
    if missing:
        raise UserError(f"{missing} of {len(jobs)} runs have no result (exit code {code}); the lines above say why")
    return [FinishedRun(folder, result) for folder, result in results if result is not None]


def runs(filters: str | Sequence[str] = "", out: str | Path = "outputs") -> RunSelection:
    """Finished and unfinished runs below ``out`` that pass ``filters``, which are those of ``knot-runner compare``:
    ``"task=femnist method=fedavg,fedprox training.lr>=0.01"``."""
    words = filters.split() if isinstance(filters, str) else list(filters)
    return RunSelection(tuple(words), Path(out))


def table(preset: str, overrides: Sequence[str] = ()) -> pd.DataFrame:
    """A preset's table from the records of its runs: one row per row and column of the printed one, with mean, 95%
    interval, seeds and the paper's number."""
    from knot_runner.cli.show import references
    from knot_runner.cli.verbs.preset import preset_of
    from knot_runner.report.render.table_forms import table_csv
    from knot_runner.report.tables.build import preset_table

    asked = preset_of([preset, *overrides], "table")
    return _frame_of(table_csv(preset_table(references(asked.jobs), asked.spec, asked.command)))


def claims(preset: str, overrides: Sequence[str] = ()) -> pd.DataFrame:
    """The verdict on each of a preset's claims: holds, does not hold or undecided, with effect and interval."""
    from knot_runner.cli.show import references
    from knot_runner.cli.verbs.preset import preset_of
    from knot_runner.report.claims.verdicts import judge
    from knot_runner.report.claims.view import claims_csv

    asked = preset_of([preset, *overrides], "claims")
    if not asked.spec.get("claims"):
        raise UserError(f"{preset}: its YAML has no report.claims; a list of them is what is judged")
    return _frame_of(claims_csv(judge(references(asked.jobs), asked.spec, asked.command)))


def compare(filters: str | Sequence[str] = "", out: str | Path = "outputs", **flags: str | bool) -> pd.DataFrame:
    """Runs side by side, a row per group: ``kr.compare("task=femnist", by="method.name", measure="accuracy")``.

    ``flags``: those of ``knot-runner compare`` (by, measure, x, best, over, select, sort; ``runs=True``), but export.
    """
    from knot_runner.cli.verbs.compare import answer_of
    from knot_runner.report.compare.files import exact_frame

    if "export" in flags:
        raise UserError("export: kr.compare returns a pandas frame, which writes itself (frame.to_csv and others)")
    words = filters.split() if isinstance(filters, str) else list(filters)
    given = [f"--{name}" if value is True else f"--{name}={value}" for name, value in flags.items()]
    return exact_frame(answer_of([*words, *given, f"--out={out}"]))


def _frame_of(csv: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(io.StringIO(csv))
