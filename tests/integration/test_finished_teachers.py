"""Finished runs as teachers: their own scores come back, what names a student's run, and what is refused."""

import dataclasses
import json
import shutil

import pytest

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_jobs
from knot_runner.pipelines.context import run_context
from knot_runner.pipelines.distillation import inspect_distillation
from knot_runner.pipelines.parties import finished_teachers
from knot_runner.pipelines.parties.setup import make_federation
from knot_runner.records import write_result
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.integration.test_distil import SMALL_TEXTS
from tests.run_folders import run
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


def test_one_of_other_test_examples_is_refused(federated, tmp_path):
    other = taught(federated, "task.cut_seed=5")
    assert main([*other, f"paths.out={tmp_path}"]) == 2
    assert not list(tmp_path.glob("artefacts/*/*/tensors.safetensors"))  # nothing was trained
    with refuses():
        inspect_distillation(context_of(*other))  # as check does


def test_what_does_not_fit_is_refused(federated, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    key = "method.teachers[0]: "
    assert f"{key}{empty}/result.json: file not found" in refused(tmp_path, *taught(empty))
    assert f"{key}0123: is no folder of a run, nor the id of one below" in refused(tmp_path, *taught("0123"))
    assert "is no folder of a run" in refused(tmp_path, *taught(""))
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
    gone = {"path": "gone.png", "size": 1, "mtime_ns": 0, "sha256": "0" * 64}
    other = resealed(federated, tmp_path, files=[gone])
    line = refused(tmp_path, *taught(other), f"paths.data={tmp_path}")
    assert "was made from other data than those in paths.data: gone.png" in line
    size = refused(tmp_path, *taught(federated, "task.shape=[1,10,10]"))
    assert "has task.shape=[1, 8, 8], but the student has [1, 10, 10]" in size
    scale = refused(tmp_path, *taught(federated, "task.mean=[0.5]"))
    assert "has task.mean=[" in scale and "but the student has [0.5]" in scale
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


@pytest.mark.thorough
def test_texts(tmp_path):
    """A student of texts is a teacher of one that reads the same vocabulary, and of no other."""
    words = [word for word in SMALL_TEXTS if not word.startswith(("method.teachers", "training.local"))]
    first = run(tmp_path, *words, "method=student_alone")
    found = result_of(run(tmp_path, *words, "method=kd", f"method.teachers=[run:{first}]"))
    assert found["baselines"]["teacher"] == pytest.approx(
        {key: own["ALL"] for key, own in result_of(first)["metrics"].items()}
    )
    line = refused(tmp_path, *replaced(words, "method=kd", f"method.teachers=[run:{first}]", "model.vocab_size=400"))
    assert "has another vocabulary than the student" in line
