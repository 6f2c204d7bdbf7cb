"""CPU time and memory of a process and all its descendants, from /proc (Linux)."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """``pid`` and the processes below it that are alive."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            fields = _stat(int(folder.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of the tree so far, all threads; ended processes count with their parent."""
    ticks = sum(sum(map(int, fields[11:15])) for fields in map(_stat, descendants(pid)) if fields)
    return ticks / os.sysconf("SC_CLK_TCK")


def pss(pid: int) -> float:
    """Proportional set size of the tree in MB (10^6 bytes): shared pages are counted once."""
    return sum(memory(pid))


def memory(pid: int) -> tuple[float, float]:
    """(what belongs to the tree's processes, pages of files that they map), in MB, each page counted once."""
    own = files = 0
    for process in descendants(pid):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has just ended
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
        own += sizes["Pss_Anon"] + sizes["Pss_Shmem"]
        files += sizes["Pss_File"]
    return own * 1024 / 1e6, files * 1024 / 1e6


class PeakPss:
    """Context manager that samples :func:`pss` of ``pid``; the largest value is ``peak``."""

    def __init__(self, pid: int, every: float = 0.5) -> None:
        self.peak = 0.0
        self._pid = pid
        self._every = every
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakPss:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(self._every):
            self.peak = max(self.peak, pss(self._pid))


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command's name (state, parent, ...); empty where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Run ``work``; return its wall and CPU seconds, including those of child processes."""
    began = time.perf_counter()
    busy = cpu_seconds(os.getpid())
    work()
    return time.perf_counter() - began, cpu_seconds(os.getpid()) - busy


def spread(values: list[float], form: str) -> str:
    """Return the median (least-most) of the values, each in the format ``form``."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"
