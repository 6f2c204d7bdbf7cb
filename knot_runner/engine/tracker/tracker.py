"""Trackers mirror a run; the local records are authoritative, so a failing tracker is reported once and dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any

from knot_runner.config.settings import TRACKER_EXTRAS
from knot_runner.config.settings.families import load
from knot_runner.engine.tracker.mirror import Mirror, TrackedRun, counting_keys, flat
from knot_runner.util.errors import UserError, first_line, nearest, require_extra
from knot_runner.util.processes import on_sigterm

#: ``tracker.name`` -> what begins a mirror, or where it is (imported when a run begins one). A plug-in adds its own.
TRACKERS: dict[str, Callable[[TrackedRun], Mirror] | str] = {
    "wandb": "knot_runner.engine.tracker.wandb:begin_wandb",
    "tensorboard": "knot_runner.engine.tracker.tensorboard:TensorBoardMirror",
    "mlflow": "knot_runner.engine.tracker.mlflow:begin_mlflow",
}


class Tracker:
    """``none``: does nothing. Another: one mirror per run id, begun with the first logged number, closed on every exit
    path. Raises :class:`UserError` for an unknown tracker, or one whose package is not installed."""

    def __init__(self, run: TrackedRun, note: Callable[[str], None]) -> None:
        self._name, self._run, self._note = run.spec.name, run, note
        self._mirror: Mirror | None = None
        self._leaving = contextlib.ExitStack()
        self._waiting = self._name != "none"
        if self._waiting:
            _require(self._name)

    def log(self, row: dict[str, Any]) -> None:
        """Mirror one row of numbers: of a round, an epoch, an iteration, a pair, a temperature."""
        self._begin_once()
        values = flat(row)
        self._attempt(lambda mirror: mirror.log(values, counting_keys(values)))

    def finish(self, result: dict[str, Any]) -> None:
        """Mirrors the numbers of a result as the run's summary: its metrics and other scalars."""
        numbers = {key: value for key, value in result.items() if isinstance(value, int | float)}
        status = {"status": result["status"]} if "status" in result else {}
        measures = flat(result.get("metrics", {})) | flat({"valid": result.get("valid") or {}})
        self._begin_once()
        self._attempt(lambda mirror: mirror.summarise(status | numbers | measures))

    def __enter__(self) -> Tracker:
        self._leaving.enter_context(on_sigterm(lambda: self._close(True)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            self._note(f"tracker: {self._name} failed ({first_line(problem)}); the local records go on without it")

    def _begin_once(self) -> None:
        if not self._waiting:
            return
        self._waiting = False
        begin = TRACKERS[self._name]
        try:
            self._mirror = (load(begin) if isinstance(begin, str) else begin)(self._run)
        except Exception as problem:  # no server, no key, no service: the run itself needs none of them
            self._note(
                f"tracker: {self._name} did not start ({first_line(problem)}); the local records go on without it"
            )


def _require(name: str) -> None:
    if name not in TRACKERS:
        raise UserError(f"tracker.name: no tracker {name!r}{nearest(name, ['none', *TRACKERS])}")
    extra = TRACKER_EXTRAS.get(name)
    if extra:
        require_extra(f"tracker={name}", extra)
