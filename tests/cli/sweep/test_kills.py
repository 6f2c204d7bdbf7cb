"""A sweep killed at random moments and relaunched gives the results of one left alone, under every launcher."""

import contextlib
import importlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.sweep.grids import LAUNCHERS, begun, command, faulty, results, small, sweep
from tests.forked import Forked

GRID = ["seed=0,1", "training.rounds=40", "training.local_epochs=4"]


def forked(out, *grid):
    return Forked(*small(out, *grid))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    code, errors = sweep(out, *GRID)
    assert code == 0, errors
    return results(out)


@pytest.mark.parametrize("launcher", ["basic", pytest.param("joblib", marks=pytest.mark.thorough)])
def test_killed_and_relaunched(launcher, undisturbed, tmp_path, monkeypatch):
    """Once here; ``scripts/endure.py`` does it five times each to sweeps of 24 jobs."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[3] / "scripts")
    endure = importlib.import_module("endure")
    begin = forked if launcher == "basic" else endure.Session  # the others have processes of their own
    assert endure.killed_sweep([*GRID, *LAUNCHERS[launcher]], tmp_path, 1, 0.2, random.Random(launcher), begin) == 1
    assert results(tmp_path) == undisturbed
    assert not endure.leftovers(tmp_path)


@pytest.mark.thorough
def test_concurrent_sweeps_run_each_job_once(undisturbed, tmp_path):
    both = [forked(tmp_path, *GRID) for _ in range(2)]
    assert [sweeping.wait() for sweeping in both] == [0, 0], [sweeping.said for sweeping in both]
    assert results(tmp_path) == undisturbed
    assert list(begun(tmp_path).values()) == [1, 1]


@pytest.mark.thorough
def test_submitit_resumes_preempted_job_from_commit(tmp_path):
    """SIGUSR2 is what SLURM sends before it takes a machine away; submitit then hands the job in again."""
    grid = [*faulty("pause"), *LAUNCHERS["submitit_local"]]
    process = subprocess.Popen(command(tmp_path, *grid), stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("*/*/*/commit.json")):
        assert process.poll() is None
        time.sleep(0.05)
    for job in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = job.read_bytes().decode().split("\0")
            if "submitit.core._submit" in words and any(str(tmp_path) in word for word in words):
                os.kill(int(job.parent.name), signal.SIGUSR2)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0 and "1 done, 0 failed (1 resumed from a commit)" in errors
    assert list(begun(tmp_path).values()) == [2]
