"""A job that raises, exits, is killed, crashes or runs out of memory stops no other."""

import json
import os
import signal
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml

import knot_runner as kr
from knot_runner.cli.show import references
from knot_runner.report.run_folders import load_runs
from knot_runner.sweeps.job import attempt
from knot_runner.sweeps.state import read_failure, status, write_failure
from tests.cli.sweep.grids import begun, composed, faulty, planned, results, small, sweep
from tests.disk import Disk
from tests.forked import Forked

#: What happens -> what failed.json calls it, and words of its cause.
CASES = {
    "raise": ("error", "RuntimeError: a planted bug"), "kill": ("killed", "SIGKILL"),
    "crash": ("killed", "SIGSEGV"), "leave": ("exit", "exit code 9"),
}  # fmt: skip


def failures(out):
    by_seed = {}
    for path in Path(out).glob("*/*/*/failed.json"):
        config = yaml.safe_load((path.parent / "config.yaml").read_text())
        by_seed[config["seed"]] = json.loads(path.read_text()), path.parent
    return by_seed


def test_sweep_survives_failing_jobs_and_resumes_them(tmp_path):
    grid, out = faulty("none", *CASES, "none"), tmp_path
    code, errors = sweep(out, *grid)
    assert code == 1 and f"2 done, {len(CASES)} failed" in errors and "Traceback" not in errors, errors
    failed = failures(out)
    for seed, (kind, words) in enumerate(CASES.values(), 1):
        failure, folder = failed[seed]
        assert (failure["kind"], failure["attempts"]) == (kind, 1) and words in failure["cause"]
        assert words in errors and str(folder) in errors
        log = (folder / "log.txt").read_text()
        assert kind in ("killed", "exit") or "Traceback" in log
        assert "SIGSEGV" not in words or "Segmentation fault" in log
    code, errors = sweep(out, *grid, NO_FAULTS="1")
    assert code == 0 and f"{len(CASES) + 2} done, 0 failed (2 were finished before" in errors, errors
    assert not failures(out) and len(results(out)) == len(CASES) + 2


@pytest.mark.parametrize(("problem", "kind", "cause"), [
    (SystemExit(3), "exit", "SystemExit(3) was raised in the job"),
    (MemoryError("no more"), "memory", "MemoryError: no more"),
    (torch.OutOfMemoryError("CUDA out of memory"), "memory", "OutOfMemoryError: CUDA out of memory"),
])  # fmt: skip
def test_attempt_records_what_a_job_raises(problem, kind, cause, tmp_path, monkeypatch):
    (job,) = composed(tmp_path)
    for name in ("redirect_output", "faulthandler"):  # those of the process of this test stay as they are
        monkeypatch.setattr(f"knot_runner.sweeps.job.{name}", mock.Mock())
    monkeypatch.setattr("knot_runner.sweeps.job.run_locked", mock.Mock(side_effect=problem))
    assert attempt(job, planned([job])) == "failed"
    failure = read_failure(job.folder)
    assert (failure.kind, failure.cause) == (kind, cause) and "Traceback" in (job.folder / "log.txt").read_text()


def test_attempt_leaves_a_run_that_another_command_has_finished(tmp_path):
    (job,) = composed(tmp_path)
    plan = planned([job])
    kr.run(job)
    before = (job.folder / "result.json").read_bytes()
    write_failure(job.folder, "killed", "an attempt that died after it had written its result")
    assert status(job.folder) == "done" and [run.status for run in load_runs(references([job]))] == ["done"]
    assert attempt(job, plan) == "done"
    assert (job.folder / "result.json").read_bytes() == before and read_failure(job.folder).attempts == 1


@pytest.mark.parametrize(("call", "file", "way"), [("open", "log.txt", "EIO"), ("flock", "", "ENOLCK")])
def test_attempt_records_a_failing_disk(call, file, way, tmp_path):
    (job,) = composed(tmp_path)
    plan = planned([job])
    with Disk(tmp_path, (call, file), way):
        assert attempt(job, plan) == "failed"
    failure = read_failure(job.folder)
    assert failure.kind == ("disk" if way == "EIO" else "user") and failure.cause.startswith(f"{tmp_path}/")


def test_fail_fast_begins_no_more_jobs(tmp_path):
    code, errors = sweep(tmp_path, *faulty("raise", "none", "none"), "fail_fast=true")
    assert code == 1 and "0 done, 1 failed, 2 not started (fail_fast=true)" in errors
    assert len(begun(tmp_path)) == 1


def test_sweep_counts_diverged_runs_apart_from_failures(tmp_path):
    grid = faulty("none", "diverge")
    code, errors = sweep(tmp_path, *grid)
    assert code == 1 and "1 done, 0 failed, 1 diverged" in errors and "seed 1: diverged in round 1 at client" in errors
    contents = [json.loads(path.read_text()) for path in tmp_path.glob("*/*/*/result.json")]
    (diverged,) = [result for result in contents if result["status"] == "diverged"]
    assert diverged["diverged"]["round"] == 1 and diverged["metrics"] == {} and len(contents) == 2
    code, errors = sweep(tmp_path, *grid)
    assert code == 1 and "1 done, 0 failed, 1 diverged (1 were finished before)" in errors


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_jobs_end_with_their_sweep(number, code, tmp_path):
    sweeping = Forked(*small(tmp_path, *faulty("wait", "none")))
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/*/*/progress.json")):
        assert time.monotonic() < deadline and not sweeping.ended, sweeping.said
        time.sleep(0.05)
    time.sleep(0.3)
    assert len(sweeping.processes) == 2  # and the job, which waits in its second round
    sweeping.send(number)
    assert sweeping.wait(30) == code, sweeping.said
    assert ("interrupted. Repeat the command to resume" in sweeping.said) == (code > 0)
    while code < 0 and sweeping.processes and time.monotonic() < deadline:  # a killed sweep cannot wait for them
        time.sleep(0.05)
    assert not sweeping.processes and not _alive(tmp_path) and not failures(tmp_path)


def _alive(out):
    """Processes that still belong to the sweep, by what their command or open files name."""
    numbers = []
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(out) in str(entry.readlink()) and entry.parts[2] != str(os.getpid()):
                numbers.append(entry.parts[2])
        except OSError:
            continue
    return numbers


def test_sweep_labels_outcomes_by_differing_overrides(tmp_path):
    code, errors = sweep(tmp_path, "seed=0", "training.lr=1e30,0.01", "training.batch_size=8,99999")
    assert code == 1 and "1 done, 2 failed, 1 diverged" in errors, errors
    assert "femnist fedavg seed 0 training.lr=0.01 training.batch_size=8: done" in errors
    assert "femnist fedavg seed 0 training.lr=1e+30 training.batch_size=8: diverged in round 1" in errors
    assert errors.count("training.batch_size: 99999 is too large") == 2  # as it happened, and in the summary
