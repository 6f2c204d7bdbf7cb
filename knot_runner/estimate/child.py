"""Runs work in a child process to measure its cost: the child reports its progress, its memory is measured from
outside, and it is ended when enough is known. It leaves nothing behind, however this process ends."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.composing.job import ComposedJob
from knot_runner.config.settings import TrackerSettings
from knot_runner.util.errors import UserError
from knot_runner.util.memory import read_kilobytes
from knot_runner.util.processes import begin_child, redirect_output, start_process

if TYPE_CHECKING:
    from knot_runner.pipelines.context import RunContext

#: (time, *message); times are of ``time.monotonic``, which all processes of a machine share
ChildMessage = tuple[Any, ...]
#: Called by the work to report a message.
Tell = Callable[..., None]
#: Seconds between two samples of the processes.
POLL_SECONDS = 0.2
#: Maximum characters kept of an exception.
MAX_MESSAGE = 200
PROC = Path("/proc")


@dataclass(frozen=True)
class Sample:
    """Usage at the time ``at`` (``time.monotonic``): bytes of memory (shared memory counts once) and CPU seconds so
    far."""

    at: float
    memory: int
    cpu: float


@dataclass
class Seen:
    """Observations of a child's work. ``ended``: whether it finished by itself; ``problem``: a user error, in one line;
    ``broken``: any other error; ``disk``: bytes that the caller found in its folder."""

    began: float
    messages: list[ChildMessage] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    ended: bool = False
    problem: str | None = None
    broken: str | None = None
    disk: int | None = None

    @property
    def memory(self) -> int | None:
        """Peak bytes of all its processes together; None if the system does not report them."""
        return max((one.memory for one in self.samples), default=0) or None

    def busy(self, since: float) -> float:
        """Average number of cores in use from time ``since`` on; at least one."""
        window = [one for one in self.samples if one.at >= since]
        if len(window) < 2 or window[-1].at <= window[0].at:
            return 1.0
        return max(1.0, (window[-1].cpu - window[0].cpu) / (window[-1].at - window[0].at))

    def starting_with(self, *what: Any) -> list[ChildMessage]:
        """All messages starting with ``what``."""
        return [message for message in self.messages if message[1 : 1 + len(what)] == what]


def watch(
    work: Callable[..., None],
    arguments: tuple[Any, ...],
    seconds: float,
    enough: Callable[[Seen], bool] = lambda seen: False,
    space: Callable[[Path], int | None] = lambda folder: None,
) -> Seen:
    """Run ``work(tell, an empty folder, *arguments)`` in a child process until it ends, ``enough`` returns true, or
    ``seconds`` have passed. ``space`` measures the folder before it is deleted."""
    with tempfile.TemporaryDirectory(prefix="knot-runner-check-", ignore_cleanup_errors=True) as folder:
        seen = Seen(time.monotonic())
        # spawned, so that it shares no memory with this process
        process, ours = start_process(multiprocessing.get_context("spawn"), _serve, work, arguments, folder)
        try:
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
        except EOFError:  # the child has ended
            return
        if message[1] == "ended":
            seen.ended, seen.problem, seen.broken = message[2:]
            return
        seen.messages.append(message)


def _end(process: BaseProcess) -> None:
    """End the child and every process it has started: all are in one process group."""
    for end in (lambda: os.killpg(process.pid, signal.SIGKILL), process.kill):
        with contextlib.suppress(OSError):
            end()
    process.join()


# ------------------------------------------------------------------------------------------------- in that process


def run_apart(step: str, job: ComposedJob, folder: Path, report: Callable[..., None], **services: Any) -> Any:
    """Call ``run`` or ``inspect`` (the ``step``) of the pipeline of ``job``, with ``folder`` as ``paths.out``."""
    from knot_runner.pipelines.runs.single_run import pipeline_function

    return pipeline_function(step, job.method)(context_apart(job, folder, report, **services))


def context_apart(job: ComposedJob, folder: Path, report: Callable[..., None], **services: Any) -> RunContext:
    """The context for the pipeline of ``job``, with ``folder`` as ``paths.out``."""
    from knot_runner.pipelines.context import RunContext, Services

    paths = dataclasses.replace(job.settings.paths, out=str(folder))
    own = dataclasses.replace(job.settings, paths=paths, tracker=TrackerSettings("none"))
    means = Services(**services)
    return RunContext(own, job.method, folder / "run", "", "apart", report, lambda text: None, means)


def _serve(connection: Connection, work: Callable[..., None], arguments: tuple[Any, ...], folder: str) -> None:
    os.setsid()
    begin_child(cleanup=functools.partial(_leave_nothing, folder))
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 (it is no file of anybody's)
        redirect_output(nowhere)

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


def _leave_nothing(folder: str) -> None:
    """Delete ``folder``, which the parent no longer does, and end this process and all that it has started."""
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


# ----------------------------------------------------------------------- what it uses, as Linux tells it in /proc


def sample(pid: int) -> Sample:
    """Usage of process ``pid`` and all its descendants; zeros if the system does not report it."""
    stats = _stats()
    family = [pid] if pid in stats else []
    for member in family:  # the list grows during the loop
        family += [child for child, (parent, _) in stats.items() if parent == member]
    memory = sum(read_kilobytes(PROC / str(one) / "smaps_rollup", "Pss:") or 0 for one in family)
    return Sample(time.monotonic(), memory, sum(stats[one][1] for one in family) / os.sysconf("SC_CLK_TCK"))


def _stats() -> dict[int, tuple[int, int]]:
    """Process id -> (parent's id, clock ticks)."""
    found = {}
    for folder in PROC.glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended meanwhile
            continue
        fields = text.rpartition(")")[2].split()  # names may contain blanks and brackets
        found[int(folder.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    return found
