"""Notes that runs would log before training, and examples per class and party: read in a child process by the
pipelines' own ``inspect``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.plugins import load_plugins
from knot_runner.config.strict import by_key, digest, without
from knot_runner.estimate.child import Tell, run_apart, watch
from knot_runner.estimate.pieces import has_stages


@dataclass(frozen=True)
class Foreseen:
    """Foreseen output of jobs. ``notes``: note -> number of jobs; ``counts``: task, partition and seed -> lines on
    examples per party; ``unread``: number of jobs whose data were not read, and ``why``; ``problem``: error that would
    stop a run."""

    notes: Counter[str] = field(default_factory=Counter)
    counts: dict[str, list[str]] = field(default_factory=dict)
    unread: int = 0
    why: str = ""
    problem: str | None = None

    def lines(self, jobs: int) -> list[str]:
        """The notes for the terminal, each with its number of jobs unless that is all ``jobs``."""
        shown = [note if count == jobs else f"{note} ({count} of {jobs} jobs)" for note, count in self.notes.items()]
        if self.unread and not self.problem:
            shown.append(f"the data of {self.unread} job{'s' * (self.unread > 1)} are not in this: {self.why}")
        return shown


def preview_notes(jobs: list[ComposedJob], seconds: float) -> Foreseen:
    """Collect the notes of ``jobs`` in at most about ``seconds``. Jobs with the same data and partition are inspected
    once."""
    groups = grouped(jobs)
    seen = watch(inspect_jobs, ([group[0].config for group in groups],), seconds)
    looks = [(notes, counts) for _, _, notes, counts in seen.starting_with("look")]
    why = seen.broken or f"they were not read in {seconds:.0f} s"
    return dataclasses.replace(gathered(groups, looks), why=why, problem=seen.problem)


def grouped(jobs: list[ComposedJob]) -> list[list[ComposedJob]]:
    """``jobs`` grouped by equal data, partition and notes."""
    return list(by_key((_data_key(job), job) for job in jobs).values())


def gathered(groups: list[list[ComposedJob]], looks: list[tuple[list[str], list[str]]]) -> Foreseen:
    """Combine ``looks``, the (notes, lines on examples per party) of the first ``groups``; the jobs of the others count
    as unread.

    Partitions differ by seed: the first seed stands for all.
    """
    notes: Counter[str] = Counter()
    counts: dict[str, list[str]] = {}
    titles: set[str] = set()
    for group, (job_notes, lines) in zip(groups, looks, strict=False):
        notes.update(dict.fromkeys(job_notes, len(group)))
        title, seed = _partition_title(group[0])
        if lines and title not in titles:
            titles.add(title)
            counts[f"{title}{seed}"] = lines
    return Foreseen(notes, counts, sum(len(group) for group in groups[len(looks) :]))


def _partition_title(job: ComposedJob) -> tuple[str, str]:
    """(Task and partition of a job, its seed) as text."""
    partition = (job.config.get("partition") or {}).get("kind")
    if not partition:
        return job.settings.task.name, ""
    return f"{job.settings.task.name}, {partition}", f", seed {job.settings.seed}"


def _data_key(job: ComposedJob) -> str:
    """Digest shared by jobs with equal data, partition and notes; temperature, loss and learning rate do not count."""
    config = job.config
    training = without(config.get("training") or {}, "lr", "rounds")
    used = None if has_stages(job) else without(config["method"], "name", "temperature", "loss")
    seed = None if has_stages(job) and not config.get("partition") else job.settings.seed
    read = [config["task"], config.get("partition"), config.get("transfer"), config["paths"]["data"]]
    return digest([*read, config.get("model"), training, seed, used])


# ------------------------------------------------------------------------------------------------- in its own process


def inspect_jobs(tell: Tell, folder: Path, configs: list[dict[str, Any]]) -> None:
    """Report the notes of the runs of ``configs``."""
    from knot_runner.data.shared import SharedTasks

    tasks = SharedTasks()
    for config in configs:
        job = job_of(config)
        load_plugins(job.settings.plugins)
        seen = run_apart(
            "inspect", job, folder, lambda *_: None, images=tasks.images, texts=tasks.texts, unlabelled=tasks.unlabelled
        )
        tell("look", seen.notes, seen.counts.lines() if seen.counts else [])
