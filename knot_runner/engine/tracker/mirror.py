"""The interface of trackers, plug-ins' included: the facts that they get of a run, and the methods that they
provide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from knot_runner.config.settings import TrackerSettings

#: Seconds to wait for an online service before the run goes on without it.
FINISH_SECONDS = 10
#: What rows are counted by, where they are.
STEPS = ("round", "iteration", "epoch")


@dataclass(frozen=True)
class TrackedRun:
    """Facts of a run, passed to a tracker when it begins.

    ``config``: the whole composed config, plain values with string keys; it holds no API key or password from the
    environment, which composing refuses. ``family``: the kind of run (federated, distillation, distance, ...).
    """

    spec: TrackerSettings
    config: dict[str, Any]
    folder: Path
    run_id: str
    task: str
    method: str
    seed: int
    family: str

    @property
    def name(self) -> str:
        """A readable name; the run id is the unique one."""
        return f"{self.method}-seed{self.seed}"

    @property
    def group(self) -> str:
        """The preset, or the user's name for the group; without either, task and method."""
        return self.spec.group or f"{self.task}/{self.method}"

    @property
    def tags(self) -> list[str]:
        """Task and method, and the user's own."""
        return list(dict.fromkeys([self.task, self.method, *self.spec.tags]))


class Mirror(Protocol):
    """The mirror of one run. An exception of a method is reported once, and the run continues without the mirror."""

    def log(self, row: dict[str, Any], steps: dict[str, str]) -> None:
        """One ``row`` of values, its keys joined by ``/``. ``steps``: key -> the key of the row that counts it (a
        round, an iteration or an epoch); keys without such a counter are left out."""

    def summarise(self, values: dict[str, Any]) -> None:
        """The numbers of the finished run, and its ``status``."""

    def close(self, failed: bool) -> None:
        """The run ends, for good or, with ``failed``, by an error or a signal."""


def flat(values: Mapping[Any, Any], joint: str = "/", prefix: str = "") -> dict[str, Any]:
    """Nested ``values`` with their keys joined by ``joint``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, joint, f"{prefix}{name}{joint}")
        else:
            found[f"{prefix}{name}"] = value
    return found


def counting_keys(row: dict[str, Any]) -> dict[str, str]:
    """Key of a flat ``row`` -> the key that counts it: the first of :data:`STEPS` beside it, else one of the row."""
    found = {}
    for key in row:
        place = key.rpartition("/")[0]
        candidates = [f"{place}/{step}" for step in STEPS if place] + list(STEPS)
        counted = next((one for one in candidates if one in row), None)
        if counted is not None and counted != key:
            found[key] = counted
    return found


def points(row: dict[str, Any], steps: dict[str, str], otherwise: int) -> Iterator[tuple[str, float, int]]:
    """Yields (key, value, step) of every finite number in a flat ``row``, except the steps themselves; ``otherwise``:
    the step of keys without a counter."""
    counting = set(steps.values())
    for key, value in row.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and key not in counting and math.isfinite(value):
            yield key, float(value), int(row[steps[key]]) if key in steps else otherwise
