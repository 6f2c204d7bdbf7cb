"""A worker process: executes one request at a time and sends progress events and the error, if any."""

from __future__ import annotations

import contextlib
import copy
import functools
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.diverged import DivergedError
from knot_runner.engine.hardware import prepare_device
from knot_runner.engine.loop import Place
from knot_runner.engine.requests import TextRequest
from knot_runner.engine.stages import ProgressCallback, run_one
from knot_runner.util.errors import UserError
from knot_runner.util.files import BusyError
from knot_runner.util.processes import die_with_parent, prepared

#: Seconds between two events of one worker.
EVENTS_EVERY = 0.2
#: What a worker imports before its first step: torch's optimisers import torch._dynamo. Seconds in all.
_PRELOADED = ["knot_runner.engine.worker", "torch._dynamo", "transformers.models.bert.modeling_bert"]


@dataclass(frozen=True)
class Event:
    """How far a request is; for a :data:`ProgressCallback`."""

    title: str
    done: int
    total: int
    text: str


@dataclass(frozen=True)
class Answer:
    """A request has ended: its result is in the store, or there is a ``problem``."""

    problem: BaseException | None


class Worker:
    """A process with ``hardware.threads`` threads, seen from its parent; it dies with that."""

    def __init__(self, place: Place, hardware: HardwareSettings, plugins: list[str]) -> None:
        context = prepared(_PRELOADED)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, place, hardware, plugins), daemon=True)
        self._process.start()
        theirs.close()  # so that a worker's death ends our end

    def run(self, request: TextRequest, on_event: Callable[[Event], None]) -> BaseException | None:
        """Execute ``request``; None, or its error.

        Raises ``EOFError`` or ``ConnectionError`` when the process died.
        """
        self._pipe.send(request)
        while isinstance(message := self._pipe.recv(), Event):
            on_event(message)
        return message.problem

    def kill(self) -> None:
        """Kill the process; :meth:`run` then raises."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and wait until it is gone."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


# --------------------------------------------------------------------------------------------- in the worker process


def serve(pipe: Connection, place: Place, hardware: HardwareSettings, plugins: list[str]) -> None:
    """Life of a worker: carry out requests until the pipe closes or the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and ends its workers itself
    die_with_parent()
    failed, watch = _attempt(functools.partial(_set_up, hardware, plugins)), _events(pipe)
    with contextlib.suppress(EOFError):
        while failed is not None:  # whatever is asked; without its plug-ins a request may not even be readable
            pipe.recv_bytes()
            _send(pipe, failed)
        while True:
            _send(pipe, _attempt(functools.partial(run_one, pipe.recv(), place, watch)))


def _set_up(hardware: HardwareSettings, plugins: list[str]) -> None:
    prepare_device(hardware)
    load_plugins(plugins)


def _events(pipe: Connection) -> ProgressCallback:
    last = 0.0

    def watch(title: str, done: int, total: int, text: str) -> None:
        nonlocal last
        if done == total or time.monotonic() - last > EVENTS_EVERY:
            last = time.monotonic()
            pipe.send(Event(title, done, total, text))

    return watch


def _attempt(call: Callable[[], object]) -> BaseException | None:
    """What ``call`` raised, ``SystemExit`` included, with its traceback as a note where it may be a bug."""
    try:
        call()
    except (UserError, DivergedError, BusyError) as problem:
        return problem
    except BaseException as problem:
        problem.add_note(f"in a worker process: {traceback.format_exc()}")
        return problem
    return None


def _send(pipe: Connection, problem: BaseException | None) -> None:
    """Send the answer; an exception that cannot be made again at the other end goes as its text."""
    try:
        copy.copy(problem)
        pipe.send(Answer(problem))
    except Exception:
        text = "".join(traceback.format_exception_only(problem)).strip()
        pipe.send(Answer(RuntimeError(text)))
