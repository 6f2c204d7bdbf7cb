"""Runs on a page: their states with reasons, the versions that made them, their times and costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from knot_runner.config.strict import without
from knot_runner.report.render.text import quantity
from knot_runner.report.run_folders import UNUSED, Run

#: Provenance keys of a result; results that differ in one of these may differ in rounding or more.
MADE_BY = ("code", "device", "threads", "engine", "precision")
#: States of a job, in the order they are shown.
JOB_STATES = ("done", "diverged", "failed", "damaged", "other data", "other version", "running", "missing")


@dataclass(frozen=True)
class Standing:
    """A job's state (one of :data:`JOB_STATES`) and, where it is not done, why."""

    state: str
    cause: str = ""


@dataclass(frozen=True)
class RunsView:
    """The runs of a page, each with its state. ``seeds``: number of seeds with results; ``versions``: (provenance,
    number of runs); ``times``: seconds by stage; ``spent``: total seconds of work; ``costs``: bytes and FLOPs;
    ``span``: period in which their records were written."""

    jobs: tuple[tuple[Run, Standing], ...]
    seeds: int
    versions: tuple[tuple[dict[str, str], int], ...]
    times: dict[str, list[float]]
    spent: float
    costs: tuple[CostRow, ...]
    span: str

    @property
    def counts(self) -> dict[str, int]:
        """State -> number of jobs, without empty states."""
        number = Counter(standing.state for _, standing in self.jobs)
        return {state: number[state] for state in JOB_STATES if number[state]}

    @property
    def version_keys(self) -> list[str]:
        """The provenance keys that any run has."""
        return list(dict.fromkeys(key for facts, _ in self.versions for key in facts))

    @property
    def mixed(self) -> list[str]:
        """The provenance keys in which the runs differ."""
        return [key for key in self.version_keys if len({facts.get(key) for facts, _ in self.versions}) > 1]


def view_runs(runs: Sequence[Run], unfinished: Mapping[str, Standing]) -> RunsView:
    """The view of ``runs`` for a page; ``unfinished``: run id -> state of a run without a result."""
    jobs, seeds = tuple((run, _standing(run, unfinished)) for run in runs), {run.job.seed for run in runs if run.result}
    return RunsView(jobs, len(seeds), tuple(versions(runs)), times(runs), spent(runs), view_costs(runs), span(runs))


def _standing(run: Run, unfinished: Mapping[str, Standing]) -> Standing:
    """State of a run and why it has no numbers; for a diverged run its last note, which names round and client."""
    if run.status == "missing":
        return unfinished.get(run.job.run_id, Standing("missing"))
    notes = run.result.get("notes")
    cause = notes[-1] if run.status == "diverged" and notes else run.problem
    return Standing(UNUSED.get(run.status, run.status), cause)


def versions(runs: Sequence[Run]) -> list[tuple[dict[str, str], int]]:
    """(Provenance, number) of the runs with a result, most frequent first; several entries mean mixed provenance."""
    found = Counter(tuple(_made_by(run.result).items()) for run in runs if run.result)
    return [(dict(facts), number) for facts, number in found.most_common()]


def _made_by(result: Mapping[str, Any]) -> dict[str, str]:
    facts = result["versions"] | {key: result[key] for key in MADE_BY if key in result}
    return {key: str(value) for key, value in facts.items()}


def times(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Seconds by stage, each stage once, then of whole runs (a result has only those since the last start)."""
    found: dict[str, list[float]] = defaultdict(list)
    for what, seconds in _stages(runs):
        found[what].append(seconds)
    totals = [parts["total"] for parts in map(stated_seconds, runs) if "total" in parts]
    return dict(found) | ({"whole run, its last start": totals} if totals else {})


def spent(runs: Sequence[Run]) -> float:
    """Total seconds of work for ``runs``: their stages, each once, and the totals of runs without stages."""
    alone = [parts.get("total", 0.0) for parts in map(stated_seconds, runs) if not set(parts) - {"total"}]
    return sum(seconds for _, seconds in _stages(runs)) + sum(alone)


def _stages(runs: Iterable[Run]) -> list[tuple[str, float]]:
    """(Name, seconds) of each stage. Runs of one seed that share it all record the same seconds, so equal ones count
    once."""
    found = dict.fromkeys((run.job.task, run.job.seed, *stage) for run in runs for stage in stated_seconds(run).items())
    return [(what, seconds) for _, _, what, seconds in found if what != "total"]


def span(runs: Iterable[Run]) -> str:
    """Period from the first to the last record of finished runs, by file times; "" without any."""
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


def stated_seconds(run: Run) -> dict[str, float]:
    """Recorded seconds of a run: ``total`` and each stage by name."""
    stated = run.result.get("seconds") or {}
    return without(stated, "stages") | stated.get("stages", {})


#: Key of a result's ``costs`` -> its unit, in the order they are shown.
COST_KEYS = {"bytes_up": "B", "bytes_down": "B", "bytes_to_target": "B", "client_flops": "FLOP", "server_flops": "FLOP"}


@dataclass(frozen=True)
class CostRow:
    """Median costs over the ``runs`` of a method on a task that record them: key of :data:`COST_KEYS` -> text, ``-`` if
    no run has the cost (target not reached, FLOPs not counted)."""

    task: str
    method: str
    runs: int
    medians: dict[str, str]


def view_costs(runs: Sequence[Run]) -> tuple[CostRow, ...]:
    """One row per task and method of ``runs``, in order of first occurrence."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        if run.result.get("costs"):
            found[run.job.task, run.job.method].append(run.result["costs"])
    rows = []
    for (task, method), costs in found.items():
        medians = {}
        for key, unit in COST_KEYS.items():
            amounts = [one[key] for one in costs if one.get(key) is not None]
            medians[key] = quantity(median(amounts), unit) if amounts else "-"
        rows.append(CostRow(task, method, len(costs), medians))
    return tuple(rows)
