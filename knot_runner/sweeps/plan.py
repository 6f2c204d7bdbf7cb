"""What a sweep is to do, in files that every process of it reads: ``<out>/.sweeps/<id>/plan.json`` and ``jobs/``, where
each job's composed config lies, so that nothing is composed twice."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knot_runner.config.strict import digest
from knot_runner.util.errors import UserError
from knot_runner.util.files import read_json, write_atomic, write_json

#: Markers beside the plan: no more jobs are begun; jobs that another process is at are waited for.
STOP, PATIENT = "stop", "patient"
OUTCOMES = "outcomes.json"
#: In a job's file: stands for a mapping with keys that are no text, which JSON does not have; its pairs follow.
PAIRS_KEY = "\0pairs"


@dataclass(frozen=True)
class Plan:
    """How jobs are carried out. ``code``: with it, stages made by other code are made anew (``--stale=rerun``)."""

    folder: Path
    fail_fast: bool
    code: str | None

    @property
    def path(self) -> Path:
        return self.folder / "plan.json"

    @property
    def out(self) -> Path:
        """``paths.out`` of its jobs."""
        return self.folder.parent.parent

    def config(self, run_id: str) -> dict[str, Any]:
        """The composed, plain config of a job. Raises :class:`UserError` naming its file where that is not there."""
        path = self.folder / "jobs" / f"{run_id}.json"
        found = read_json(path)
        if not isinstance(found, dict):
            raise _damaged(path)
        return _from_json(found)

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


def new_plan(out: Path, fail_fast: bool, code: str | None) -> Plan:
    """A plan of a folder of its own; not written yet."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{digest([time.time_ns(), os.getpid()], 6)}"
    return Plan(out / ".sweeps" / name, fail_fast, code)


def write_plan(plan: Plan, configs: Mapping[str, dict[str, Any]]) -> None:
    """For all processes of the sweep. ``configs``: run id -> composed config (plain), less what no run reads.

    Raises :class:`UserError` where it cannot be written.
    """
    write_json(plan.path, {"fail_fast": plan.fail_fast, "code": plan.code})
    (plan.folder / "jobs").mkdir(exist_ok=True)
    for name, config in configs.items():  # not synced: they are for this sweep alone, which no power loss outlives
        write_atomic(plan.folder / "jobs" / f"{name}.json", json.dumps(_to_json(config)), durable=False)


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
        return Plan(path.parent, found["fail_fast"], found["code"])
    except (TypeError, KeyError):
        raise _damaged(path) from None


def _damaged(path: Path) -> UserError:
    return UserError(f"{path}: is not there or damaged; the same knot-runner command again makes a new one")


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        made = {key: _to_json(one) for key, one in value.items()}
        return made if all(isinstance(key, str) for key in made) else {PAIRS_KEY: [list(pair) for pair in made.items()]}
    return [_to_json(one) for one in value] if isinstance(value, list) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = value[PAIRS_KEY] if PAIRS_KEY in value else value.items()
        return {key: _from_json(one) for key, one in pairs}
    return [_from_json(one) for one in value] if isinstance(value, list) else value
