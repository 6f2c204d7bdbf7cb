"""What a process and all it has started use, as Linux tells it in ``/proc``; elsewhere nothing is known."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Sample:
    """At a moment of ``time.monotonic``: bytes (what processes share counts once) and CPU seconds so far."""

    at: float
    memory: int
    cpu: float


def sample(pid: int) -> Sample:
    """Of process ``pid`` and all its descendants; zeros where the system does not say."""
    tick = os.sysconf("SC_CLK_TCK")
    stats = _stats()
    family = _family(pid, stats)
    return Sample(
        time.monotonic(), sum(_proportional(one) for one in family), sum(stats[one][1] for one in family) / tick
    )


def free_memory() -> int | None:
    """Bytes that new processes may use; None where the system does not say."""
    return _field(PROC / "meminfo", "MemAvailable:")


def _stats() -> dict[int, tuple[int, int]]:
    """Process -> (its parent, its clock ticks)."""
    found = {}
    for folder in PROC.glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended meanwhile
            continue
        fields = text.rpartition(")")[2].split()  # names may hold blanks and brackets
        found[int(folder.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    return found


def _family(pid: int, stats: dict[int, tuple[int, int]]) -> list[int]:
    members = [pid] if pid in stats else []
    for member in members:  # grows while it is gone through
        members += [child for child, (parent, _) in stats.items() if parent == member]
    return members


def _proportional(pid: int) -> int:
    """The process's share (PSS) of what it uses."""
    return _field(PROC / str(pid) / "smaps_rollup", "Pss:") or 0


def _field(path: Path, name: str) -> int | None:
    try:
        line = next(line for line in path.read_text(encoding="ascii").splitlines() if line.startswith(name))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1024
