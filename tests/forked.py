"""Commands in their own processes, forked from a server that has imported torch, for tests that kill them."""

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

from knot_runner.config.settings.families import FAMILIES
from knot_runner.util.processes import prepared

PRELOADED = sorted({"knot_runner.sweeps.job"}.union(*(family.preload for family in FAMILIES.values())))


def there(out: Path, pattern: str) -> bool:
    """Return whether a file below ``out`` matches ``pattern``."""
    return bool(list(out.glob(pattern)))


def committed(out: Path) -> int:
    """Return the step of the run's last commit, or -1 before the first."""
    for path in out.glob("*/*/*/commit.json"):
        return json.loads(path.read_text())["step"]
    return -1


def reached(out: Path, step: int) -> bool:
    return committed(out) >= step


def server_process() -> int:
    """The id of the process that forks the processes of this test process."""
    return forkserver.ensure_running.__self__._forkserver_pid


def forked_processes() -> set[int]:
    """Processes that the server of this test process has forked and that live: commands, jobs and their workers."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == server_process() and state != "Z":
                found.add(int(stat.parent.name))
    return found


class Forked:
    """``python -m knot_runner ARGUMENTS`` at the head of a process group of its own; its words go to a file. ``until``:
    once it returns true, the group is killed by a thread of its own, which a busy machine slows down no more than the
    run itself. A partial of a function of this module, which is what the process can import in no time."""

    def __init__(self, *arguments: str, until: Callable[[], bool] | None = None) -> None:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self._said = Path(file.name)
        self._others = forked_processes()
        self._process = prepared(PRELOADED).Process(
            target=_run, args=(arguments, str(self._said), dict(os.environ), until)
        )
        self._process.start()

    @property
    def ended(self) -> bool:
        return self._process.exitcode is not None

    @property
    def said(self) -> str:
        """The command's output on both streams."""
        return self._said.read_text(errors="replace")

    def send(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill the command and all its children with ``kill -9``, until none is running."""
        while processes := self.processes:
            for number in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.01)
        self.wait()

    def wait(self, seconds: float = 120) -> int:
        """Wait for the command; return its exit code, or minus the number of the signal that ended it."""
        self._process.join(seconds)
        assert self.ended, f"still running after {seconds} s: {self.said}"
        return self._process.exitcode

    @property
    def processes(self) -> set[int]:
        """The running processes of the command and of its children."""
        return forked_processes() - self._others


def _run(arguments: tuple[str, ...], said: str, environment: dict[str, str], until: Callable | None) -> None:
    """Run the command in the new process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # fork servers ignore it
    os.environ.clear()
    os.environ.update(environment)
    with open(said, "a") as file:  # noqa: PTH123
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    if until is not None:
        threading.Thread(target=_killed, args=(until,), daemon=True).start()
    from knot_runner.cli.main import main

    sys.exit(main(list(arguments)))


def _killed(until: Callable[[], bool]) -> None:
    while not until():
        time.sleep(0.004)
    os.killpg(os.getpid(), signal.SIGKILL)
