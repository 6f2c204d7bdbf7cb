"""How sweeps endure kills: a grid is killed -9 at random moments, relaunched until it is done, and compared with one
left alone. ``python scripts/endure.py --jobs 24 --kills 5 --times 10 --launcher basic joblib submitit_local fused``

``python scripts/endure.py --faults [--rounds 3]``: every call of a tiny federated run that changes a file fails once,
in each of four ways (death before it, death in the midst of a write, a full disk, a broken one).

A relaunched command must give the same results, weights byte for byte and rounds number for number, begin no finished
job again and leave nothing half-written. Everything is written below a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.cli import test_failing_disk as failing
from tests.cli.sweep.grids import LAUNCHERS, begun, command, results
from tests.disk import WAYS, Disk

#: Rounds of a job, so that kills fall into jobs and not only between them.
LENGTH = ["training.rounds=20", "training.local_epochs=5"]


def main() -> None:
    """Parse, measure, print one line per launcher."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--launcher", nargs="+", default=list(LAUNCHERS), choices=list(LAUNCHERS))
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--faults", action="store_true", help="fail every call to the disk instead")
    parser.add_argument("--rounds", type=int, default=3, help="of the run whose calls fail")
    options = parser.parse_args()
    if options.faults:
        fail_every_call(options.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        grid = [*LENGTH, f"seed={','.join(map(str, range(options.jobs)))}"]
        undisturbed = Path(folder) / "undisturbed"
        began = time.monotonic()
        subprocess.run(command(undisturbed, *grid), check=True, capture_output=True)
        wanted = results(undisturbed)
        alone = time.monotonic() - began
        print(f"undisturbed (basic): {len(wanted)} of {options.jobs} jobs in {alone:.1f} s", flush=True)
        for launcher in options.launcher:
            draw = random.Random(options.seed)
            equal = 0
            started = []
            for turn in range(options.times):
                out = Path(folder) / f"{launcher}-{turn}"
                killed_sweep([*grid, *LAUNCHERS[launcher]], out, options.kills, alone, draw)
                same = results(out) == wanted and not leftovers(out)
                equal += same
                started.append(sum(begun(out).values()))
                print(f"{launcher} {turn}: {'equal' if same else 'NOT EQUAL'}, {started[-1]} starts", flush=True)
            print(
                f"{launcher}: {equal} of {options.times} equal; starts a sweep {min(started)} to {max(started)}",
                flush=True,
            )


def fail_every_call(rounds: int) -> None:
    """Print, per way of failing, how many of all calls left a run that the same command made as if nothing had been."""
    overrides = (f"training.rounds={rounds}",)
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(Path(folder) / "undisturbed")
        failing.once(disk.root, overrides, disk)
        wanted = failing.records(disk.root)
        print(f"{rounds} rounds: {len(disk.calls)} calls", flush=True)
        for way in WAYS:
            equal = sum(
                endured(Path(folder) / f"{way}{at}", overrides, at, way, wanted) for at in range(len(disk.calls))
            )
            print(f"{way}: {equal} of {len(disk.calls)} equal", flush=True)


def endured(out: Path, overrides: tuple[str, ...], at: int, way: str, wanted: object) -> bool:
    """Whether the run whose call ``at`` failed comes out as it should, and leaves nothing half-written."""
    out.mkdir()
    failing.once(out, overrides, Disk(out, at, way))
    problem = failing.once(out, overrides)
    same = problem is None and failing.records(out) == wanted and not list(out.rglob("*.tmp"))
    if not same:
        print(f"{way} at call {at}: NOT EQUAL ({problem})", flush=True)
    shutil.rmtree(out)
    return same


class Session:
    """The sweep as the user's command, at the head of a session of its own."""

    def __init__(self, out: Path, *grid: str) -> None:
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command(out, *grid), start_new_session=True, stdout=quiet, stderr=quiet)

    @property
    def ended(self) -> bool:
        """Whether it has, by itself or not."""
        return self._process.poll() is not None

    def wait(self) -> int:
        """Its exit code."""
        return self._process.wait()

    def kill(self) -> None:
        """``kill -9`` of the command alone. All that it has begun must end within five seconds."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            for _ in range(100):
                os.killpg(self._process.pid, 0)
                time.sleep(0.05)
            raise AssertionError("a process outlives the command")


def killed_sweep(
    grid: list[str], out: Path, kills: int, alone: float, draw: random.Random, begin: Callable[..., Any] = Session
) -> int:
    """Kill the sweep ``kills`` times, each at a random moment after it has begun a job, then let it finish; how often
    it was killed before its end. ``alone``: seconds that it takes undisturbed; ``begin``: as :class:`Session`."""
    killed = 0
    for _ in range(kills):
        before = sum(begun(out).values())
        sweep = begin(out, *grid)
        while not sweep.ended and sum(begun(out).values()) == before:
            time.sleep(0.01)
        moment = time.monotonic() + draw.random() * alone / kills
        while not sweep.ended and time.monotonic() < moment:
            time.sleep(0.01)
        if sweep.ended:
            break  # it was done before
        sweep.kill()
        killed += 1
    code = begin(out, *grid).wait()
    assert code == 0, f"the sweep that was to finish ended with exit code {code}"
    return killed


def leftovers(out: Path) -> list[Path]:
    """What a whole sweep does not leave."""
    return [path for pattern in ("*.tmp", "failed.json") for path in out.glob(f"*/*/*/{pattern}")]


if __name__ == "__main__":
    main()
