"""Preview of runs. Each run is prepared without training, so that its notes and errors are shown in advance."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from knot_runner.composing.job import ComposedJob
from knot_runner.config.plugins import load_plugins, no_exit
from knot_runner.config.settings.families import call, family_of
from knot_runner.config.strict import by_key, digest, without
from knot_runner.util.errors import UserError, messages_to
from knot_runner.util.processes import temporary_folder

if TYPE_CHECKING:
    from knot_runner.pipelines.context import RunInputs, Services

#: Maximum characters shown of an unexpected exception.
MAX_MESSAGE = 200
#: Maximum number of cached tasks; the least recently used task is dropped.
CACHED_TASKS = 4
Task = TypeVar("Task")


@dataclass
class Preview:
    """The result of preparing jobs without training.

    Attributes:
        notes: Dict from a note to the number of jobs with this note.
        counts: Dict from a title to lines. The title names task, partition and seed. The lines show how many examples
            each party has.
        problem: The error that would stop a run; "" if there is none.
    """

    notes: Counter[str] = field(default_factory=Counter)
    counts: dict[str, list[str]] = field(default_factory=dict)
    problem: str = ""

    def lines(self, jobs: int) -> list[str]:
        """Return the lines for the terminal, one per note.

        ``jobs`` is the number of all jobs. If only some jobs have a note, the note's line states how many jobs have it.
        """
        lines = []
        for note, count in self.notes.items():
            if count != jobs:
                note += f" ({count} of {jobs} jobs)"
            lines.append(note)
        return lines


def preview(jobs: list[ComposedJob]) -> Preview:
    """Prepare ``jobs`` in a temporary folder, and return the preview.

    The preparation's log messages and its output on stderr are hidden.
    """
    with (
        temporary_folder() as folder,
        contextlib.redirect_stderr(io.StringIO()),
        messages_to(lambda _: None),
        no_exit(jobs[0].settings.plugins),
    ):
        return prepare(jobs, folder)


def prepare(jobs: list[ComposedJob], folder: Path) -> Preview:
    """Prepare ``jobs`` without training, and return the preview.

    If several jobs have the same task and kind of partition, examples are counted only for the first of these jobs.

    Args:
        jobs: The jobs.
        folder: Folder to use instead of ``paths.output_dir``.
    """
    from knot_runner.pipelines.context import Services

    services = Services()
    services = Services(cached(services.images), cached(services.texts), cached(services.unlabeled))
    result = Preview()
    titles = set()
    try:
        for group in by_key((_prepared_key(job), job) for job in jobs).values():
            job = group[0]
            seen = inspected(job, folder, services)
            result.notes.update(dict.fromkeys(seen.notes, len(group)))
            title = job.settings.task.name
            seed = ""
            partition = job.settings.partition
            if partition is not None:
                title = f"{title}, {partition.kind}"
                seed = f", seed {job.settings.seed}"
            if seen.counts and title not in titles and (lines := seen.counts.lines()):
                titles.add(title)
                result.counts[f"{title}{seed}"] = lines
    except UserError as error:
        result.problem = str(error)
    except Exception as error:
        result.problem = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_MESSAGE]
    return result


def cached(load: Callable[[Any, Path | None], Task]) -> Callable[[Any, Path | None], Task]:
    """Return a wrapper of ``load`` that caches the most recently used tasks.

    Callers must not modify the returned tasks.
    """
    tasks: dict[str, Task] = {}

    def cached_load(settings: Any, data_root: Path | None) -> Task:
        """Return the task, which is read only if it is not in the cache."""
        key = digest([dataclasses.asdict(settings), str(data_root)], 64)
        task = tasks.pop(key, None) or load(settings, data_root)
        tasks[key] = task  # the last one
        if len(tasks) > CACHED_TASKS:
            del tasks[next(iter(tasks))]
        return task

    return cached_load


def inspected(job: ComposedJob, folder: Path, services: Services | None = None) -> RunInputs:
    """Prepare a run without training, and return its inputs.

    Args:
        job: The job of the run.
        folder: Folder to use instead of ``paths.output_dir``.
        services: Functions that read tasks; None for the default functions.

    Raises:
        UserError: The error with which the run would fail.
    """
    from knot_runner.pipelines.context import RunContext, Services

    load_plugins(job.settings.plugins)
    paths = dataclasses.replace(job.settings.paths, output_dir=str(folder))
    tracker = dataclasses.replace(job.settings.tracker, name="none")
    settings = dataclasses.replace(job.settings, paths=paths, tracker=tracker)

    def silent(*_: object) -> None:
        """Ignore all arguments; used in place of the functions that show progress and notes."""

    run = RunContext(settings, job.method, folder / "run", "", "check", silent, silent, services or Services())
    inputs: RunInputs = call(family_of(job.method).inspect, run)
    return inputs


def _prepared_key(job: ComposedJob) -> str:
    """Return a text that is equal for jobs with the same preparation, for example if only the learning rate differs."""
    config = job.config
    training = without(config.get("training") or {}, "lr", "rounds")
    method = without(config["method"], "name", "temperature", "loss")
    seed = None
    if config.get("partition") or family_of(job.method).training == "rounds":
        seed = job.settings.seed
    groups = [config.get(group) for group in ("task", "partition", "transfer", "model")]
    return digest([*groups, job.settings.paths.data_dir, training, seed, method])
