"""What launches the jobs of a sweep, part by part: what is waited for, what is stopped, what is said at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
from types import SimpleNamespace

import pytest

from knot_runner.composing.commands import compose_all
from knot_runner.sweeps import job, launchers, task
from knot_runner.sweeps.plan import PATIENT, STOP
from knot_runner.sweeps.state import read_failure, write_failure
from knot_runner.util.processes import begin_child
from tests.cli.sweep.grids import LAUNCHERS, begun, composed, planned, results, sweep
from tests.tiny import TINY_IMAGES


class Launched:
    """A launcher whose jobs end as they are told to, one list of states a call."""

    def __init__(self, *states):
        self.states, self.calls = list(states), []

    def launch(self, job_overrides, initial_job_idx):
        self.calls.append(([name for (name,) in job_overrides], initial_job_idx))
        states = self.states.pop(0) if self.states else ["done"] * len(job_overrides)
        pairs = zip(job_overrides, states, strict=True)
        return [SimpleNamespace(return_value=task.Outcome(name, state)) for (name,), state in pairs]


@pytest.fixture
def hydra():
    return SimpleNamespace(sweeper=SimpleNamespace(max_batch_size=None))


def test_launch_waits_for_busy_jobs_last(tmp_path, monkeypatch, hydra):
    jobs = composed(tmp_path, "seed=0,1,2")
    plan, names = planned(jobs), [job.run_id for job in jobs]
    launched = Launched(["busy", "done", "busy"], ["done", "failed"])
    monkeypatch.setattr(launchers, "_launcher", lambda *_: launched)
    seen = []
    launch = launched.launch
    launched.launch = lambda jobs, initial_job_idx: seen.append(plan.has(PATIENT)) or launch(jobs, initial_job_idx)
    outcomes = launchers.launch(plan, jobs, hydra)
    assert launched.calls == [(names, 0), ([names[0], names[2]], 3)] and seen == [False, True]
    assert [(one.run_id, one.state) for one in outcomes] == [
        (names[1], "done"), (names[0], "done"), (names[2], "failed")
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "size", "calls"), [
    ("Launched", 2, [(2, 0), (2, 2), (1, 4)]),
    ("LocalLauncher", None, [(3, 0), (2, 3)]), ("SlurmLauncher", None, [(5, 0)])
])  # fmt: skip
def test_launch_numbers_batches_of_the_right_size(name, size, calls, tmp_path, monkeypatch, hydra):
    jobs, launched = composed(tmp_path, "seed=range(0,5)"), type(name, (Launched,), {})()
    monkeypatch.setattr(launchers, "_launcher", lambda *_: launched)
    monkeypatch.setattr(launchers, "cores", lambda: 3)
    hydra.sweeper.max_batch_size = size
    assert len(launchers.launch(planned(jobs), jobs, hydra)) == 5
    assert [(len(names), first) for names, first in launched.calls] == calls


def test_processes_of_local_launchers_end_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "")
    made = {}
    for name in ("joblib", "submitit_local", "submitit_slurm"):
        jobs, (command,) = compose_all(
            [*TINY_IMAGES, f"paths.output_dir={tmp_path}", "seed=0,1", f"hydra/launcher={name}"]
        )
        made[name] = launchers._launcher(planned(jobs), command.hydra)
    assert (made["joblib"].joblib["initializer"], made["joblib"].joblib["initargs"]) == (begin_child, (os.getpid(),))
    assert made["submitit_local"].task_function.keywords["parent"] == os.getpid()
    assert "parent" not in made["submitit_slurm"].task_function.keywords


def test_launch_propagates_return_value_error(tmp_path, monkeypatch, hydra):
    class Broken:
        @property
        def return_value(self):
            raise RuntimeError("the queue is gone")

    launched = SimpleNamespace(launch=lambda jobs, initial_job_idx: [Broken() for _ in jobs])
    monkeypatch.setattr(launchers, "_launcher", lambda *_: launched)
    jobs = composed(tmp_path, "seed=0")
    with pytest.raises(RuntimeError, match="the queue is gone"):
        launchers.launch(planned(jobs), jobs, hydra)


def told(monkeypatch, *messages, exitcode):
    pipe, theirs = multiprocessing.Pipe()
    for message in messages:
        theirs.send(message)
    theirs.close()
    process = SimpleNamespace(join=lambda: None, exitcode=exitcode)
    monkeypatch.setattr(task, "start_process", lambda *_: (process, pipe))


def test_run_in_process_skips_jobs_of_stopped_plans(tmp_path, monkeypatch):
    (one,) = composed(tmp_path)
    monkeypatch.setattr(task, "start_process", lambda *_: pytest.fail("a process was started"))
    plan = planned([one])
    plan.mark(STOP)
    assert task.run_in_process(one, plan).state == "skipped"


@pytest.mark.parametrize("fail_fast", [True, False])
def test_run_in_process_stops_plan_under_fail_fast(tmp_path, monkeypatch, fail_fast):
    (one,) = composed(tmp_path, f"fail_fast={fail_fast}")
    plan = planned([one])
    told(monkeypatch, exitcode=9)
    found = task.run_in_process(one, plan)
    assert found.state == "failed" and plan.has(STOP) == fail_fast
    failure = read_failure(one.folder)
    assert (failure.kind, failure.attempts) == ("exit", 1) and "exit code 9" in failure.cause


@pytest.mark.parametrize("state", ["failed", "busy", "skipped"])
def test_run_in_process_trusts_reported_job_state(tmp_path, monkeypatch, state):
    """And what it put on record itself is not counted twice."""
    (one,) = composed(tmp_path)
    told(monkeypatch, state, exitcode=9)
    write_failure(one.folder, "error", "its own")
    assert task.run_in_process(one, planned([one])).state == state
    assert read_failure(one.folder).attempts == 1


def test_run_in_process_records_process_start_failure(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no more processes")

    (one,) = composed(tmp_path)
    monkeypatch.setattr(task, "start_process", refuse)
    assert task.run_in_process(one, planned([one])).state == "failed"
    assert "could not be started: no more processes" in read_failure(one.folder).cause


def on_devices(out, devices):
    return composed(out, f"hardware.devices=[{devices}]")[0].settings


def test_leased_returns_device_with_fewest_jobs(tmp_path):
    two = on_devices(tmp_path, "cuda:0,cuda:1")
    with contextlib.ExitStack() as first:
        with contextlib.ExitStack() as others:
            taken = [(first if turn == 0 else others).enter_context(job.leased(two)) for turn in range(3)]
            assert taken == ["cuda:0", "cuda:1", "cuda:0"]
        with job.leased(two) as device, job.leased(two) as next_one:
            assert (device, next_one) == ("cuda:1", "cuda:0")


def test_leased_returns_run_device_without_device_list(tmp_path):
    with job.leased(on_devices(tmp_path, "")) as first, job.leased(on_devices(tmp_path, "")) as second:
        assert first == second == "cpu"
    assert not (tmp_path / ".locks").exists()


#: Of launchers that are not ours: the module that they need.
NEEDS = {"joblib": "hydra_plugins.hydra_joblib_launcher", "submitit_local": "hydra_plugins.hydra_submitit_launcher"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", NEEDS)
def test_launcher_conforms(name, tmp_path):
    """A job with invalid settings affects no other, finished jobs do not run again, and results equal ``basic``'s."""
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{name} needs {NEEDS[name]}")
    words, sizes = LAUNCHERS[name], "training.batch_size=8,4"
    assert sweep(tmp_path / "basic", "training.rounds=1", sizes)[0] == 0
    code, said = sweep(tmp_path / "own", "training.rounds=1", "training.batch_size=8,99999,4", *words)
    assert code == 2 and len(list(tmp_path.glob("own/*/*/*/failed.json"))) == 1, said
    starts = begun(tmp_path / "own")
    assert results(tmp_path / "own") == results(tmp_path / "basic")
    assert sweep(tmp_path / "own", "training.rounds=1", sizes, *words)[0] == 0 and begun(tmp_path / "own") == starts
