"""The Python interface: functions that act like the command line, but return results instead of printing them.

The argument ``overrides`` is the list of words that would follow the command, for example ``["task=femnist",
"seed=0,1", "--config-dir=DIR"]``. If the user makes an error, a function raises
:class:`~knot_runner.util.errors.UserError` with the message that the command would print. Notes go to the logger
``knot_runner`` of the module ``logging``. To show the notes, call ``logging.basicConfig(level="INFO")``.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.util.errors import LOGGER, UserError, messages_to, print_on_stderr
from knot_runner.util.files import LogRow
from knot_runner.util.processes import main_left_alone

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from knot_runner.composing.job import ComposedJob
    from knot_runner.report.frame import Per, RunSet
    from knot_runner.results import RunResult


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Attributes:
        folder: Folder of the run.
        result: Content of ``result.json``.
    """

    folder: Path
    result: RunResult

    @property
    def rounds(self) -> list[LogRow]:
        """Return the rows of the run's log ``rounds.jsonl``; [] if the run has no log.

        A federated run has one row per round. Other runs have one row per epoch or stage.

        Raises:
            UserError: The log does not match its checksum in the result.
        """
        from knot_runner.records import has_record, read_record

        name = "rounds.jsonl"
        if not has_record(self.folder, self.result, name):
            return []
        return [json.loads(line) for line in read_record(self.folder, self.result, name).splitlines()]


@dataclass(frozen=True)
class RunSelection:
    """The runs below the folder ``out`` that pass all ``filters``. Iteration yields only the finished runs."""

    filters: tuple[str, ...]
    out: Path

    def __iter__(self) -> Iterator[FinishedRun]:
        """Yield a :class:`FinishedRun` for each finished run."""
        for done in self._selected().finished.runs.run:
            yield FinishedRun(done.folder, done.result)

    def frame(self, per: Per = "run") -> pd.DataFrame:
        """Return the metrics of the runs as a pandas frame.

        Args:
            per: "run" for the metrics of each run, "round" for the metrics of each round of a run, or "client" for the
                metrics of each client in each round.

        Returns:
            A frame with the columns of :meth:`knot_runner.report.frame.RunSet.frame`.
        """
        return self._selected().frame(per)

    def plot(self, **request: Any) -> Axes | list[Axes]:
        """Draw the finished runs as ``knot-runner plot`` does.

        For example, ``kr.runs().plot(x="round", y="f1", by="method.name")`` draws one curve per method. To save the
        figure, use ``axes.figure.savefig(FILE)``.

        Args:
            request: Values for the fields of :class:`~knot_runner.report.figures.plot.PlotRequest`.

        Returns:
            The axes of the figure, or a list of axes if the figure has several panels.
        """
        from knot_runner.config.strict import build
        from knot_runner.report.figures.plot import PlotRequest, draw_runs
        from knot_runner.report.figures.style import figure_settings

        with figure_settings():
            drawing, axes = draw_runs(self._selected(), build(PlotRequest, request, "plot"))
        for note in drawing.notes:
            LOGGER.info("%s", note)
        return axes[0] if len(axes) == 1 else axes

    def _selected(self) -> RunSet:
        from knot_runner.report.compare.settings import parse_filter
        from knot_runner.report.frame import selected_runs

        return selected_runs(self.out, [parse_filter(text) for text in self.filters])


def compose(overrides: Sequence[str] = ()) -> list[ComposedJob]:
    """Compose, check and return the jobs that ``overrides`` describe. No job is run."""
    from knot_runner.composing.commands import compose_all

    return compose_all(_listed(overrides))[0]


def run(overrides: Sequence[str] | ComposedJob = ()) -> FinishedRun:
    """Run one job in this process and return the finished run.

    A run that has already finished is not repeated. An unfinished run resumes from its last saved state.

    Args:
        overrides: Overrides of a single run, or a job that :func:`compose` returned.

    Raises:
        UserError: The run fails, or the overrides describe several runs.
    """
    from knot_runner.composing.job import ComposedJob
    from knot_runner.pipelines.context import run_context
    from knot_runner.pipelines.run import complete_run
    from knot_runner.util.files import require_writable

    jobs = [overrides] if isinstance(overrides, ComposedJob) else compose(overrides)
    if len(jobs) != 1:
        raise UserError(f"kr.run takes one run, but {len(jobs)} were given. For a grid, use kr.sweep")
    job = jobs[0]
    require_writable(job.out, "paths.output_dir")
    context = run_context(job, functools.partial(LOGGER.debug, "%s %d/%d %s"), LOGGER.info)
    with main_left_alone():
        return FinishedRun(job.folder, complete_run(context))


def sweep(overrides: Sequence[str]) -> list[FinishedRun]:
    """Run all jobs of a grid or preset, and return the finished runs in the order of the jobs.

    ``overrides`` may select a launcher, such as ``hydra/launcher=joblib``.

    Raises:
        UserError: Some runs have no result. To run or resume these runs, repeat the call.
    """
    from knot_runner.cli.launch import run_jobs
    from knot_runner.cli.parsers import parser_of
    from knot_runner.records import read_result

    jobs = compose(overrides)
    with main_left_alone(), messages_to(print_on_stderr):
        code = run_jobs(parser_of("").parse(overrides))
    finished = [FinishedRun(job.folder, result) for job in jobs if (result := read_result(job.folder))]
    missing = len(jobs) - len(finished)
    if missing:
        raise UserError(f"{missing} of {len(jobs)} runs have no result (exit code {code}). See the messages above")
    return finished


def runs(filters: str | Sequence[str] = "", *, out: str | Path = "outputs") -> RunSelection:
    """Select finished and unfinished runs below a folder.

    Args:
        filters: Conditions on settings, in the syntax of ``knot-runner compare``. For example,
            ``"task=femnist method=fedavg,fedprox training.lr>=0.01"``.
        out: Folder of the runs.
    """
    return RunSelection(tuple(_words(filters)), Path(out).expanduser())


def table(preset: str, overrides: Sequence[str] = ()) -> pd.DataFrame:
    """Return the results table of a preset, computed from the finished runs.

    The frame has one row per cell of the table. Each row has the mean over seeds, the 95% interval of the mean, the
    number of seeds, and the published value.
    """
    from knot_runner.cli.show import references
    from knot_runner.cli.verbs.preset import preset_of
    from knot_runner.report.render.markup import table_csv
    from knot_runner.report.tables.build import preset_table

    composed = preset_of(preset, _listed(overrides))
    return _frame_of(table_csv(preset_table(references(composed.jobs), composed.spec, composed.command)))


def claims(preset: str, overrides: Sequence[str] = ()) -> pd.DataFrame:
    """Return the verdicts on the claims of a preset, computed from the finished runs.

    The frame has one row per claim. Each row has the verdict, the effect, and the 95% interval of the effect.
    """
    from knot_runner.cli.show import verdicts_of
    from knot_runner.cli.verbs.preset import preset_of
    from knot_runner.report.claims.view import claims_csv

    return _frame_of(claims_csv(verdicts_of(preset_of(preset, _listed(overrides)))))


def compare(filters: str | Sequence[str] = "", *, out: str | Path = "outputs", **flags: str) -> pd.DataFrame:
    """Compare groups of runs, and return a frame with one row per group.

    For example, ``kr.compare("task=femnist", by="method.name", measure="accuracy")`` returns one row per method.

    Args:
        filters: Conditions on settings, as in :func:`runs`.
        out: Folder of the runs.
        flags: The options ``by``, ``measure``, ``best``, ``over`` and ``sort`` of ``knot-runner compare``.

    Raises:
        UserError: An option or filter is invalid.
    """
    from knot_runner.cli.parsers import parser_of
    from knot_runner.cli.verbs.compare import answer_of
    from knot_runner.report.compare.files import exact_frame

    given = [f"--{name}={value}" for name, value in flags.items()]
    options = parser_of("compare").parse([*_words(filters), *given, f"paths.output_dir={out}"])
    if options.export:
        raise UserError("not supported by kr.compare. It returns a pandas frame, so use frame.to_csv", "export")
    return exact_frame(answer_of(options))


def _words(filters: str | Sequence[str]) -> list[str]:
    if isinstance(filters, str):
        return filters.split()
    return _listed(filters)


def _listed(words: Sequence[str]) -> list[str]:
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise UserError(f"expected a list of strings, got {words!r:.40}")
    return list(words)


def _frame_of(csv: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(io.StringIO(csv))
