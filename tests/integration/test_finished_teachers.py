"""Finished runs as teachers: their recorded scores, the run id of a student, and refusals."""

import dataclasses
import json
import shutil

import pytest
from safetensors.torch import save

from knot_runner import compose
from knot_runner.pipelines.context import run_context
from knot_runner.pipelines.distillation import inspect_distillation
from knot_runner.pipelines.parties import setup as finished_teachers
from knot_runner.pipelines.parties.setup import make_federation
from tests.contents import write_content
from tests.distill_runs import SMALL_TEXTS
from tests.golden.messages import refuses
from tests.runs import run
from tests.tiny import TINY_PARTIES, TINY_TAUGHT, replaced
from tests.unit.report.made_runs import matrix_result

DIGITS = ["task=mnist", "task.max_examples=150", "task.shape=[1,8,8]", "hardware.num_workers=1"]
CLIENTS = [
    *DIGITS, "model=cnn_8", "training=published", "partition=iid", "partition.num_clients=3",
    "training.clients_per_round=1.0", "training.rounds=2", "training.lr=0.1", "method=fedavg",
]  # fmt: skip
PARTIES = replaced(TINY_PARTIES, *DIGITS, "method=entropy_a", "model=cnn_8", "partition=iid", "partition.num_clients=2")
PARTIES = [word for word in PARTIES if word.split("=")[0] not in ("partition.alpha", "partition.floor", "model.hidden")]


@pytest.fixture(scope="module")
def federated(tmp_path_factory):
    return run(tmp_path_factory.mktemp("teachers"), *CLIENTS)


def taught(teacher, *overrides):
    return replaced(TINY_TAUGHT, f"method.teacher=run:{teacher}", *overrides)


def job_of(*words):
    (job,) = compose(list(words))
    return job


def context_of(*words):
    return run_context(job_of(*words), lambda *_: None, lambda _: None)


def resealed(folder, tmp_path, model=None, **changes):
    """Return a copy of a run with other weights, or other values in its result, and with new checksums."""
    copy = tmp_path / f"changed{len(list(tmp_path.iterdir()))}" / folder.name
    shutil.copytree(folder, copy)
    if model is not None:
        (copy / "model.safetensors").unlink()
        (copy / "model.safetensors").write_bytes(model)
    content = {**json.loads((copy / "result.json").read_text()), **changes}
    write_content(copy, matrix_result() if content["kind"] == "matrix" else content)
    return copy


def test_federated_run_teaches_by_its_own_scores(federated):
    found = run(federated.folder.parents[2], *taught(federated.folder.name)).result
    own = federated.result["metrics"]
    assert found["baselines"]["teacher"]["accuracy"] == own["accuracy"]["ALL"]
    assert found["baselines"]["teacher"]["f1"] == pytest.approx(own["f1"]["ALL"])
    assert set(found["kept_epochs"]) == {"distill student"}


def test_finished_runs_teach_beside_new_teacher(tmp_path):
    student, server = run(tmp_path, *TINY_TAUGHT), run(tmp_path, *PARTIES)
    teachers = f"method.teachers=[run:{student.folder},run:{server.folder.name},cnn_8]"
    found = run(tmp_path, *replaced(TINY_TAUGHT, teachers)).result
    for name, record, party in (("teacher 1", student, "ALL"), ("teacher 2", server, "server")):
        wanted = {key: own[party] for key, own in record.result["metrics"].items()}
        assert found["baselines"][name] == pytest.approx(wanted)
    assert set(found["kept_epochs"]) == {"local teacher 3", "distill student"}


def test_run_id_depends_on_teacher_weights_not_location(federated, tmp_path):
    folder, copy = federated.folder, tmp_path / "elsewhere" / federated.folder.name
    by_id = job_of(*taught(folder.name, f"paths.output_dir={folder.parents[2]}")).run_id
    shutil.copytree(folder, copy)
    assert job_of(*taught(copy)).run_id == by_id == job_of(*taught(folder)).run_id
    other = resealed(folder, tmp_path, model=b"other weights")
    assert len({by_id, job_of(*taught(other)).run_id, job_of(*taught(folder, "method=at")).run_id}) == 3


def refused(tmp_path, *words):
    with refuses():
        context = context_of(*words, f"paths.output_dir={tmp_path}")
        make_federation(context, context.services.parties(context))


def test_teacher_of_other_test_examples_is_refused(federated, tmp_path):
    other = taught(federated.folder, "task.cut_seed=5")
    with refuses():
        run(tmp_path, *other)
    assert not list(tmp_path.glob("artifacts/*/*/tensors.safetensors"))  # nothing was trained
    with refuses():
        inspect_distillation(context_of(*other))  # as check does


@pytest.mark.parametrize("words", [["task.shape=[1,10,10]"], ["task.mean=[0.5]"]], ids=str)
def test_teacher_of_another_task_is_refused(federated, tmp_path, words):
    refused(tmp_path, *taught(federated.folder, *words))


@pytest.mark.parametrize("teacher", ["empty", "0123", ""])
def test_teacher_that_is_no_run_is_refused(tmp_path, teacher):
    (tmp_path / "empty").mkdir()
    refused(tmp_path, *taught(tmp_path / teacher if teacher == "empty" else teacher))


GONE = {"path": "gone.png", "size": 1, "mtime_ns": 0, "sha256": "0" * 64}


@pytest.mark.parametrize("changes", [
    {"kind": "matrix"}, {"status": "diverged"}, {"files": [GONE]},
    {"model": b"\x80\x04no tensors"}, {"model": "predictions"}, {"model": "one layer"},
], ids=str)  # fmt: skip
def test_teacher_without_model_weights_is_refused(federated, tmp_path, changes):
    if "model" in changes:
        one_layer = dict([*federated.tensors().items()][:1])
        others = {"predictions": federated.tensors("predictions"), "one layer": one_layer}
        changes = {"model": save(others[changes["model"]]) if changes["model"] in others else changes["model"]}
    refused(tmp_path, *taught(resealed(federated.folder, tmp_path, **changes), f"paths.data_dir={tmp_path}"))


def test_teacher_of_images_or_damaged_is_refused(federated, tmp_path):
    refused(tmp_path, *replaced(SMALL_TEXTS, f"method.teachers=[run:{federated.folder}]", "method=kd"))
    damaged = resealed(federated.folder, tmp_path)
    (damaged / "model.safetensors").unlink()
    (damaged / "model.safetensors").write_bytes((federated.folder / "model.safetensors").read_bytes()[:-4] + b"abcd")
    with refuses():
        compose(taught(damaged))  # before anything is read of the data


def test_teacher_that_changed_after_composing_is_refused(federated, tmp_path):
    context = context_of(*taught(federated.folder), f"paths.output_dir={tmp_path}")
    other = dataclasses.replace(context.method.teachers[0], weights="0" * 64)
    context = dataclasses.replace(context, method=dataclasses.replace(context.method, teachers=[other]))
    with refuses():
        finished_teachers.check_finished_teachers(context, context.services.parties(context))


def test_teacher_of_texts_has_the_students_vocabulary(tmp_path):
    words = [word for word in SMALL_TEXTS if not word.startswith(("method.teachers", "training.local"))]
    first = run(tmp_path, *words, "method=student_alone")
    taught_words = [*words, "method=kd", f"method.teachers=[run:{first.folder}]"]
    wanted = {key: own["ALL"] for key, own in first.result["metrics"].items()}
    assert run(tmp_path, *taught_words).result["baselines"]["teacher"] == pytest.approx(wanted)
    refused(tmp_path, *replaced(taught_words, "model.vocab_size=400"))
