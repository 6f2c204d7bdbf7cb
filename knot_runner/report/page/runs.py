"""What a page says of its runs: which are there and why others are not, what made them, and how long it took."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from knot_runner.report.records.checks import is_number
from knot_runner.report.run_folders import UNUSED, Run
from knot_runner.report.table_model import display
from knot_runner.report.text import duration

#: What a result says of what made it; results that differ in one of these may differ in rounding or more.
MADE_BY = ("code", "device", "threads", "engine", "precision")
#: States of a job, in the order they are shown.
JOB_STATES = ("done", "diverged", "failed", "damaged", "other data", "running", "missing")


@dataclass(frozen=True)
class Standing:
    """A job's state (one of :data:`JOB_STATES`) and, where it is not done, why."""

    state: str
    cause: str = ""


@dataclass(frozen=True)
class JobView:
    """A job in the list of all."""

    run_id: str
    task: str
    method: str
    seed: int
    label: str
    standing: Standing
    seconds: str


@dataclass(frozen=True)
class TimeView:
    """Time spent on one thing: how often, in all, and the median, as text."""

    what: str
    count: int
    total: str
    median: str


@dataclass(frozen=True)
class RunsView:
    """The runs of a page. ``counts``: state -> number of jobs; ``seeds``: how many have results; ``versions``: what
    made the runs and how many; ``mixed``: in what that differs; ``spent``: time behind them; ``span``: from when to
    when their records were written."""

    jobs: tuple[JobView, ...]
    counts: dict[str, int]
    seeds: int
    versions: tuple[tuple[dict[str, str], int], ...]
    mixed: tuple[str, ...]
    times: tuple[TimeView, ...]
    spent: str
    span: str

    @property
    def version_keys(self) -> list[str]:
        """What is known of what made the runs."""
        return list(dict.fromkeys(key for facts, _ in self.versions for key in facts))


def view_runs(runs: Sequence[Run], unfinished: Mapping[str, Standing]) -> RunsView:
    """``runs`` as a page shows them; ``unfinished``: run id -> what is known of a run without a result."""
    found = standings(runs, unfinished)
    made = versions(runs)
    return RunsView(
        tuple(_job(run, standing) for run, standing in zip(runs, found, strict=True)),
        count_states(found),
        len({run.job.seed for run in runs if run.result}),
        tuple(made),
        tuple(mixed(made)),
        tuple(times(runs)),
        duration(spent(runs)),
        span(runs),
    )


def standings(runs: Sequence[Run], unfinished: Mapping[str, Standing]) -> list[Standing]:
    """The state of each run; ``unfinished``: run id -> what is known of a run without a result."""
    return [
        unfinished.get(run.job.run_id, Standing("missing"))
        if run.status == "missing"
        else Standing(UNUSED.get(run.status, run.status), _cause(run))
        for run in runs
    ]


def _cause(run: Run) -> str:
    """Why a run has no numbers; of a diverged one its own last note, which names round and client."""
    notes = run.result.get("notes")
    if run.status == "diverged" and isinstance(notes, list) and notes:
        return str(notes[-1])
    return run.problem


def count_states(found: Iterable[Standing]) -> dict[str, int]:
    """State -> number of jobs, states without any left out."""
    number = Counter(standing.state for standing in found)
    return {state: number[state] for state in JOB_STATES if number[state]}


def _job(run: Run, standing: Standing) -> JobView:
    job, seconds = run.job, _seconds(run).get("total")
    took = "" if seconds is None else duration(seconds)
    return JobView(job.run_id, job.task, display(job.method), job.seed, job.label, standing, took)


# ------------------------------------------------------------------------------------------------------------ versions


def versions(runs: Sequence[Run]) -> list[tuple[dict[str, str], int]]:
    """(What made them, how many) of the runs with a result, most first; more than one entry means they are mixed."""
    found = Counter(tuple(_made_by(run.result).items()) for run in runs if run.result)
    return [(dict(facts), number) for facts, number in found.most_common()]


def _made_by(result: Mapping[str, Any]) -> dict[str, str]:
    stated = result.get("versions")
    facts = dict(stated) if isinstance(stated, dict) else {}
    facts |= {key: result[key] for key in MADE_BY if key in result}
    return {str(key): str(value) for key, value in facts.items()}


def mixed(found: Sequence[tuple[dict[str, str], int]]) -> list[str]:
    """The keys in which what made the runs differs."""
    keys = dict.fromkeys(key for facts, _ in found for key in facts)
    return [key for key in keys if len({facts.get(key) for facts, _ in found}) > 1]


# ---------------------------------------------------------------------------------------------------------------- time


def times(runs: Sequence[Run]) -> list[TimeView]:
    """Time spent by stage, each stage once, then on whole runs (of which a result has that of the last start alone)."""
    stages: dict[str, list[float]] = defaultdict(list)
    for stage in _stages(runs):
        stages[stage.what].append(stage.seconds)
    totals = [parts["total"] for parts in map(_seconds, runs) if "total" in parts]
    rows = [_time(what, values) for what, values in stages.items()]
    return rows + ([_time("whole run, its last start", totals)] if totals else [])


def spent(runs: Sequence[Run]) -> float:
    """Seconds of work behind ``runs``: their stages, each once, and the totals of runs that name no stages."""
    alone = [parts.get("total", 0.0) for parts in map(_seconds, runs) if not set(parts) - {"total"}]
    return sum(stage.seconds for stage in _stages(runs)) + sum(alone)


@dataclass(frozen=True)
class _Stage:
    """A piece of work as results tell of it. Runs of one seed that share it all have its seconds, so that equal ones
    are taken for one."""

    task: str
    seed: int
    what: str
    seconds: float


def _stages(runs: Iterable[Run]) -> list[_Stage]:
    found = (
        _Stage(r.job.task, r.job.seed, what, s) for r in runs for what, s in _seconds(r).items() if what != "total"
    )
    return list(dict.fromkeys(found))


def span(runs: Iterable[Run]) -> str:
    """From the first record of a finished run to the last, by the files' times; "" without any."""
    written = []
    for run in runs:
        for name in ("config.yaml", "result.json"):
            path = run.job.folder / name
            if run.result and path.is_file():
                written.append(path.stat().st_mtime)
    if not written:
        return ""
    first, last = (datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M") for when in (min(written), max(written)))
    return f"{first} to {last}"


def _seconds(run: Run) -> dict[str, float]:
    """What a result says of time: ``total``, and each stage by its name; of a job of a fused sweep only its stages,
    since all else counts its waits for other jobs."""
    stated = run.result.get("seconds")
    if not isinstance(stated, dict):
        return {}
    stages = stated.get("stages")
    flat = {} if run.result.get("beside") else {key: value for key, value in stated.items() if key != "stages"}
    flat |= stages if isinstance(stages, dict) else {}
    return {str(key): float(value) for key, value in flat.items() if is_number(value)}


def _time(what: str, values: Sequence[float]) -> TimeView:
    return TimeView(what, len(values), duration(sum(values)), duration(statistics.median(values)))
