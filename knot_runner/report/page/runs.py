"""What a page says of its runs: which are there and why others are not, what made them, and how long it took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from knot_runner.report.page.costs import CostRow, view_costs
from knot_runner.report.records.schema import is_number
from knot_runner.report.run_folders import UNUSED, Run

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
class RunsView:
    """The runs of a page, each with its state. ``seeds``: how many have results; ``versions``: what made the runs and
    how many; ``times``: seconds by what they were spent on; ``spent``: seconds behind the runs; ``costs``: bytes and
    FLOPs; ``span``: from when to when their records were written."""

    jobs: tuple[tuple[Run, Standing], ...]
    seeds: int
    versions: tuple[tuple[dict[str, str], int], ...]
    times: dict[str, list[float]]
    spent: float
    costs: tuple[CostRow, ...]
    span: str

    @property
    def counts(self) -> dict[str, int]:
        """State -> number of jobs, states without any left out."""
        number = Counter(standing.state for _, standing in self.jobs)
        return {state: number[state] for state in JOB_STATES if number[state]}

    @property
    def version_keys(self) -> list[str]:
        """What is known of what made the runs."""
        return list(dict.fromkeys(key for facts, _ in self.versions for key in facts))

    @property
    def mixed(self) -> list[str]:
        """The keys in which what made the runs differs."""
        return [key for key in self.version_keys if len({facts.get(key) for facts, _ in self.versions}) > 1]


def view_runs(runs: Sequence[Run], unfinished: Mapping[str, Standing]) -> RunsView:
    """``runs`` as a page shows them; ``unfinished``: run id -> what is known of a run without a result."""
    return RunsView(
        tuple((run, _standing(run, unfinished)) for run in runs),
        len({run.job.seed for run in runs if run.result}),
        tuple(versions(runs)),
        times(runs),
        spent(runs),
        view_costs(runs),
        span(runs),
    )


def _standing(run: Run, unfinished: Mapping[str, Standing]) -> Standing:
    """The state of a run, and why it has no numbers; of a diverged one its own last note, which names round and
    client."""
    if run.status == "missing":
        return unfinished.get(run.job.run_id, Standing("missing"))
    notes = run.result.get("notes")
    told = run.status == "diverged" and isinstance(notes, list) and notes
    return Standing(UNUSED.get(run.status, run.status), str(notes[-1]) if told else run.problem)


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


# ---------------------------------------------------------------------------------------------------------------- time


def times(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Seconds by stage, each stage once, then of whole runs (of which a result has that of the last start alone)."""
    found: dict[str, list[float]] = defaultdict(list)
    for stage in _stages(runs):
        found[stage.what].append(stage.seconds)
    totals = [parts["total"] for parts in map(stated_seconds, runs) if "total" in parts]
    return dict(found) | ({"whole run, its last start": totals} if totals else {})


def spent(runs: Sequence[Run]) -> float:
    """Seconds of work behind ``runs``: their stages, each once, and the totals of runs that name no stages."""
    alone = [parts.get("total", 0.0) for parts in map(stated_seconds, runs) if not set(parts) - {"total"}]
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
    found = [
        _Stage(run.job.task, run.job.seed, what, seconds)
        for run in runs
        for what, seconds in stated_seconds(run).items()
        if what != "total"
    ]
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


def stated_seconds(run: Run) -> dict[str, float]:
    """What a result says of time: ``total``, and each stage by its name; of a job of a fused sweep only its stages,
    since all else counts its waits for other jobs."""
    stated = run.result.get("seconds")
    if not isinstance(stated, dict):
        return {}
    stages = stated.get("stages")
    flat = {} if run.result.get("beside") else {key: value for key, value in stated.items() if key != "stages"}
    flat |= stages if isinstance(stages, dict) else {}
    return {str(key): float(value) for key, value in flat.items() if is_number(value)}
