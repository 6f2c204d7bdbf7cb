"""What a run's folder says while it is at work and after it failed."""

import json
import time

import pytest

from knot_runner.sweeps import state
from knot_runner.sweeps.plan import PATIENT, STOP, write_plan
from tests.cli.sweep.grids import composed
from tests.disk import Disk
from tests.golden.messages import refuses


def test_write_failure_keeps_one_line_and_counts_attempts(tmp_path):
    assert state.read_failure(tmp_path) is None
    assert state.write_failure(tmp_path, "error", "ValueError: first line\nsecond line") == "failed"
    first = state.read_failure(tmp_path)
    assert (first.cause, first.attempts) == ("ValueError: first line", 1)
    state.write_failure(tmp_path, "killed", "")
    again = state.read_failure(tmp_path)
    assert (again.kind, again.cause, again.attempts) == ("killed", "killed", 2)
    state.clear_failure(tmp_path)
    state.clear_failure(tmp_path)
    assert state.read_failure(tmp_path) is None


WHOLE = {"kind": "error", "cause": "why", "attempts": 1, "at": 0.5}
DAMAGED = ["", "{", "[]", '{"kind": "error"}', '{"kind": 1, "new": 2}', json.dumps({**WHOLE, "new": 1}),
           json.dumps({**WHOLE, "attempts": "1"})]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_read_failure_ignores_damaged_and_foreign_files(content, tmp_path):
    (tmp_path / "failed.json").write_text(content)
    assert state.read_failure(tmp_path) is None


def test_progress_file_throttles_expires_and_cleans_up(tmp_path, monkeypatch):
    with state.progress_file(tmp_path) as watch:
        assert state.read_progress(tmp_path).stage == "begin"
        watch("rounds", 1, 9, "accuracy .1")  # too soon
        assert state.read_progress(tmp_path).stage == "begin"
        now = time.time()
        monkeypatch.setattr(state.time, "time", lambda: now + 2)
        watch("rounds", 2, 9, "accuracy .2")
        found = state.read_progress(tmp_path)
        assert (found.stage, found.done, found.total, found.text) == ("rounds", 2, 9, "accuracy .2")
        monkeypatch.setattr(state.time, "time", lambda: now + 2 + 2 * state.FRESH_SECONDS)
        assert state.read_progress(tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_state_files_that_cannot_be_deleted_are_reported(tmp_path, caplog):
    state.write_failure(tmp_path, "error", "why")
    with Disk(tmp_path, ("unlink", ".json"), "EIO"), state.progress_file(tmp_path):
        state.clear_failure(tmp_path)
    for name, said in zip(("failed", "progress"), caplog.messages, strict=True):
        assert said == f"{tmp_path}/{name}.json: no longer needed, but cannot be deleted: Input/output error"


def test_plan_returns_job_configs_as_written_and_marks(tmp_path):
    jobs = composed(tmp_path, "seed=0,1")
    plan = write_plan(tmp_path, jobs)
    assert [plan.config(job.run_id) for job in jobs] == [job.own_config for job in jobs]
    plan.mark(STOP)
    assert plan.has(STOP) and not plan.has(PATIENT)
    with refuses():
        plan.config("other")
