"""Runs of distillation by loss terms: parties, records, schedules, warnings and refusals."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import f1_score

from knot_runner import compose
from knot_runner.data.images.load import load_images
from knot_runner.data.load import load_task
from knot_runner.data.parties import teaching_parties
from knot_runner.engine.store import Store
from knot_runner.methods.distill.distill import plan
from knot_runner.methods.party import StageState, StoredParty
from knot_runner.pipelines.federations.texts import load_tokenizer, text_federation
from tests.golden.messages import refuses
from tests.runs import command, run
from tests.tiny import TINY, TINY_TAUGHT, replaced


def small(*overrides):
    return replaced(TINY_TAUGHT, *overrides)


def job_of(*words):
    (job,) = compose(list(words))
    return job


def parties(*overrides):
    job = job_of(*small(*overrides))
    task = load_images(job.settings.task, None)
    return task, teaching_parties(task, job.method, job.settings.seed)


def text_parties(*overrides):
    job = job_of("task=sa", "task.max_examples=60", "model.vocab_size=300", *overrides)
    task = load_task(job.settings.task, None)
    return job, task, teaching_parties(task, job.method, 0)


def test_student_sees_stratified_share_of_labels():
    words = ["method=multi_teacher", "method.labeled=0.3", "method.valid=0.2", "task.max_examples=null"]
    task, taught = parties(*words)
    assert list(taught.datasets) == ["teacher 1", "teacher 2", "student"]
    first, second, student = (taught.datasets[name].splits for name in taught.datasets)
    assert first["train"] is second["train"] and "test" not in first
    assert len(first["valid"]) == pytest.approx(0.2 * len(task.train), abs=1)
    assert len(first["train"]) + len(first["valid"]) == len(task.train)
    np.testing.assert_array_equal(first["train"].pixels, student["train"].pixels)
    seen = student["train"].labels >= 0
    assert seen.mean() == pytest.approx(0.3, abs=0.002)
    np.testing.assert_array_equal(student["train"].labels[seen], first["train"].labels[seen])
    counts = np.bincount(first["train"].labels[seen], minlength=10) / np.bincount(first["train"].labels, minlength=10)
    assert np.abs(counts - 0.3).max() < 0.02
    assert (first["train"].labels >= 0).all() and student["test"] is task.test
    _, other = parties(*words, "seed=1")
    assert (other.datasets["student"].splits["train"].labels != student["train"].labels).any()


def test_seed_chooses_the_labels_that_a_student_sees():
    job, task, pooled = text_parties("method=student_alone", "method.labeled=0.3")
    other = teaching_parties(task, job.method, 1)
    one, two = (parts.datasets["student"].splits["train"].labels >= 0 for parts in (pooled, other))
    assert one.sum() == two.sum() and 0.25 < np.mean(one != two) < 0.6  # 2 * 0.3 * 0.7 by chance


def test_text_parties_pool_data_with_teacher_independent_vocabulary():
    job, task, pooled = text_parties("method=student_alone")
    labeled = [data for data in task.datasets.values() if data.role != "transfer"]
    assert list(pooled.datasets) == ["student"] and len(labeled) > 1
    for split in ("train", "valid", "test"):
        wanted = [text for data in labeled for text in data.splits[split].texts]
        assert pooled.datasets["student"].splits[split].texts == wanted
    _, _, taught = text_parties("method=kd", "method.labeled=0.5")
    alone, beside = (load_tokenizer(job, one).get_vocab() for one in (pooled, taught))
    assert alone == beside


def test_run_records_terms_baselines_and_predictions(tmp_path):
    record = run(tmp_path, *small("method.labeled=0.5"))
    result, arrays = record.result, record.tensors("predictions")
    assert result["kind"] == "distill" and set(result["terms"]) == {"ce", "kd"}
    assert set(result["baselines"]) == {"teacher"} and "before" not in result
    labels, shares = arrays["student.labels"].numpy(), arrays["student.probabilities"].numpy()
    assert result["metrics"]["accuracy"]["ALL"] == pytest.approx((shares.argmax(1) == labels).mean())
    score = f1_score(labels, shares.argmax(1), average="macro")
    assert result["metrics"]["f1"]["student"] == pytest.approx(score)
    assert result["label_counts"]["unlabeled"]["student"]["train"] > 40
    assert result["kept_epochs"]["local teacher"] == {"epoch": 1, "select": "last"}
    assert result.get("selected_on") == (
        "valid" if result["kept_epochs"]["distill student"]["select"] == "best" else None
    )


#: Two teachers, and relations of triples by their vote.
TRIPLET = ["method=multi_teacher", "+base/term@method.terms.triplet=triplet"]


@pytest.mark.parametrize(("words", "models"), [
    (["method=dml"], ["student 2"]), (["method=self_average"], []),
    (TRIPLET, ["ensemble", "teacher 1", "teacher 2"]),
    (["method=student_alone", "method.terms.ce.label_smoothing=0.1"], []),
], ids=str)  # fmt: skip
def test_baselines_of_a_schedule(words, models, tmp_path):
    assert sorted(run(tmp_path, *small(*words)).result["baselines"]) == models


def test_born_again_teaches_from_previous_generation(tmp_path):
    words = small("method=born_again", "method.schedule.generations=3", "training.distill.epochs=1", "method.valid=0.1")
    record, names = run(tmp_path, *words), ["generation 1", "generation 2", "generation 3"]
    assert [name for row in record.rows for name in row if name != "round"] == [*names, "student"]
    assert set(record.result["baselines"]) == {*names, "ensemble"}
    job = job_of(*words)
    federation = SimpleNamespace(
        server=StoredParty("student", dict.fromkeys(("train", "valid")), None), label_points=[[0.0], [1.0]],
        training=job.settings.training, seed=0, augment="none", weights="scratch",
    )  # fmt: skip
    state = StageState({f"generation {number}": f"distill/g{number}" for number in (1, 2, 3)})
    for round, wanted in ((1, "g1"), (2, "g2"), (3, "g3")):
        (request,) = plan(job.method, state, federation, round)
        assert [weights for _, weights in request.teachers] == [("distill", wanted)]
        assert request.party == ("student" if round == 3 else f"generation {round + 1}")


@pytest.mark.parametrize(("words", "begins", "holds"), [
    (["method.labeled=0.001"], "warning: student has ", "labeled training examples of one class only (1 of class "),
    (["method=fitnets", "method.terms.hint.weight=100000"], "warning: method.terms.hint starts at ", "dominate"),
    (["training.distill.lr=1e-9"], "warning: every test example is predicted to be of class ", ""),
], ids=str)  # fmt: skip
def test_run_warns_about_single_class_or_dominant_term(words, begins, holds, tmp_path):
    (line,) = [note for note in run(tmp_path, *small(*words)).result["notes"] if note.startswith(begins)]
    assert holds in line


@pytest.mark.parametrize("overrides", [
    ["partition=iid"], ["method.terms.kd.temperature=0"], ["method.teacher=bert_mini"], ["method.teacher=cnn_9"],
    ["method.teacher=../../x"], ["method.schedule.kind=[mutual]"], ["method.teachers=[3]"],
    ["method.schedule.kind=mutual"], ["method.schedule.kind=online"], ["+method.terms.kx.weight=1"],
    ["~method.terms.ce", "~method.terms.kd"], ["method.labeled=0"], ["training.distill.momentum=0.5"],
    [*TRIPLET, "training.distill.batch_size=2"],
    ["+method.schedule.phases=[{epochs: 1, terms: {sp: {weight: 1}}}]", "training.distill.batch_size=1"],
    ["training.distill.milestones=[3,2]"],
], ids=" ".join)  # fmt: skip
def test_compose_jobs_rejects_invalid_distillation_settings(overrides):
    with refuses():
        compose(small(*overrides))


@pytest.mark.parametrize("overrides", [
    ["method=student_alone", "+method.terms.kd.weight=1"], ["method=at", "method.teacher=mlp_notebook"],
    ["method=fitnets", "method.terms.hint.taps=[[block9,block1]]"], ["method=born_again", "~method.terms.ce"],
    ["method.labeled=0.9999"], ["method=at", "method.terms.at.taps=[[logits,logits]]"],
    ["+method.terms.nothing={weight: 1}"], ["method=data_free", "base/synthesis@method.synthesis=statistics"],
], ids=" ".join)  # fmt: skip
def test_run_rejects_invalid_terms_and_labels_before_training(overrides, tmp_path):
    with refuses():
        run(tmp_path, *small(*overrides))
    assert not list(tmp_path.glob("artifacts/distill/*/tensors.safetensors"))


def test_text_federation_cuts_texts_by_stage(tmp_path):
    lengths = {"local": 9, "pretrain": 12, "distill": 8}
    changes = [f"training.{stage}.max_length={length}" for stage, length in lengths.items()]
    (job,) = compose([*TINY, "task.max_length=16", *changes])
    settings, store = job.settings, Store(tmp_path)
    context = SimpleNamespace(settings=settings, store=store, data_root=None)
    federation = text_federation(context, load_task(settings.task, None), None)
    expected = [(client, 9) for client in federation.clients] + [(federation.server, 12), (federation.transfer, 8)]
    assert [party for party, _ in expected] == federation.parties
    for party, length in expected:
        for split, ref in party.examples.items():
            longest = int(store.get(*ref).tensors()["offsets"].diff().max())
            assert longest == (16 if split == "test" else length)


def test_result_has_kept_epochs_and_versions(tmp_path):
    result = run(tmp_path, *TINY, "training.distill.select=last", "method.loss.solver=geomloss").result
    assert result["selected_epoch"] == 2
    assert result["kept_epochs"]["distill student"] == {"epoch": 2, "select": "last"}
    assert result["kept_epochs"]["local Cell"] == {"epoch": 1, "select": "best"} and result["selected_on"] == "valid"
    assert {"torch", "geomloss"} <= set(result["versions"])


def test_teachers_alone_are_the_result(tmp_path, capsys):
    record = command(tmp_path, *TINY, "method=teachers")
    result, kept = record.result, record.tensors("predictions")
    printed = " ".join(capsys.readouterr().out.split())
    assert result["evaluated"] == "personalized"
    for name, own in result["teachers"].items():
        assert {measure: result["metrics"][measure][name] for measure in own} == own
    for name in result["teachers"]:
        right = kept[f"{name}.probabilities"].argmax(1) == kept[f"{name}.labels"]
        assert result["metrics"]["accuracy"][name] == pytest.approx(float(right.double().mean()))
    assert "distillation" not in printed and "->" not in printed and "each model on its own test set" in printed
