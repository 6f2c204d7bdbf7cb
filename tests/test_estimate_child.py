"""Work in a process apart: it tells, it is measured, and it is gone afterwards with its folder, whatever it did."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from knot_runner.estimate.child import sample, watch
from knot_runner.util.errors import UserError
from knot_runner.util.memory import free_memory


def busy_work(tell, folder, megabytes, seconds):
    """Holds memory in a child of its own and keeps a core busy."""
    (folder / "run").mkdir()
    (folder / "run" / "file").write_bytes(b"x" * 100)
    code = f"import time; held = bytearray(b'x') * ({megabytes} << 20); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-S", "-c", code])
    tell("where", str(folder), child.pid)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        tell("step", "work", 1, 2)
        sum(range(20_000))


def wrong_work(tell, folder, kind):
    tell("ready")
    if kind == "user":
        raise UserError("data.csv: is not there")
    if kind == "bug":
        raise ValueError("a\nlong " + "story " * 99)
    os._exit(7)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc")
def test_memory_is_that_of_all_its_processes_and_nothing_stays():
    held = lambda seen: seen.memory is not None and seen.memory > 80 << 20  # noqa: E731
    seen = watch(busy_work, (80, 60), 30, held, lambda folder: (folder / "run" / "file").stat().st_size)
    assert 80 << 20 < seen.memory < 400 << 20 and seen.disk == 100
    ((_, _, folder, child),) = seen.starting_with("where")
    assert not Path(folder).exists() and not seen.ended
    assert sample(child).memory == 0  # ended, too


@pytest.mark.thorough
def test_time_that_is_up_ends_it():
    seen = watch(busy_work, (1, 60), 1.5, lambda seen: False)
    assert not seen.ended and seen.problem is None and seen.broken is None


def test_work_that_ends_by_itself_says_so():
    seen = watch(busy_work, (1, 0.3), 30, lambda seen: False)
    assert seen.ended and seen.starting_with("step", "work") and seen.busy(seen.began) >= 1


@pytest.mark.parametrize(("kind", "told"), [("user", "data.csv: is not there"), ("bug", "ValueError: a long story")])
def test_what_goes_wrong_is_one_line(kind, told):
    seen = watch(wrong_work, (kind,), 30, lambda seen: False)
    text = seen.problem if kind == "user" else seen.broken
    assert text.startswith(told) and "\n" not in text and len(text) <= 200 and not seen.ended


def test_a_process_that_dies_is_said():
    seen = watch(wrong_work, ("exit",), 30, lambda seen: False)
    assert seen.broken == "its process ended with exit code 7"


def test_free_memory_is_less_than_there_is():
    free = free_memory()
    assert free is None or 0 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
