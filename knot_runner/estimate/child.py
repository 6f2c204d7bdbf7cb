"""Work in a process of its own, to see what it takes: it tells how far it is, its memory is measured from outside, and
it is ended when enough is known. Nothing of it stays, however this process ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from knot_runner.estimate.processes import Sample, sample
from knot_runner.util.errors import UserError

#: (moment, *what was told); moments are of ``time.monotonic``, which all processes of a machine share
ChildMessage = tuple[Any, ...]
#: Called by the work with what it has to tell.
Tell = Callable[..., None]
#: (tell, an empty folder, *arguments) -> None
TimedWork = Callable[..., None]
#: Seconds between two looks at the processes.
POLL_SECONDS = 0.2
#: Letters of an exception that are kept.
MAX_MESSAGE = 200


@dataclass
class Seen:
    """What was seen of a piece of work. ``ended``: by itself; ``problem``: a user's mistake, in one line; ``broken``:
    what else went wrong; ``disk``: what the caller found in its folder."""

    began: float
    messages: list[ChildMessage] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    ended: bool = False
    problem: str | None = None
    broken: str | None = None
    disk: int | None = None

    @property
    def memory(self) -> int | None:
        """Most bytes of all its processes together; None where the system does not say."""
        return max((one.memory for one in self.samples), default=0) or None

    def busy(self, since: float) -> float:
        """Cores in use on average from the moment ``since`` on; at least one."""
        window = [one for one in self.samples if one.at >= since]
        if len(window) < 2 or window[-1].at <= window[0].at:
            return 1.0
        return max(1.0, (window[-1].cpu - window[0].cpu) / (window[-1].at - window[0].at))

    def told(self, *what: Any) -> list[ChildMessage]:
        """All messages that begin with ``what``."""
        return [message for message in self.messages if message[1 : 1 + len(what)] == what]


def watch(
    work: TimedWork,
    arguments: tuple[Any, ...],
    seconds: float,
    enough: Callable[[Seen], bool],
    space: Callable[[Path], int | None] = lambda folder: None,
) -> Seen:
    """Have ``work`` done in a process of its own until it is through, ``enough`` is known, or ``seconds`` have passed.

    ``space``: looks at the work's folder before it is deleted.
    """
    with tempfile.TemporaryDirectory(prefix="knot-runner-check-", ignore_cleanup_errors=True) as folder:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(work, arguments, folder, theirs))
        seen = Seen(time.monotonic())
        try:
            process.start()
            theirs.close()
            _look(seen, ours, process.pid, seconds, enough)
        finally:
            _end(process)
            ours.close()
        if not (seen.ended or seen.problem or seen.broken) and process.exitcode not in (0, -signal.SIGKILL):
            seen.broken = f"its process ended with exit code {process.exitcode}"
        seen.disk = space(Path(folder))
    return seen


def _look(seen: Seen, ours: Connection, pid: int, seconds: float, enough: Callable[[Seen], bool]) -> None:
    last = 0.0
    while time.monotonic() - seen.began < seconds and not enough(seen):
        if time.monotonic() - last >= POLL_SECONDS:
            seen.samples.append(sample(pid))
            last = time.monotonic()
        if not ours.poll(POLL_SECONDS / 4):
            continue
        try:
            message = ours.recv()
        except EOFError:  # it is gone
            return
        if message[1] == "ended":
            seen.ended, seen.problem, seen.broken = message[2:]
            return
        seen.messages.append(message)


def _end(process: multiprocessing.process.BaseProcess) -> None:
    """End the work and every process it has started: all are in a group of their own."""
    if process.pid is None:
        return
    for end in (lambda: os.killpg(process.pid, signal.SIGKILL), process.kill):
        with contextlib.suppress(OSError):
            end()
    process.join()


# ------------------------------------------------------------------------------------------------- in that process


def _serve(work: TimedWork, arguments: tuple[Any, ...], folder: str, connection: Connection) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever watches decides
    _leave_with_parent(folder)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 (it is no file of anybody's)
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)

    def tell(*what: Any) -> None:
        connection.send((time.monotonic(), *what))

    try:
        work(tell, Path(folder), *arguments)
        tell("ended", True, None, None)
    except UserError as problem:
        tell("ended", False, str(problem), None)
    except Exception as problem:
        text = " ".join(f"{type(problem).__name__}: {problem}".split())
        tell("ended", False, None, text[:MAX_MESSAGE])


def _leave_with_parent(folder: str) -> None:
    """End this process, and take its folder along, when its parent has died, however it died."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            multiprocessing.connection.wait([parent.sentinel])
            shutil.rmtree(folder, ignore_errors=True)
            os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
