"""The pieces of jobs on texts: planned as the method plans them, found where a run has left them, and timed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from knot_runner.compose.commands import compose_all
from knot_runner.engine.store import Store
from knot_runner.estimate.kinds import WORKERS
from knot_runner.estimate.text_times import Readable
from knot_runner.estimate.texts import Planner, TextJob, plan_and_time
from knot_runner.pipelines.context import RunContext
from knot_runner.run import run
from tests.tiny import TINY


def text_jobs(out, *overrides):
    jobs, _ = compose_all([*TINY, f"paths.out={out}", *overrides])
    return jobs, [TextJob(job.run_id, job.settings, job.method) for job in jobs]


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Path:
    """Records and artefacts of one run."""
    out = tmp_path_factory.mktemp("out")
    (job,), _ = text_jobs(out, "method=entropy_e")
    run(RunContext(job.settings, job.method, job.folder, "", job.run_id, lambda *a: None, lambda text: None))
    return out


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_what_a_run_has_left_is_there_and_the_rest_is_to_do(ran, tmp_path):
    before = files_of(ran)
    _, asked = text_jobs(ran, "method=entropy_e,sinkhorn_e,entropy_a", "seed=0,1")
    planner = Planner(asked[0].settings, Readable(tmp_path / "artefacts", behind=Store(ran / "artefacts")), None)
    planned = {(j.settings.method["name"], j.settings.seed): [piece for piece, _ in planner.plan(j)] for j in asked}
    there = {name: [piece.stage for piece in pieces if piece.there] for name, pieces in planned.items()}
    teachers = ["local models"] * 3 + ["global models"] + ["sets of soft labels"] * 8
    assert all(pieces[0].stage == "worker processes" for pieces in planned.values())
    there = {name: [stage for stage in stages if stage != "worker processes"] for name, stages in there.items()}
    assert there["entropy_e", 0] == [*teachers, *["biases"] * 4, "students"]
    assert there["sinkhorn_e", 0] == [*teachers, *["biases"] * 4]
    assert there["entropy_a", 0] == teachers
    assert not there["entropy_e", 1] and not there["sinkhorn_e", 1]
    stored = {f"{path.parent.name}/{path.name}" for path in (ran / "artefacts").glob("*/*")}
    assert {piece.key for piece in planned["entropy_e", 0] if piece.there and piece.kind != WORKERS} <= stored
    assert files_of(ran) == before


def test_seeds_share_nothing_and_methods_share_teachers(tmp_path):
    _, asked = text_jobs(tmp_path / "out", "method=entropy_e,sinkhorn_e", "seed=0,1")
    planner = Planner(asked[0].settings, Readable(tmp_path / "artefacts"), None)
    pieces = [piece for job in asked for piece, _ in planner.plan(job)]
    count = {stage: len({p.key for p in pieces if p.stage == stage}) for stage in {p.stage for p in pieces}}
    assert count == {
        "worker processes": 2, "starts": 4, "local models": 6, "global models": 2, "sets of soft labels": 16,
        "biases": 8, "students": 4, "evaluations": 4,
    }  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_every_kind_is_timed(tmp_path):
    _, asked = text_jobs(tmp_path / "out", "method=entropy_e,sinkhorn_e")
    told = []
    plan_and_time(
        lambda *what: told.append(what), tmp_path, asked, str(tmp_path / "out"), None, set(), time.monotonic() + 2
    )
    pieces = [piece for what in told if what[0] == "pieces" for piece in what[1]]
    costs = {what[1]: what[2] for what in told if what[0] == "cost"}
    assert set(costs) == {piece.kind for piece in pieces} - {WORKERS} and all(cost > 0 for cost in costs.values())
    assert not (tmp_path / "out").exists()


def test_teachers_alone_are_planned(tmp_path):
    _, (job,) = text_jobs(tmp_path / "out", "method=teachers")
    pieces = [piece for piece, _ in Planner(job.settings, Readable(tmp_path / "artefacts"), None).plan(job)]
    assert [piece.stage for piece in pieces].count("biases") == 4
    assert "students" not in {piece.stage for piece in pieces}
