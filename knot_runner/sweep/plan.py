"""What a sweep is to do, in a file that every process of it reads: ``<out>/.sweeps/<id>/plan.json``."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from knot_runner.errors import UserError
from knot_runner.files import read_json, write_json
from knot_runner.strict import digest

#: Markers beside the plan: no more jobs are begun; jobs that another process is at are waited for.
STOP, PATIENT = "stop", "patient"
OUTCOMES = "outcomes.json"


@dataclass(frozen=True)
class PlannedJob:
    """One job to launch: its overrides, and its name for a person."""

    overrides: list[str]
    run_id: str
    folder: str
    title: str

    @property
    def path(self) -> Path:
        """The run's folder."""
        return Path(self.folder)


@dataclass(frozen=True)
class Plan:
    """The jobs to launch. ``code``: with it, stages made by other code are made anew (``--stale=rerun``)."""

    folder: Path
    jobs: list[PlannedJob]
    fail_fast: bool
    code: str | None

    @property
    def path(self) -> Path:
        return self.folder / "plan.json"

    @property
    def stopped(self) -> bool:
        """Whether a job failed in a sweep that ends with the first failure."""
        return self.fail_fast and (self.folder / STOP).exists()

    @property
    def patient(self) -> bool:
        """Whether a job that another process is at is waited for."""
        return (self.folder / PATIENT).exists()

    def mark(self, name: str) -> None:
        """Set a marker."""
        (self.folder / name).touch()


def new_plan(out: Path, jobs: list[PlannedJob], fail_fast: bool, code: str | None) -> Plan:
    """A plan of a folder of its own; not written yet."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{digest([time.time_ns(), [job.run_id for job in jobs]], 6)}"
    return Plan(out / ".sweeps" / name, jobs, fail_fast, code)


def write_plan(plan: Plan) -> None:
    """For all processes of the sweep. Raises :class:`UserError` where it cannot be."""
    write_json(plan.path, {**asdict(plan), "folder": str(plan.folder)})


def write_outcomes(plan: Plan, outcomes: list[dict[str, Any]]) -> None:
    """What the launcher returned, for the summary."""
    write_json(plan.folder / OUTCOMES, outcomes)


def read_outcomes(plan: Plan) -> list[dict[str, Any]]:
    """What the launcher returned; none when it broke."""
    found = read_json(plan.folder / OUTCOMES)
    return found if isinstance(found, list) else []


def read_plan(path: Path) -> Plan:
    """The plan in ``path``. Raises :class:`UserError` naming it when it is not there or damaged."""
    found: Any = read_json(path)
    try:
        jobs = [PlannedJob(**job) for job in found["jobs"]]
        return Plan(Path(found["folder"]), jobs, found["fail_fast"], found["code"])
    except (TypeError, KeyError):
        raise UserError(
            f"{path}: is not there or damaged; the same knot-runner command again makes a new one"
        ) from None
