"""Finished runs as teachers: their own scores come back, what names a student's run, and what is refused."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_jobs
from knot_runner.config.settings import Labels
from knot_runner.config.settings.methods.distil import RunTeacher
from knot_runner.data.images.load import load_images
from knot_runner.data.tasks import Dataset, Examples, Images, PartyTask, digests_of, example_digests, seen_rows
from knot_runner.pipelines.context import run_context
from knot_runner.pipelines.distillation import inspect_distillation
from knot_runner.pipelines.parties import finished_teachers
from knot_runner.pipelines.parties.finished_teachers import LearntFrom
from knot_runner.pipelines.parties.setup import make_federation
from knot_runner.records import write_result
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.run_folders import run
from tests.test_distil import SMALL_TEXTS
from tests.tiny import TINY_PARTIES, TINY_TAUGHT, replaced

DIGITS = ["task=mnist", "task.limit=150", "task.shape=[1,8,8]", "hardware.workers=1"]
CLIENTS = [
    *DIGITS, "model=cnn_8", "training=chill", "partition=iid", "partition.clients=3", "training.participants=1.0",
    "training.rounds=2", "training.lr=0.1",
]  # fmt: skip
PARTIES = [
    *replaced(TINY_PARTIES, *DIGITS, "method=entropy_a", "model=cnn_8", "partition=iid", "partition.clients=2"),
]
PARTIES = [word for word in PARTIES if word.split("=")[0] not in ("partition.alpha", "partition.floor", "model.hidden")]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("teachers")


@pytest.fixture(scope="module")
def federated(out):
    return run(out, *CLIENTS, "method=fedavg")


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def taught(teacher, *overrides):
    return [*replaced(TINY_TAUGHT, f"method.teacher=run:{teacher}", *overrides)]


@pytest.mark.thorough
def test_a_federated_run_teaches(out, federated):
    found = result_of(run(out, *taught(federated.name)))
    own = result_of(federated)
    assert found["baselines"]["teacher"]["accuracy"] == own["metrics"]["accuracy"]["ALL"]
    assert found["baselines"]["teacher"]["f1"] == pytest.approx(own["metrics"]["f1"]["ALL"])
    assert set(found["seconds"]["stages"]) == {f"finished {federated.name}", "distil student"}
    assert set(found["kept_epochs"]) == {"distil student"}


@pytest.mark.thorough
def test_a_student_and_a_global_model_teach(out, tmp_path):
    student = run(tmp_path, *TINY_TAUGHT)
    server = run(tmp_path, *PARTIES)
    found = result_of(run(tmp_path, *replaced(TINY_TAUGHT, f"method.teachers=[run:{student},run:{server.name},cnn_8]")))
    assert found["baselines"]["teacher 1"] == pytest.approx(
        {key: own["ALL"] for key, own in result_of(student)["metrics"].items()}
    )
    of_server = {key: own["server"] for key, own in result_of(server)["metrics"].items()}
    assert found["baselines"]["teacher 2"] == pytest.approx(of_server)
    assert f"finished {server.name}" in found["seconds"]["stages"] and "local teacher 3" in found["seconds"]["stages"]


def test_what_a_run_learnt_from_counts_those_that_taught_it(out, federated, tmp_path):
    """A student of a student: its teacher's teacher is asked, too."""
    student = run(tmp_path, *taught(federated))
    context = context_of(*taught(student), f"paths.out={tmp_path}")
    own = finished_teachers._context_of(context, context.hp.teachers[0])
    found = list(finished_teachers._all_read(own))
    assert [name for name, _ in found] == [student.name, federated.name] and all(read for _, read in found)
    assert found[1][1].data == result_of(federated)["data"]


def test_what_its_teachers_have_seen_counts_as_seen(monkeypatch):
    texts = Examples(["a", "b", "c", "d"], None, np.zeros(4, dtype=np.int64))
    tests, own, other = (texts.take(np.array(rows)) for rows in ([0, 1], [2], [3]))
    student = Dataset("student", "global", {"train": own, "test": tests})
    task = PartyTask("sa", Labels(["x", "y"], [[0.0], [1.0]], "semantic"), {"student": student}, "embedded")
    teacher = RunTeacher("run", "run 01", "01", "", "", None)
    first, second = LearntFrom([tests.take(np.array([1]))], [], ""), LearntFrom([other], [], "")
    monkeypatch.setattr(finished_teachers, "_all_read", lambda own: [("01", first), ("02", second)])
    with refuses():
        finished_teachers._check_seen("method.teachers[0]", teacher, None, task)
    monkeypatch.setattr(finished_teachers, "_all_read", lambda own: [("02", second)])
    finished_teachers._check_seen("method.teachers[0]", teacher, None, task)


def run_id(*overrides):
    (job,) = compose_jobs(list(overrides), None)
    return job.run_id


def test_a_student_is_named_by_the_run_and_its_weights_and_not_by_a_place(out, federated, tmp_path):
    by_id = run_id(*taught(federated.name, f"paths.out={out}"))
    copy = tmp_path / "elsewhere" / federated.name
    shutil.copytree(federated, copy)
    assert run_id(*taught(copy)) == by_id == run_id(*taught(federated))
    other = resealed(federated, tmp_path, model=b"other weights")
    assert run_id(*taught(other)) != by_id
    assert run_id(*taught(federated, "method=at")) != by_id


def resealed(folder, tmp_path, model=None, **changes):
    """A copy of a run whose result says something else, and is sealed again."""
    copy = tmp_path / f"changed{len(list(tmp_path.iterdir()))}" / folder.name
    shutil.copytree(folder, copy)
    if model is not None:
        (copy / "model.safetensors").unlink()
        (copy / "model.safetensors").write_bytes(model)
    write_result(copy, {**result_of(copy), **changes})
    return copy


def context_of(*overrides):
    (job,) = compose_jobs(list(overrides), None)
    return run_context(job, lambda *_: None, lambda _: None)


def refused(tmp_path, *overrides):
    """The one line that the command ends with."""
    with pytest.raises(UserError) as problem:
        context = context_of(*overrides, f"paths.out={tmp_path}")
        make_federation(context, context.services.parties(context), context.store, None)
    assert "\n" not in str(problem.value)
    return str(problem.value)


def test_one_that_has_seen_the_tests_is_refused(federated, tmp_path, capsys):
    other = taught(federated, "task.cut_seed=5")
    (job,) = compose_jobs(other, None)
    (own,) = compose_jobs([*CLIENTS, "method=fedavg"], None)
    ours, theirs = load_images(job.settings.task, None), load_images(own.settings.task, None)
    rows = [
        number
        for number, image in enumerate(ours.test.pixels)
        if any(np.array_equal(image, seen) for seen in theirs.train.pixels)
    ]
    assert rows
    line = f"method.teachers[0]: run {federated.name} has learnt from {len(rows)} of the student's {len(ours.test)}"
    assert main([*other, f"paths.out={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert f"{line} test examples (the first is number {rows[0] + 1}); a run with the same test set" in said
    assert not list(tmp_path.glob("artefacts/*/*/tensors.safetensors"))  # nothing was trained
    with refuses():
        inspect_distillation(context_of(*other))  # as check does


def test_what_does_not_fit_is_refused(federated, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    key = "method.teachers[0]: "
    assert f"{key}{empty}/result.json: file not found" in refused(tmp_path, *taught(empty))
    assert f"{key}0123: is no folder of a run, nor the id of one below" in refused(tmp_path, *taught("0123"))
    assert f"{key}: is no folder" in refused(tmp_path, *taught(""))
    damaged = resealed(federated, tmp_path)
    (damaged / "model.safetensors").unlink()
    (damaged / "model.safetensors").write_bytes((federated / "model.safetensors").read_bytes()[:-4] + b"abcd")
    assert "model.safetensors: does not match its digest in result.json" in refused(tmp_path, *taught(damaged))
    with refuses():
        compose_jobs(taught(damaged), None)  # before anything is read of the data
    matrix = resealed(federated, tmp_path, kind="matrix", method="dataset_distance")
    assert "is a run of dataset_distance, which ends with no model" in refused(tmp_path, *taught(matrix))
    diverged = resealed(federated, tmp_path, status="diverged")
    assert "diverged, so it has no model" in refused(tmp_path, *taught(diverged))
    names = resealed(federated, tmp_path, labels={"names": list("abcdefghij"), "coordinates": None})
    line = refused(tmp_path, *taught(names))
    assert "tells a, b, c, d, e and 5 more apart, and the student 0, 1, 2, 3, 4 and 5 more" in line
    other_data = resealed(federated, tmp_path, data="0" * 64)
    assert "learnt from is not read as it was" in refused(tmp_path, *taught(other_data))
    size = refused(tmp_path, *taught(federated, "task.shape=[1,10,10]"))
    assert "reads images with task.shape=[1, 8, 8], and the student has [1, 10, 10]" in size
    scale = refused(tmp_path, *taught(federated, "task.mean=[0.5]"))
    assert "reads images with task.mean=[" in scale and scale.endswith("and the student has [0.5]")
    text = refused(tmp_path, *replaced(SMALL_TEXTS, f"method.teachers=[run:{federated}]", "method=kd"))
    assert f"model run {federated.name} does not read task=sa" in text
    several = resealed(federated, tmp_path, model=(federated / "predictions.safetensors").read_bytes())
    assert "is not the weights of one cnn with 10 classes" in refused(tmp_path, *taught(several))
    pickle = resealed(federated, tmp_path, model=b"\x80\x04no tensors")
    assert "model.safetensors: holds no tensors in safetensors form" in refused(tmp_path, *taught(pickle))


def test_a_run_that_changed_after_it_was_asked_for_is_refused(federated, tmp_path):
    context = context_of(*taught(federated), f"paths.out={tmp_path}")
    other = dataclasses.replace(context.hp.teachers[0], weights="0" * 64)
    context = dataclasses.replace(context, hp=dataclasses.replace(context.hp, teachers=[other]))
    with refuses():
        finished_teachers.check_finished_teachers(context, context.services.parties(context))


def test_examples_are_told_by_their_content():
    pixels = np.arange(2 * 4, dtype=np.uint8).reshape(2, 1, 2, 2)
    labels = np.zeros(2, dtype=np.int64)
    whole, parts = Images(pixels, labels), Images((pixels / 255).astype(np.float32), labels + 1)
    assert example_digests(whole) == example_digests(parts) and len(digests_of([whole, parts])) == 2
    texts = Examples(["a b", "a", "c"], None, np.zeros(3, dtype=np.int64))
    pairs = Examples(["a", "a b"], ["b", ""], np.zeros(2, dtype=np.int64))
    assert len(digests_of([texts, pairs])) == 4  # (a, b) is not "a b"
    assert len(digests_of([Examples(["a", "a b"], ["b c", "c"], np.zeros(2, dtype=np.int64))])) == 2
    learnt = digests_of([texts.take(np.array([0, 2]))])
    assert seen_rows(texts, learnt, set()).tolist() == [0, 2]
    assert seen_rows(texts, learnt, {example_digests(texts)[0]}).tolist() == [2]
