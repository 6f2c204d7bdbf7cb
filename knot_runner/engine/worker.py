"""A worker process for stages of text models: sends progress events and the error of a request, if any."""

from __future__ import annotations

import copy
import functools
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.hardware import prepare_device
from knot_runner.engine.loop import Place, ProgressCallback, run_one
from knot_runner.engine.requests import StageRequest
from knot_runner.util.errors import DivergedError, UserError
from knot_runner.util.files import BusyError
from knot_runner.util.workers import Handler, Send, WorkerProcess

#: Seconds between two events of one worker.
EVENTS_EVERY = 0.2
#: Slow imports of a worker: torch's optimisers import torch._dynamo.
_PRELOADED = ["knot_runner.engine.worker", "torch._dynamo"]
#: The slowest, which models of images do without.
_OF_TEXTS = ["transformers.models.bert.modeling_bert"]


@dataclass(frozen=True)
class Event:
    """Progress of a request; for a :data:`ProgressCallback`."""

    title: str
    done: int
    total: int
    text: str


class Worker(WorkerProcess):
    """A process with ``hardware.threads`` threads that executes one request at a time."""

    def __init__(self, place: Place, hardware: HardwareSettings, plugins: list[str]) -> None:
        of_texts = _OF_TEXTS if "tokenizers" in sys.modules else []  # texts have been encoded by then
        super().__init__([*_PRELOADED, *of_texts], prepare_stages, place, hardware, plugins)


def prepare_stages(send: Send, place: Place, hardware: HardwareSettings, plugins: list[str]) -> Handler:
    """In the worker: device, plug-ins, and the function that executes a request and returns its error or None."""
    prepare_device(hardware)
    load_plugins(plugins)
    last = 0.0

    def watch(title: str, done: int, total: int, text: str) -> None:
        nonlocal last
        if done == total or time.monotonic() - last > EVENTS_EVERY:
            last = time.monotonic()
            send(Event(title, done, total, text))

    return functools.partial(_execute, place, watch)


def _execute(place: Place, watch: ProgressCallback, request: StageRequest) -> BaseException | None:
    """The request's error, ``SystemExit`` included, with its traceback as a note where it may be a bug."""
    try:
        run_one(request, place, watch)
    except (UserError, DivergedError, BusyError) as error:
        return error
    except BaseException as error:
        error.add_note(f"in a worker process: {traceback.format_exc()}")
        return _sendable(error)
    return None


def _sendable(error: BaseException) -> BaseException:
    """``error``, or its text where it does not pickle."""
    try:
        ForkingPickler.dumps(copy.copy(error))  # unpickling makes an exception as copying does
    except Exception:
        return RuntimeError("".join(traceback.format_exception_only(error)).strip())
    return error
