"""The pieces of jobs on texts: planned as the method plans them, found where a run has left them, and timed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.composing.commands import compose_all
from knot_runner.engine.store import Store
from knot_runner.estimate import whole
from knot_runner.estimate.child import Sample, Seen
from knot_runner.estimate.lines import disk_space, in_turn, kind_rows, peak_memory
from knot_runner.estimate.pieces import EVALUATION, WORKERS, Cost, Piece, in_family
from knot_runner.estimate.stage_times import kind_times, plan_and_time
from knot_runner.estimate.stages import Planner, PlanStore
from knot_runner.estimate.timed import costs_of, stage_seconds
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.runs.single_run import complete_run
from tests.tiny import TINY


def text_jobs(out, *overrides):
    jobs, _ = compose_all([*TINY, f"paths.out={out}", *overrides])
    return jobs


def planner_of(job, folder, out):
    return Planner(PlanStore(folder, behind=Store(out / "artefacts")))


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Path:
    """Records and artefacts of one run."""
    out = tmp_path_factory.mktemp("out")
    (job,) = text_jobs(out, "method=entropy_e")
    complete_run(RunContext(job.settings, job.method, job.folder, "", job.run_id, lambda *a: None, lambda text: None))
    return out


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def told_by(jobs, folder, known=(), seconds=60.0):
    """(Pieces of every job, kind -> its last cost) as they are told."""
    told = []
    plan_and_time(lambda *what: told.append(what), folder, jobs, set(known), time.monotonic() + seconds)
    return [what[1] for what in told if what[0] == "pieces"], {what[1]: what[2] for what in told if what[0] == "cost"}


@pytest.mark.thorough
def test_what_a_run_has_left_is_there_and_the_rest_is_to_do(ran, tmp_path):
    before = files_of(ran)
    asked = text_jobs(ran, "method=entropy_e,sinkhorn_e,entropy_a", "seed=0,1")
    planner = planner_of(asked[0], tmp_path, ran)
    planned = {(j.settings.method["name"], j.settings.seed): planner.plan(j)[0] for j in asked}
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


@pytest.mark.thorough
def test_a_vocabulary_that_is_learnt_once_leaves_the_keys_as_they_are(ran, tmp_path):
    (job,) = text_jobs(ran, "method=entropy_e")
    plain = planner_of(job, tmp_path / "plain", ran).plan(job)[0]
    (pieces,), costs = told_by([job], tmp_path)
    assert [piece.key for piece in pieces] == [piece.key for piece in plain]
    assert [piece.stage for piece in pieces if not piece.there] == ["starts", "evaluations"]
    assert costs[EVALUATION].unit > 0  # timed although all of the plan is there


def test_seeds_share_nothing_and_methods_share_teachers(tmp_path):
    asked = text_jobs(tmp_path / "out", "method=entropy_e,sinkhorn_e", "seed=0,1")
    planner = planner_of(asked[0], tmp_path / "plan", tmp_path / "out")
    pieces = [piece for job in asked for piece in planner.plan(job)[0]]
    count = {stage: len({p.key for p in pieces if p.stage == stage}) for stage in {p.stage for p in pieces}}
    assert count == {
        "worker processes": 2, "starts": 4, "local models": 6, "global models": 2, "sets of soft labels": 16,
        "biases": 8, "students": 4, "evaluations": 4,
    }  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_texts_of_another_length_are_other_stages(tmp_path):
    asked = text_jobs(tmp_path / "out", "training.local.max_length=8,16")
    planner = planner_of(asked[0], tmp_path / "plan", tmp_path / "out")
    keys = [{piece.key for piece in planner.plan(job)[0] if piece.stage == "local models"} for job in asked]
    assert len(keys[0]) == 3 and not keys[0] & keys[1]


@pytest.mark.thorough
def test_every_kind_is_timed(tmp_path):
    asked = text_jobs(tmp_path / "out", "method=entropy_e,sinkhorn_e")
    loads, costs = told_by(asked, tmp_path)
    kinds = {piece.kind for pieces in loads for piece in pieces}
    assert set(costs) == kinds - {WORKERS} and all(cost.unit > 0 for cost in costs.values())
    assert {path.name for path in tmp_path.iterdir()} == {"plan", "tokenizer.json"}  # of the short runs nothing is left


def test_what_is_known_is_not_timed_again(tmp_path):
    (job,) = text_jobs(tmp_path / "out", "method=entropy_a")
    (pieces,), _ = told_by([job], tmp_path, seconds=0.0)
    _, costs = told_by([job], tmp_path, {piece.kind for piece in pieces})
    assert set(costs) == {"starts"}


def test_teachers_alone_are_planned(tmp_path):
    (job,) = text_jobs(tmp_path / "out", "method=teachers")
    pieces, _ = planner_of(job, tmp_path, tmp_path / "out").plan(job)
    assert [piece.stage for piece in pieces].count("biases") == 4
    assert "students" not in {piece.stage for piece in pieces}


def test_recorded_times_are_preferred_and_memory_is_that_of_full_batches(tmp_path, monkeypatch):
    (job,) = text_jobs(tmp_path / "out", "hardware.workers=2")
    names = "teacher Cell, batch 64", "bias Cell"
    pieces = [Piece("s", name, name, name, units) for name, units in zip(names, (3, 20), strict=True)]
    costs = [(2.0, "cost", name, Cost(0.0, 9.0)) for name in names]
    seen = Seen(0.0, [(1.0, "ready"), (2.0, "pieces", pieces), *costs, (2.0, "model", 7)], [Sample(0.0, 100, 0.0)])
    known = {in_family(job.config, names[0]): Cost(0.0, 2.0, disk=5)}
    monkeypatch.setattr(whole, "watch", lambda *_: seen)
    monkeypatch.setattr(whole, "recorded_costs", lambda *_: known)
    made = whole.estimate_sweep([job], [], 30.0)
    (load,) = made.known
    assert load.seconds(made.costs) == 20 * 9.0  # beside it the other worker has 3 * 2.0
    assert disk_space([load], made.costs) == 5 and peak_memory(load, made.costs) is None
    seen.messages.append((3.0, "full batches"))
    made = whole.estimate_sweep([job], [], 30.0)
    assert peak_memory(made.loads[0], made.costs) == 100
    known.clear()
    made = whole.estimate_sweep([job], [], 30.0)
    assert peak_memory(made.loads[0], made.costs) == 3 * 100 and disk_space(made.loads, made.costs) == 7


def test_sums_do_without_an_evaluation_that_was_not_reached_and_say_so(tmp_path, monkeypatch):
    (job,) = text_jobs(tmp_path / "out")
    pieces = [Piece("s", "student", "s", "student", 3), Piece("evaluations", "evaluation", "e", EVALUATION, 9)]
    told = [(1.0, "ready"), (2.0, "pieces", pieces), (2.0, "cost", "student", Cost(0.0, 2.0))]
    monkeypatch.setattr(whole, "watch", lambda *_: Seen(0.0, told))
    made = whole.estimate_sweep([job], [], 30.0)
    assert in_turn(made.known, made.costs) == 6.0 and made.untimed == {"sa evaluation": "no time was left"}
    assert ("sa evaluation", "1", "0.0 s", "0.0 s", "not timed") in kind_rows(made)
    told.pop()
    made = whole.estimate_sweep([job], [], 30.0)
    assert not made.known and set(made.untimed) == {"sa student", "sa evaluation"}


def trained(began, title, each, end):
    """Reports of a training of two epochs of two steps, of ``each`` seconds, and as much again between the epochs."""
    moments = [began + each * step for step in (1, 2, 4, 5)]
    steps = [(at, title, done, 4, f"epoch {1 + done // 3}") for done, at in enumerate(moments, 1)]
    return [*steps, (end, title, 1, 1, "done")]


def predicted(began, title, seconds):
    """Reports of a prediction of one batch."""
    return [(began + seconds, title, 1, 1, ""), (began + seconds, title, 1, 1, "done")]


def test_seconds_of_stages_by_hand():
    """Reading takes 5 s, which is no stage's; a training begins with 2 s of loading; an epoch takes 3 s."""
    events = [(0.0, "", 0, 1, ""), (5.0, "", 0, 1, ""), *trained(7.0, "local Cell", 1.0, 13.5)]
    assert stage_seconds(events) == {"local Cell": (3.0, 1.0)}
    assert stage_seconds(events[:-1]) == {"local Cell": (3.0, 1.0)}  # its last epoch was seen
    assert stage_seconds(events[:-2]) == {}
    labels = [*predicted(13.5, "soft_labels Cell", 1.5), *predicted(15.0, "soft_labels Cell", 0.5)]
    assert stage_seconds([*events, *labels])["soft_labels Cell"] == (2.0, 0.0)  # of both parts
    assert stage_seconds([*events, *labels[:-1]])["soft_labels Cell"] == (1.5, 0.0)


@pytest.mark.thorough
@given(st.floats(0.001, 3.0), st.integers(1, 60))
def test_even_work_grows_with_the_texts(tmp_path_factory, each, rows):
    """A second a text wherever it is read: what a short run says is what the whole would take."""
    folder = tmp_path_factory.getbasetemp()
    (job,) = text_jobs(folder / "nowhere", "method=entropy_a", "training.local.epochs=4")
    _, stages = planned_once(job, folder)
    at, events = 0.0, [(0.0, "", 0, 1, "")]
    for stage in stages:
        title, seconds = f"{stage.request.stage} {stage.request.party}", each * min(stage.rows, rows)
        is_training = hasattr(stage.request, "training")
        events += trained(at, title, seconds / 3, at + 2 * seconds) if is_training else predicted(at, title, seconds)
        at = events[-1][0]
    events += [(at + 2.0, "", 0, 1, ""), *predicted(at + 2.0, "predictions student", each * rows)]
    events.append((events[-1][0] + 3.0, "", 1, 1, "through"))
    costs = costs_of(kind_times(events, stages, rows, rows), {}, rows_of_epochs(stages))
    for stage in stages:
        assert costs[stage.piece.kind].seconds(stage.piece) == pytest.approx(each * stage.rows * epochs_of(stage))
    assert (costs[EVALUATION].start, costs[EVALUATION].unit) == (pytest.approx(5.0), pytest.approx(each))
    assert EVALUATION not in kind_times(events[:-1], stages, rows, rows)  # it was not seen to its end


def test_what_does_not_grow_is_told_from_what_does_by_two_runs(tmp_path):
    """3 s and .1 s a text; a machine that was busy once does not make a slope of nothing."""
    (job,) = text_jobs(tmp_path / "nowhere", "method=entropy_a", "training.local.epochs=4")
    _, stages = planned_once(job, tmp_path)
    kind, rows = stages[0].piece.kind, {stages[0].piece.kind: stages[0].rows}

    def cost(now, before):
        return costs_of({kind: (*now, 0.0)}, {kind: (*before, 0.0)}, rows)[kind]

    even = cost((128, 15.8), (32, 6.2))
    assert even.start == 0 and even.unit == pytest.approx(3.0 + 0.1 * rows[kind])
    once = costs_of({"bias Cell": (128, 15.8, 1.0)}, {"bias Cell": (32, 6.2, 1.0)}, rows)["bias Cell"]
    assert (once.start, once.unit) == (pytest.approx(4.0), pytest.approx(0.1))
    assert cost((128, 12.8), (32, 30.0)).unit == pytest.approx(12.8 * 7 / 8 + 0.1 / 8 * rows[kind])
    assert cost((128, 12.8), (32, 0.1)).unit == cost((128, 12.8), (128, 1.0)).unit == pytest.approx(0.1 * rows[kind])


def rows_of_epochs(stages):
    return {stage.piece.kind: stage.rows for stage in stages if hasattr(stage.request, "training")}


def epochs_of(stage):
    return stage.request.training.epochs if hasattr(stage.request, "training") else 1


PLANNED: dict[str, tuple] = {}


def planned_once(job, folder):
    if job.run_id not in PLANNED:
        PLANNED[job.run_id] = planner_of(job, folder, folder / "nowhere").plan(job)
    return PLANNED[job.run_id]
