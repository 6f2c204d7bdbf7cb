"""``hydra/launcher=ray``: the jobs of a sweep as tasks of Ray; here a fake of its transport, or Ray itself."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import pytest

from knot_runner.sweeps import launchers, plan
from knot_runner.sweeps.plan import STOP
from knot_runner.sweeps.state import read_failure
from knot_runner.sweeps.task import Outcome
from knot_runner.util import processes
from knot_runner.util.config_yaml import read_config
from tests.cli.sweep.grids import begun, composed, faulty, planned, results, small, sweep, sweep_apart
from tests.fake_ray import faked
from tests.golden.messages import refused

RAY = "hydra/launcher=ray"
GRID = ["seed=0,1", "training.rounds=1"]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")


def launched(ray, out, *overrides):
    jobs = composed(out, *overrides)
    plan = planned(jobs)
    return plan, jobs, launchers.run_on_ray(ray, jobs, plan, {"num_cpus": 1})


def test_run_on_ray_restarts_job_after_worker_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "run_in_process", lambda job, plan: Outcome(job.run_id, "done"))
    ray = faked(monkeypatch, lost=[1])
    _, jobs, found = launched(ray, tmp_path, "seed=0,1")
    assert {name: one.state for name, one in found.items()} == {job.run_id: "done" for job in jobs}
    assert len(ray.calls) == 3


@pytest.mark.parametrize("fail_fast", [False, True])
def test_run_on_ray_fails_job_losing_two_workers(fail_fast, tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "run_in_process", lambda job, plan: Outcome(job.run_id, "done"))
    plan, jobs, found = launched(faked(monkeypatch, lost=[1, 2]), tmp_path, "seed=0,1", f"fail_fast={fail_fast}")
    assert [found[job.run_id].state for job in jobs] == ["done", "failed"]
    failure = read_failure(jobs[1].folder)
    assert failure.kind == "killed" and failure.cause.startswith("hydra/launcher=ray: the worker was lost (The worker")
    assert plan.has(STOP) == fail_fast


def test_run_on_ray_fails_job_on_unreadable_plan(tmp_path, monkeypatch):
    """As on a cluster whose machines share no volume: the job fails at once, and no second worker is tried."""
    ray = faked(monkeypatch)
    monkeypatch.setattr(plan, "recorded_config", lambda folder: read_config(tmp_path / "gone"))
    _, jobs, found = launched(ray, tmp_path)
    assert [one.state for one in found.values()] == ["failed"] and len(ray.calls) == 1
    cause = "hydra/launcher=ray: a worker could not start the job: file not found"
    assert read_failure(jobs[0].folder).cause == cause


def test_run_on_worker_runs_in_command_folder(tmp_path, monkeypatch):
    """Relative paths, of ``paths.output_dir`` and of plug-ins, are of that."""
    (job,) = composed(tmp_path)
    seen = []
    monkeypatch.setattr(launchers, "run_in_process", lambda job, plan: seen.append(str(Path.cwd())))
    monkeypatch.chdir(tmp_path.parent)
    launchers.run_on_worker(job.run_id, planned([job]), str(tmp_path))
    assert seen == [str(tmp_path)]


@pytest.mark.parametrize("words", ["hydra.launcher.address=nowhere:1", "hardware.engine=ray"])
def test_ray_launcher_rejects_unusable_settings(words, tmp_path, monkeypatch, capsys):
    ray = faked(monkeypatch)
    refused(capsys, *small(tmp_path, *GRID, RAY, words))
    assert not ray.calls and not begun(tmp_path)


def test_ray_is_an_extra(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(capsys, "-m", "seed=0,1", RAY)


@needs_ray
def test_ray_launcher_matches_basic_launcher_results(tmp_path):
    """A job that is killed ends no other; the same command goes on; results are those of the basic launcher."""
    grid = faulty("none", "kill", "none")
    code, said = sweep_apart(tmp_path / "ray", *grid, RAY)
    assert code == 1 and "2 done, 1 failed" in said and "SIGKILL" in said and "Traceback" not in said, said
    assert sweep(tmp_path / "ray", *grid, NO_FAULTS="1")[0] == 0
    assert sweep(tmp_path / "basic", *grid, NO_FAULTS="1")[0] == 0
    assert results(tmp_path / "ray") == results(tmp_path / "basic")


#: A process that a signal ends, and its descendants, a child and a grandchild.
SIGNALED = """
import subprocess, sys
from tests import fake_ray
from knot_runner.util.processes import ended_by_signals
from knot_runner.util.ray_cluster import connected
sys.modules["ray"] = fake_ray.FakeRay()
with ended_by_signals():
    connected("x")
    subprocess.Popen(["sh", "-c", "sleep 97.25 & echo $!; wait"]).wait()
"""


def test_signal_ends_a_command_and_its_cluster():
    """Ray's own handler of SIGTERM exits with 15, and its agents outlive the command for a minute."""
    command = subprocess.Popen([sys.executable, "-c", SIGNALED], stdout=subprocess.PIPE, text=True)
    grandchild = int(command.stdout.readline())
    command.terminate()
    assert command.wait(10) == 143
    for _ in range(100):  # the system ends a killed process within a moment
        time.sleep(0.05 * processes.is_running(grandchild))
    assert not processes.is_running(grandchild)
