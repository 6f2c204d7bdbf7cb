"""Trackers, which copy a run's log to Weights & Biases, TensorBoard, or a service that a plug-in adds.

A plug-in registers a tracker by ``TRACKERS["name"] = begin``, where ``begin(run)`` returns a :class:`Mirror`. If a
tracker fails, the error is reported once, and the run continues without the tracker.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from knot_runner.config.plugins import Table
from knot_runner.config.settings.groups import TRACKER_EXTRAS, TrackerSettings
from knot_runner.results import RunResult
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, first_line, nearest, require_extra
from knot_runner.util.files import Facts, LogRow
from knot_runner.util.processes import on_signal

#: Seconds to wait for an online service before the run goes on without it.
FINISH_SECONDS = 10
#: Key of a log row -> the key in the same row that counts it, such as a round, an iteration or an epoch ("counter").
Counters = dict[str, str]
#: Keys that can be counters. If several are possible, the first is used.
STEPS = ("round", "iteration", "epoch")


@dataclass(frozen=True)
class TrackedRun:
    """The information that a tracker receives at the beginning of a run.

    ``config``: the complete config, as plain values with string keys. It contains no API key or password from the
    environment. ``family``: the kind of run, such as federated, distillation or distance.
    """

    spec: TrackerSettings
    config: Config
    folder: Path
    run_id: str
    task: str
    method: str
    seed: int
    family: str

    @property
    def name(self) -> str:
        """Return a readable name of the run. Several runs may have the same name; only ``run_id`` is unique."""
        return f"{self.method}-seed{self.seed}"

    @property
    def group(self) -> str:
        """Return the name under which the tracker groups runs: ``tracker.group``, or ``task/method`` by default."""
        return self.spec.group or f"{self.task}/{self.method}"

    @property
    def tags(self) -> list[str]:
        """Return the tags of the run: the task, the method and the tags in ``tracker.tags``."""
        return list(dict.fromkeys([self.task, self.method, *self.spec.tags]))


class Mirror(Protocol):
    """The mirror of one run: an object that copies the run's log to a tracking service.

    If ``log``, ``summarize`` or ``close`` fails, the error is reported once, and the run continues without the mirror.
    """

    def log(self, row: LogRow, steps: Counters) -> None:
        """Copy one row of the log to the service.

        Args:
            row: The row as a flat dict, in which the keys of nested dicts are joined by ``/``.
            steps: The result of :func:`counting_keys` for ``row``.
        """

    def summarize(self, values: Facts) -> None:
        """Copy ``values`` to the service. ``values``: the numbers and the ``status`` of the finished run."""

    def close(self, failed: bool) -> None:
        """End the mirror of the run. ``failed``: whether an error or a signal ended the run."""


def flat(values: Mapping[Any, Any], joint: str = "/", prefix: str = "") -> Facts:
    """Return the nested dict ``values`` as a flat dict. Its keys are the nested keys joined by ``joint``."""
    joined: Facts = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            joined |= flat(value, joint, f"{key}{joint}")
        else:
            joined[key] = value
    return joined


def counting_keys(row: LogRow) -> Counters:
    """Return a dict from keys of the flat dict ``row`` to the keys of their counters.

    Keys without a counter are left out. A counter is an entry of the same row that counts rounds, iterations or epochs.
    Its key is one of :data:`STEPS`, with or without a prefix such as ``valid/``. For a key with a prefix, the counter
    with the same prefix is preferred: the counter of ``valid/loss`` is ``valid/epoch`` if the row contains it, and
    otherwise ``epoch``.
    """
    keys = {}
    for key in row:
        group, joint, _ = key.rpartition("/")
        candidates = [f"{group}{joint}{step}" for step in STEPS] + list(STEPS)
        counted = next((candidate for candidate in candidates if candidate in row), None)
        if counted is not None and counted != key:
            keys[key] = counted
    return keys


def points(row: LogRow, steps: Counters, otherwise: int) -> Iterator[tuple[str, float, int]]:
    """Yield (key, value, step) for every finite number in the flat dict ``row``, except the counters.

    The step is the value of the key's counter. ``steps``: the result of :func:`counting_keys`. ``otherwise``: the step
    for keys without a counter.
    """
    counting = set(steps.values())
    for key, value in row.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and key not in counting and math.isfinite(value):
            step = otherwise
            if key in steps:
                step = int(row[steps[key]])
            yield key, float(value), step


#: ``tracker.name`` -> the function or class that begins a mirror, or its import path. Plug-ins can add entries.
TRACKERS: Table[Callable[[TrackedRun], Mirror]] = Table(
    "TRACKERS",
    {
        "wandb": "knot_runner.engine.tracker_services:begin_wandb",
        "tensorboard": "knot_runner.engine.tracker_services:TensorBoardMirror",
    },
)


class Tracker:
    """Context manager that sends the log of a run to the tracker that ``tracker.name`` selects.

    The first call of :meth:`log` or :meth:`finish` starts the tracker, and the end of the ``with`` block closes it.

    Raises:
        UserError: The tracker is unknown, or the tracker's package is not installed.
    """

    def __init__(self, run: TrackedRun, note: Callable[[str], None]) -> None:
        self._name = run.spec.name
        self._run = run
        self._note = note
        self._mirror: Mirror | None = None
        self._leaving = contextlib.ExitStack()
        self._waiting = True
        if self._name not in TRACKERS:
            raise UserError(f"unknown tracker {self._name!r}{nearest(self._name, ['none', *TRACKERS])}", "tracker.name")
        extra = TRACKER_EXTRAS.get(self._name)
        if extra:
            require_extra(f"tracker={self._name}", extra)

    def log(self, row: LogRow) -> None:
        """Send one ``row`` of the log to the tracker. The keys of nested dicts are joined by ``/``."""
        self._begin_once()
        values = flat(row)
        self._attempt(lambda mirror: mirror.log(values, counting_keys(values)))

    def finish(self, result: RunResult) -> None:
        """Send the status, the metrics and other numbers of ``result`` to the tracker, as the summary of the run."""
        numbers = {key: value for key, value in vars(result).items() if type(value) in (int, float)}
        status = {"status": result.status}
        measures = flat({**result.metrics, "valid": getattr(result, "valid", None) or {}})
        self._begin_once()
        self._attempt(lambda mirror: mirror.summarize(status | numbers | measures))

    def __enter__(self) -> Tracker:
        self._leaving.enter_context(on_signal(lambda: self._close(True)))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leaving.close()
        self._close(kind is not None)

    def _close(self, failed: bool) -> None:
        self._attempt(lambda mirror: mirror.close(failed))

    def _attempt(self, call: Callable[[Mirror], Any]) -> None:
        if self._mirror is None:
            return
        try:
            call(self._mirror)
        except Exception as problem:  # a failing mirror must never end the run
            self._mirror = None
            self._drop("failed", problem)

    def _begin_once(self) -> None:
        if not self._waiting:
            return
        self._waiting = False
        try:
            self._mirror = TRACKERS[self._name](self._run)
        except Exception as problem:  # no server, key or service: the run itself does not depend on these
            self._drop("did not start", problem)

    def _drop(self, how: str, problem: Exception) -> None:
        self._note(f"tracker: {self._name} {how} ({first_line(problem)}); the run continues with local records only")
