"""What a run would say and refuse before training, found by preparing it in a child process; recorded times."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import shutil
import signal
import statistics
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings import TrackerSettings
from knot_runner.config.settings.families import family_of
from knot_runner.config.strict import by_key, digest, without
from knot_runner.records import RESULT_FILE, read_result
from knot_runner.report.render.text import duration
from knot_runner.util.config_yaml import read_config
from knot_runner.util.errors import UserError
from knot_runner.util.messages import counted
from knot_runner.util.processes import begin_child, redirect_output, start_process

#: Maximum characters shown of an unexpected exception.
MAX_MESSAGE = 200
#: Maximum number of finished runs of a task that are read for their times, newest first.
MAX_RUNS = 200


@dataclass(frozen=True)
class Preview:
    """What preparing jobs showed. ``notes``: note -> number of jobs; ``counts``: task, partition and seed -> lines on
    examples per party; ``problem``: the user error at which a run would stop; ``broken``: any other error."""

    notes: Counter[str] = field(default_factory=Counter)
    counts: dict[str, list[str]] = field(default_factory=dict)
    problem: str | None = None
    broken: str | None = None

    def lines(self, jobs: int) -> list[str]:
        """Return the notes for the terminal, each with its number of jobs unless that is all ``jobs``."""
        return [note if count == jobs else f"{note} ({count} of {jobs} jobs)" for note, count in self.notes.items()]


def preview(jobs: list[ComposedJob]) -> Preview:
    """Prepare ``jobs`` in a child process, so that composing needs no torch; jobs that share what is prepared, once."""
    groups = grouped(jobs)
    with tempfile.TemporaryDirectory(prefix="knot-runner-check-", ignore_cleanup_errors=True) as folder:
        spawn = multiprocessing.get_context("spawn")
        process, pipe = start_process(spawn, _prepare, folder, [group[0].config for group in groups])
        try:
            messages = _messages(pipe)
        finally:
            for end in (lambda: os.killpg(process.pid, signal.SIGKILL), process.kill):
                with contextlib.suppress(OSError):
                    end()
            process.join()
            pipe.close()
    ends = [message for message in messages if message[0] == "ended"]
    _, problem, broken = ends[0] if ends else ("ended", None, f"its process ended with exit code {process.exitcode}")
    looks = [message[1:] for message in messages if message[0] == "look"]
    return dataclasses.replace(gathered(groups, looks), problem=problem, broken=broken)


def _messages(pipe: Connection) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    with contextlib.suppress(EOFError):
        while not found or found[-1][0] != "ended":
            found.append(pipe.recv())
    return found


def grouped(jobs: list[ComposedJob]) -> list[list[ComposedJob]]:
    """Return ``jobs`` grouped by equal data, clients, models and notes."""
    return list(by_key((_prepared_key(job), job) for job in jobs).values())


def gathered(groups: list[list[ComposedJob]], looks: list[tuple[list[str], list[str]]]) -> Preview:
    """Combine the (notes, lines on examples) of the first ``groups``. Of several seeds the first stands for all."""
    notes: Counter[str] = Counter()
    counts: dict[str, list[str]] = {}
    titles: set[str] = set()
    for group, (job_notes, lines) in zip(groups, looks, strict=False):
        notes.update(dict.fromkeys(job_notes, len(group)))
        job = group[0]
        title, seed = job.settings.task.name, ""
        if job.config.get("partition"):
            title, seed = f"{title}, {job.config['partition']['kind']}", f", seed {job.settings.seed}"
        if lines and title not in titles:
            titles.add(title)
            counts[f"{title}{seed}"] = lines
    return Preview(notes, counts)


def _prepared_key(job: ComposedJob) -> str:
    """A job's group: a learning rate, a temperature or a number of rounds changes nothing before training."""
    config = job.config
    training = without(config.get("training") or {}, "lr", "rounds")
    method = without(config["method"], "name", "temperature", "loss")
    drawn = config.get("partition") or family_of(job.method).training != "stages"
    seed = job.settings.seed if drawn else None
    read = [config["task"], config.get("partition"), config.get("transfer"), config["paths"]["data"]]
    return digest([*read, config.get("model"), training, seed, method])


# ------------------------------------------------------------------------------------------------- in the child process


def _prepare(pipe: Connection, folder: str, configs: list[dict[str, Any]]) -> None:
    """Send the notes and examples of the runs of ``configs``, and how it ended."""
    os.setsid()
    begin_child(cleanup=functools.partial(_leave_nothing, folder))
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 (it is no file of anybody's)
        redirect_output(nowhere)
    problem = broken = None
    try:
        for notes, lines in map(Looks(Path(folder)).look, configs):
            pipe.send(("look", notes, lines))
    except UserError as error:
        problem = str(error)
    except Exception as error:
        broken = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_MESSAGE]
    pipe.send(("ended", problem, broken))


def _leave_nothing(folder: str) -> None:
    """Delete ``folder``, which the parent no longer does, and end this process and all that it has started."""
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _silent(*_: object) -> None:
    """Progress and notes of a run that is only prepared."""


class Looks:
    """Prepares runs with ``folder`` as ``paths.out``; data sets are read once."""

    def __init__(self, folder: Path) -> None:
        from knot_runner.data.shared import SharedTasks
        from knot_runner.pipelines.context import Services

        tasks = SharedTasks()
        self.folder = folder
        self.services = Services(images=tasks.images, texts=tasks.texts, unlabelled=tasks.unlabelled)

    def look(self, config: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return a run's notes and the lines on its examples. Raises :class:`UserError` where the run would."""
        from knot_runner.pipelines.context import RunContext
        from knot_runner.pipelines.runs.single_run import pipeline_function

        job = job_of(config)
        load_plugins(job.settings.plugins)
        paths = dataclasses.replace(job.settings.paths, out=str(self.folder))
        settings = dataclasses.replace(job.settings, paths=paths, tracker=TrackerSettings("none"))
        run = RunContext(settings, job.method, self.folder / "run", "", "check", _silent, _silent, self.services)
        seen = pipeline_function("inspect", job.method)(run)
        return seen.notes, seen.counts.lines() if seen.counts else []


# ------------------------------------------------------------------------------------------------------ recorded times


def time_left(jobs: list[ComposedJob]) -> list[str]:
    """Return lines on how long ``jobs`` take one after another: each as long as the median of the finished runs of its
    method, task and training below ``paths.out``."""
    seconds, runs, known = 0.0, 0, 0
    for root, own in by_key((Path(job.settings.paths.out) / job.settings.task.name, job) for job in jobs).items():
        times = _times_of(root)
        for key, alike in by_key((_time_key(job.config), job) for job in own).items():
            if found := times.get(key):
                seconds += len(alike) * statistics.median(found)
                runs += len(found)
                known += len(alike)
    if not known:
        return ["no finished run is like these jobs, so there is no time to go by"]
    by = f"by the median of {counted(runs, 'finished run')}"
    lines = [f"{counted(known, 'job')} left: about {duration(seconds)}, {by}"]
    if known < len(jobs):
        lines.append(f"{counted(len(jobs) - known, 'other job')} like no finished run")
    return lines


def _times_of(root: Path) -> dict[str, list[float]]:
    times = defaultdict(list)
    paths = sorted(root.glob(f"*/*/{RESULT_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths[:MAX_RUNS]:
        result = read_result(path.parent)
        if result is None or result.get("status") != "done":
            continue
        with contextlib.suppress(UserError, OSError, ValueError):
            times[_time_key(read_config(path.parent / "config.yaml"))].append(float(result["seconds"]["total"]))
    return times


def _time_key(config: dict[str, Any]) -> str:
    """Digest of method, task and training, whatever the seed and the learning rate."""
    training = without(config.get("training") or {}, "lr")
    return digest([config["method"]["name"], config["task"], config.get("model"), config.get("partition"), training])
