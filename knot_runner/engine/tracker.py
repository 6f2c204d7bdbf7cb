"""Trackers mirror a run; the local records are authoritative, so a failing tracker is reported once and dropped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from knot_runner.config.settings import Settings, TrackerSettings
from knot_runner.util.processes import on_sigterm

#: Seconds to wait for an online service before the run goes on without it.
FINISH_SECONDS = 10


class Tracker:
    """``none``: does nothing. ``wandb``: one run per run id (so a resumed run continues it), group = experiment,
    started with the first logged number, finished on every exit path."""

    def __init__(
        self, spec: TrackerSettings, settings: Settings, folder: Path, run_id: str, say: Callable[[str], None]
    ) -> None:
        self._say, self._run = say, None
        self._leaving = contextlib.ExitStack()
        self._start = (lambda: self._begin(spec, settings, folder, run_id)) if spec.name == "wandb" else None

    def log(self, row: dict[str, Any]) -> None:
        """Mirror one row of numbers: of a round, an epoch, an iteration, a pair, a temperature."""
        self._begin_once()
        self._attempt(lambda: self._run.log(_flat(row)))

    def finish(self, result: dict[str, Any]) -> None:
        """Mirror the numbers of a result as the run's summary: its measures, and what else is one number."""
        numbers = {key: value for key, value in result.items() if isinstance(value, int | float)}
        self._begin_once()
        self._attempt(lambda: self._run.summary.update(numbers | _flat(result.get("metrics", {}))))

    def __enter__(self) -> Tracker:
        self._leaving.enter_context(on_sigterm(lambda: self._finish(1)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.close()
        self._finish(0 if kind is None else 1)

    def _finish(self, code: int) -> None:
        self._attempt(lambda: self._run.finish(exit_code=code))

    def _begin_once(self) -> None:
        if self._start is not None:
            start, self._start = self._start, None
            self._run = start()

    def _attempt(self, call: Callable[[], Any]) -> None:
        if self._run is None:
            return
        try:
            call()
        except Exception as problem:  # a mirror must never take the run with it
            self._run = None
            self._say(f"tracker: wandb failed ({_first_line(problem)}); the local records go on without it")

    def _begin(self, spec: TrackerSettings, settings: Settings, folder: Path, run_id: str) -> Any:
        os.environ.setdefault("WANDB_SILENT", "true")
        try:
            import wandb

            return wandb.init(
                project=spec.project,
                mode=spec.mode,
                group=spec.group or f"{settings.task.name}/{settings.method['name']}",
                id=run_id,
                name=f"{settings.method['name']}-seed{settings.seed}",
                resume="allow",
                reinit="create_new",  # the jobs of a fused sweep are threads of one process, each with its run
                dir=str(folder),
                config={"task": settings.task.name, "method": settings.method, "seed": settings.seed},
                settings=wandb.Settings(init_timeout=FINISH_SECONDS, console="off"),
            )
        except Exception as problem:  # no server, no key, no service: the run itself needs none of them
            self._say(f"tracker: wandb did not start ({_first_line(problem)}); the local records go on without it")
            return None


def _first_line(problem: Exception) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
