"""A fused sweep by hand: who is dealt which device, what is begun again, who dies with whom."""

import fcntl
import io
import json
import signal
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from knot_runner.records import lock_of
from knot_runner.report.records.run_summary import summary_table
from knot_runner.sweeps import driver, job, launchers, task
from knot_runner.util.files import locked
from tests.forked import Forked
from tests.sweep.grids import LAUNCHERS, begun, faulty, results, small, sweep
from tests.sweep.planned import composed, planned
from tests.tiny import TINY


def render(table):
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return out.getvalue()


def test_a_fused_sweep_deals_its_jobs_over_the_devices(tmp_path):
    jobs = composed(tmp_path, "seed=range(0,5)", "hardware.devices=[cuda:0,cuda:1]")
    works = [driver._on_its_device(one, turn) for turn, one in enumerate(jobs)]
    dealt = [work.settings.hardware.device for work in works]
    assert dealt == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    (plain,) = composed(tmp_path)
    assert driver._on_its_device(plain, 1) is plain


def test_as_many_jobs_at_once_as_suit_the_hardware(tmp_path, monkeypatch):
    def settings(**hardware):
        one = composed(tmp_path)[0].settings
        for name, value in hardware.items():
            setattr(one.hardware, name, value)
        return one

    assert driver.window(settings(device="cpu", workers=3)) == 5
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(7)))
    assert driver.window(settings(device="cpu", workers=0)) == 9
    monkeypatch.setattr(driver, "choose_device", lambda name: SimpleNamespace(type="cuda"))
    assert driver.window(settings(device="cuda:0", workers=3)) == driver.MAX_TOGETHER


class Drivers:
    """Stands for ``launchers._drive``: each has one job under way and dies, until ``deaths`` are used up. ``first``: a
    job that the first of them ends before; ``silent``: one that is never heard of."""

    def __init__(self, *deaths, begins=True, first=None, silent=None):
        self.deaths, self.began, self.begins = list(deaths), [], begins
        self.first, self.silent = first, silent

    def __call__(self, jobs, plan, together):
        names = [one.run_id for one in jobs]
        self.began.append((names, together))
        died = bool(self.deaths)
        guilty = {self.deaths.pop(0)} if died and self.begins else set()
        if died and not self.begins:
            self.deaths.pop(0)
        ended = [self.first] * (len(self.began) == 1 and self.first is not None) if died else names
        done = {name: task.outcome(name, "done", False, 0.0) for name in ended if name != self.silent}
        return SimpleNamespace(under_way=guilty, ended=done, code=-9 if died else 0)


def fused_sweep(monkeypatch, tmp_path, jobs, drivers, together=3):
    alone = []
    monkeypatch.setattr(launchers, "_drive", drivers)
    monkeypatch.setattr(
        launchers, "run_in_process",
        lambda one, plan: alone.append(one.run_id) or task.outcome(one.run_id, "failed", False, 0.0),
    )  # fmt: skip
    found = launchers.fuse(jobs, planned(tmp_path, jobs), together)
    assert list(found) and set(found) == {one.run_id for one in jobs}
    return alone, found


def test_a_job_under_way_in_two_deaths_of_the_driver_runs_by_itself(tmp_path, monkeypatch):
    jobs = composed(tmp_path, "seed=0,1,2")
    names = [one.run_id for one in jobs]
    drivers = Drivers(names[1], names[1])
    alone, found = fused_sweep(monkeypatch, tmp_path, jobs, drivers)
    assert alone == [names[1]] and found[names[1]]["state"] == "failed"
    assert drivers.began == [(names, 3), (names, 3), ([names[0], names[2]], 3)]


def test_jobs_under_way_in_one_death_each_stay_together(tmp_path, monkeypatch):
    jobs = composed(tmp_path, "seed=0,1,2")
    names = [one.run_id for one in jobs]
    alone, _ = fused_sweep(monkeypatch, tmp_path, jobs, Drivers(names[0], names[1]))
    assert alone == []


def test_what_ended_before_the_driver_died_is_not_begun_again(tmp_path, monkeypatch):
    jobs = composed(tmp_path, "seed=0,1,2")
    names = [one.run_id for one in jobs]
    drivers = Drivers(names[1], first=names[0])
    alone, found = fused_sweep(monkeypatch, tmp_path, jobs, drivers)
    assert drivers.began == [(names, 3), (names[1:], 3)] and alone == [] and found[names[0]]["state"] == "done"


def test_a_job_that_is_never_heard_of_runs_by_itself(tmp_path, monkeypatch):
    jobs = composed(tmp_path, "seed=0,1")
    alone, _ = fused_sweep(monkeypatch, tmp_path, jobs, Drivers(silent=jobs[1].run_id))
    assert alone == [jobs[1].run_id]


def test_a_driver_tells_what_is_under_way_and_what_ended():
    heard = [
        ("a", "begun", False),
        ("b", "begun", True),
        ("a", "done", False),
        ("b", "failed", True),
        ("c", "begun", 0),
    ]
    seen = task.JobsProcess.__new__(task.JobsProcess)
    seen.under_way, seen.resumed, seen.ended, seen._began = set(), set(), {}, {}
    seen._pipe = SimpleNamespace(recv=lambda: heard.pop(0) if heard else _end())
    seen._listen()
    assert seen.under_way == {"c"} and seen.resumed == {"b"}
    assert {name: (one["state"], one["resumed"]) for name, one in seen.ended.items()} == {
        "a": ("done", False), "b": ("failed", True)
    }  # fmt: skip


def _end():
    raise EOFError


@pytest.mark.parametrize("resumed", [True, False])
def test_a_driver_says_whether_a_job_went_on_from_a_commit(tmp_path, monkeypatch, resumed):
    (work,), told = composed(tmp_path), []
    work.folder.mkdir(parents=True)
    if resumed:
        (work.folder / "commit.json").write_text("{}")
    monkeypatch.setattr(job, "attempt", lambda *_: "done")
    job.carry_out(work, planned(tmp_path, [work]), told.append)
    assert told == [(work.run_id, "begun", resumed), (work.run_id, "done", resumed)]


def test_a_job_that_another_process_is_at_is_busy_and_no_failure(tmp_path):
    (work,) = composed(tmp_path)
    with locked(lock_of(work.settings.paths.out, work.run_id)):
        assert job.attempt(work, planned(tmp_path, [work])) == "busy"
    assert not work.folder.exists()


def test_a_driver_that_does_not_even_begin_is_not_begun_for_ever(tmp_path, monkeypatch):
    jobs = composed(tmp_path, "seed=0,1")
    drivers = Drivers(None, None, None, begins=False)
    alone, _ = fused_sweep(monkeypatch, tmp_path, jobs, drivers)
    assert len(drivers.began) == 1 and alone == [one.run_id for one in jobs]


def test_other_threads_and_methods_with_workers_of_their_own_run_by_themselves(tmp_path, monkeypatch):
    texts = composed(tmp_path, "seed=0", "method=sinkhorn_e", base=TINY)
    odd = composed(tmp_path, "seed=1", "hardware.threads=2")
    toy = composed(tmp_path, "seed=0", base=["task=gaussians", "method=federated_distance"])
    jobs = [*composed(tmp_path, "seed=0"), *odd, *toy, *texts]
    drivers = Drivers()
    alone, _ = fused_sweep(monkeypatch, tmp_path, jobs, drivers)
    assert drivers.began == [([jobs[0].run_id, texts[0].run_id], 3)]
    assert alone == [odd[0].run_id, toy[0].run_id]


def test_fused_one_at_a_time_stops_at_the_first_failure(tmp_path):
    grid = [*faulty("raise", "none", "none"), *LAUNCHERS["fused"], "hydra.launcher.together=1", "fail_fast=true"]
    code, said = sweep(tmp_path, *grid)
    assert code == 1 and "0 done, 1 failed, 2 not begun (fail_fast=true)" in said, said
    assert len(begun(tmp_path)) == 1


@pytest.mark.parametrize(("together", "beside"), [(1, None), (2, 1), (9, 2)])
def test_a_result_says_whom_its_seconds_waited_for(tmp_path, together, beside):
    grid = ["seed=0,1,2", "training.rounds=1", *LAUNCHERS["fused"], f"hydra.launcher.together={together}"]
    assert sweep(tmp_path, *grid)[0] == 0
    for path in tmp_path.glob("*/*/*/result.json"):
        result = json.loads(path.read_text())
        assert result.get("beside") == beside and result["seconds"]["total"] > 0
        said = render(summary_table(result))
        (line,) = [line.strip() for line in said.splitlines() if "on engine lean in" in line]
        told = {None: " s", 1: " s, with waits for up to 1 other job", 2: " s, with waits for up to 2 other jobs"}
        assert line.endswith(told[beside])


@pytest.mark.parametrize("launcher", ["basic", "fused"])
def test_a_job_dies_with_its_sweep(launcher, tmp_path):
    """``kill -9`` of the launcher alone: its job does not go on unseen."""
    sweeping = Forked(*small(tmp_path, *faulty("wait"), *LAUNCHERS[launcher]))
    while not begun(tmp_path):
        assert not sweeping.ended, sweeping.said
        time.sleep(0.05)
    sweeping.send(signal.SIGKILL)
    sweeping.wait()
    lock = next(tmp_path.glob(".locks/*"))
    deadline = time.monotonic() + 30
    while _held(lock):
        assert time.monotonic() < deadline, "the job outlived its sweep"
        time.sleep(0.05)
    assert not results(tmp_path)


def _held(path):
    """Whether a process has the lock of a run."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
