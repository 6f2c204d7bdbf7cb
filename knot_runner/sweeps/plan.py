"""The plan of a sweep: files below ``<out>/.sweeps/<id>/`` that all processes of the sweep read.

``jobs/<run id>/config.yaml`` is the composed config of a job. Marks are empty files that any process may create, to
send a signal to the other processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from knot_runner.composing.job import ComposedJob
from knot_runner.config.strict import digest
from knot_runner.records import CONFIG_FILE, recorded_config
from knot_runner.util.config_yaml import Config
from knot_runner.util.files import write_atomic

#: Marks, in this order: start no further jobs; wait for jobs that another process runs; recompute stages whose code
#: version differs.
STOP = "stop"
PATIENT = "patient"
RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Plan:
    """A sweep's plan. ``folder`` holds job configs and marks. A mark is an empty file that all processes see."""

    folder: Path

    def config(self, run_id: str) -> Config:
        """Return the composed config of the job ``run_id``.

        Raises:
            UserError: The config cannot be read. The message names the file.
        """
        return recorded_config(self.folder / "jobs" / run_id)

    def has(self, mark: str) -> bool:
        """Return whether a process has set ``mark``."""
        return (self.folder / mark).exists()

    def mark(self, mark: str) -> None:
        """Set ``mark``, which all processes of the sweep can see."""
        (self.folder / mark).touch()


def write_plan(out: Path, jobs: Iterable[ComposedJob]) -> Plan:
    """Write the plan of ``jobs`` into a new folder below ``out``, and return the plan.

    Raises:
        UserError: The plan cannot be written.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{digest([time.time_ns(), os.getpid()], 6)}"
    plan = Plan(out / ".sweeps" / name)
    for job in jobs:  # without fsync: only this sweep reads the files
        write_atomic(plan.folder / "jobs" / job.run_id / CONFIG_FILE, job.config_yaml, durable=False)
    return plan
