"""The plan of a sweep, in files that all its processes read.

``<out>/.sweeps/<id>/plan.json`` is the plan, and ``jobs/`` holds the composed config of each job, so that jobs are
composed only once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knot_runner.config.strict import digest
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError
from knot_runner.util.files import read_json, write_atomic, write_json

#: Marker files beside the plan: start no more jobs; wait for jobs that another process is running.
STOP, PATIENT = "stop", "patient"
#: In a job's file: marks a list of pairs that encodes a mapping with non-string keys, which JSON lacks.
PAIRS_KEY = "\0pairs"


@dataclass(frozen=True)
class Plan:
    """How to run the jobs.

    ``code``: if set, stages computed by other code versions are recomputed (``--stale=rerun``).
    """

    folder: Path
    fail_fast: bool
    code: str | None

    @property
    def path(self) -> Path:
        """Return the path of the plan."""
        return self.folder / "plan.json"

    @property
    def out(self) -> Path:
        """Return ``paths.output_dir`` of the jobs."""
        return self.folder.parent.parent

    def config(self, run_id: str) -> Config:
        """Return the composed config of a job as plain data.

        Raises:
            UserError: Its file is missing.
        """
        path = self.folder / "jobs" / f"{run_id}.json"
        config = _from_json(read_json(path))
        if not isinstance(config, dict):
            raise _damaged(path)
        return config

    @property
    def stopped(self) -> bool:
        """Return whether a job has failed in a ``fail_fast`` sweep."""
        return self.fail_fast and (self.folder / STOP).exists()

    @property
    def patient(self) -> bool:
        """Return whether to wait for jobs that another process is running."""
        return (self.folder / PATIENT).exists()

    def mark(self, name: str) -> None:
        """Create the marker file ``name``."""
        (self.folder / name).touch()


def new_plan(out: Path, fail_fast: bool, code: str | None) -> Plan:
    """Return a plan with a new folder; nothing is written yet."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{digest([time.time_ns(), os.getpid()], 6)}"
    return Plan(out / ".sweeps" / name, fail_fast, code)


def write_plan(plan: Plan, configs: Mapping[str, Config]) -> None:
    """Write the plan for all processes of the sweep.

    ``configs``: run id -> composed config (plain), without keys that no run reads.

    Raises :class:`UserError` if it cannot be written.
    """
    write_json(plan.path, {"fail_fast": plan.fail_fast, "code": plan.code})
    (plan.folder / "jobs").mkdir(exist_ok=True)
    for name, config in configs.items():  # not synced: only this sweep reads them, and it does not survive a power loss
        write_atomic(plan.folder / "jobs" / f"{name}.json", json.dumps(_to_json(config)), durable=False)


def read_plan(path: Path) -> Plan:
    """Return the plan in ``path``. Raises :class:`UserError` naming the file if it is missing or damaged."""
    content: Any = read_json(path)
    try:
        return Plan(path.parent, content["fail_fast"], content["code"])
    except (TypeError, KeyError):
        raise _damaged(path) from None


def _damaged(path: Path) -> UserError:
    return UserError("file not found or damaged. Repeat the knot-runner command to create it", path)


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        plain = {key: _to_json(part) for key, part in value.items()}
        return (
            plain if all(isinstance(key, str) for key in plain) else {PAIRS_KEY: [list(pair) for pair in plain.items()]}
        )
    return [_to_json(part) for part in value] if isinstance(value, list) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = value[PAIRS_KEY] if PAIRS_KEY in value else value.items()
        return {key: _from_json(part) for key, part in pairs}
    return [_from_json(part) for part in value] if isinstance(value, list) else value
