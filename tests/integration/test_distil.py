"""Distillation by loss terms through the command line: its parties, its records, launchers, and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.torch import load_file

from knot_runner import metrics
from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_jobs
from knot_runner.data.images.load import load_images
from knot_runner.data.load import load_task
from knot_runner.data.parties import teaching_parties
from knot_runner.methods.distil.distil import plan
from knot_runner.methods.party import Party
from knot_runner.util.errors import UserError
from tests.run_folders import run
from tests.tiny import TINY, TINY_TAUGHT, replaced

SMALL_TEXTS = [
    *(override for override in replaced(TINY, "task=sa") if not override.startswith("method.bias")),
    "method.teachers=[{kind: bert, name: narrow, head: plain, weights: scratch, vocab: train, vocab_size: 600, "
    "hub_id: '', revision: main, hidden: 8, layers: 2, heads: 2, intermediate: 16, dropout: 0.1}]",
]  # fmt: skip


def small(*overrides):
    return replaced(TINY_TAUGHT, *overrides)


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def parties(*overrides):
    (job,) = compose_jobs(small(*overrides), None)
    task = load_images(job.settings.task, None)
    return task, teaching_parties(task, job.method, job.settings.seed)


def test_who_sees_which_labels():
    task, found = parties("method=multi_teacher", "method.labelled=0.3", "method.valid=0.2", "task.limit=null")
    assert list(found.datasets) == ["teacher 1", "teacher 2", "student"]
    one, two, student = (found.datasets[name].splits for name in found.datasets)
    assert one["train"] is two["train"] and "test" not in one
    assert len(one["valid"]) == pytest.approx(0.2 * len(task.train), abs=1)
    assert len(one["train"]) + len(one["valid"]) == len(task.train)
    np.testing.assert_array_equal(one["train"].pixels, student["train"].pixels)
    seen = student["train"].labels >= 0
    assert seen.mean() == pytest.approx(0.3, abs=0.002)
    np.testing.assert_array_equal(student["train"].labels[seen], one["train"].labels[seen])
    counts = np.bincount(one["train"].labels[seen], minlength=10) / np.bincount(one["train"].labels, minlength=10)
    assert np.abs(counts - 0.3).max() < 0.02  # stratified
    assert (one["train"].labels >= 0).all() and student["test"] is task.test
    _, other = parties("method=multi_teacher", "method.labelled=0.3", "method.valid=0.2", "task.limit=null", "seed=1")
    assert (other.datasets["student"].splits["train"].labels != student["train"].labels).any()


def test_texts_are_pooled():
    (job,) = compose_jobs(["task=sa", "task.limit=60", "method=student_alone"], None)
    task = load_task(job.settings.task, None)
    found = teaching_parties(task, job.method, 0).datasets
    labelled = [data for data in task.datasets.values() if data.role != "transfer"]
    assert list(found) == ["student"] and len(labelled) > 1
    for split in ("train", "valid", "test"):
        assert found["student"].splits[split].texts == [t for data in labelled for t in data.splits[split].texts]


def test_a_run_and_its_records(tmp_path):
    folder = run(tmp_path, *small("method.labelled=0.5"))
    result = result_of(folder)
    assert result["kind"] == "distil" and set(result["terms"]) == {"ce", "kd"}
    assert set(result["baselines"]) == {"teacher"} and "before" not in result
    made = load_file(folder / "predictions.safetensors")
    labels, found = made["student.labels"].numpy(), made["student.probabilities"].numpy()
    assert result["metrics"]["accuracy"]["ALL"] == pytest.approx((found.argmax(1) == labels).mean())
    confusion = metrics.confusion(found.argmax(1), labels, 10)
    assert result["metrics"]["f1"]["student"] == pytest.approx(metrics.macro_f1(confusion))
    assert result["label_counts"]["unlabelled"]["student"]["train"] > 40
    assert result["kept_epochs"]["local teacher"] == {"epoch": 1, "select": "last"}


#: Two teachers, and relations of triples by their vote.
TRIPLET = ["method=multi_teacher", "+base/term@method.terms.triplet=triplet"]


@pytest.mark.parametrize(
    "method, models",
    [
        ("dml", {"student 2"}),
        ("born_again", {"generation 1"}),
        ("self_average", set()),
        ("multi_teacher +base/term@method.terms.triplet=triplet", {"teacher 1", "teacher 2", "ensemble"}),
        ("student_alone method.terms.ce.label_smoothing=0.1", set()),
    ],
)
def test_other_schedules(method, models, tmp_path):
    result = result_of(run(tmp_path, *small(*f"method={method}".split())))
    assert set(result["baselines"]) == models


def test_the_second_generation_learns_from_the_first(tmp_path):
    """With the teacher's term alone, and more generations than one."""
    folder = run(tmp_path, *small("method=born_again", "method.schedule.generations=2"))
    assert set(result_of(folder)["baselines"]) == {"generation 1", "generation 2", "ensemble"}
    alone = run(tmp_path, *small("method=student_alone"))
    first = json.loads((folder / "result.json").read_text())["baselines"]["generation 1"]["accuracy"]
    assert first != result_of(alone)["metrics"]["accuracy"]["ALL"]  # another start


def test_each_generation_learns_from_the_one_before(tmp_path):
    """What was asked of the engine, by the names of the teachers' artefacts."""
    folder = run(tmp_path, *small("method=born_again", "method.schedule.generations=3", "training.distil.epochs=1"))
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [name for row in rows for name in row if name != "round"] == [
        "generation 1", "generation 2", "generation 3", "student"
    ]  # fmt: skip
    (job,) = compose_jobs(small("method=born_again", "method.schedule.generations=3"), None)
    federation = SimpleNamespace(
        server=Party("student", dict.fromkeys(("train", "valid")), None), label_points=[[0.0], [1.0]],
        training=job.settings.training, seed=0, augment="none", weights="scratch",
    )  # fmt: skip
    state = {f"weights/generation {number}": f"distil/g{number}" for number in (1, 2, 3)}
    for round, wanted in ((1, "g1"), (2, "g2"), (3, "g3")):
        (request,) = plan(job.method, state, federation, round)
        assert [weights for _, weights in request.teachers] == [("distil", wanted)]
        assert request.party == ("student" if round == 3 else f"generation {round + 1}")


@pytest.mark.thorough
def test_teachers_are_trained_once_for_all_methods(tmp_path):
    for method in ("kd", "at", "multi_teacher"):
        run(tmp_path, *small(f"method={method}"))
    assert len(list((tmp_path / "artefacts" / "local").glob("*/tensors.safetensors"))) == 3  # teacher, teacher 1 and 2


@pytest.mark.thorough
def test_launchers_and_workers_leave_equal_bits(tmp_path):
    grid = small("method=kd,dml", "seed=0,1")
    launched = {
        "one": [],
        "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    }
    found = {}
    for out, words in launched.items():
        assert main([*grid, f"paths.out={tmp_path / out}", *words]) == 0
        files = sorted((tmp_path / out).glob("mnist/*/*/predictions.safetensors"))
        found[out] = {str(file.relative_to(tmp_path / out)): file.read_bytes() for file in files}
    assert len(found["one"]) == 4 and found["one"] == found["joblib"]
    read = {result_of(file.parent)["data"] for file in (tmp_path / "one").glob("mnist/*/*/result.json")}
    assert len(read) == 1  # whatever the seed deals to whom


@pytest.mark.thorough
def test_texts(tmp_path):
    result = result_of(run(tmp_path, *replaced(SMALL_TEXTS, "method=rkd", "method.labelled=0.5")))
    assert set(result["baselines"]) == {"teacher"} and set(result["terms"]) == {"ce", "rkd"}


def test_a_student_with_labels_of_one_class_is_warned_of(tmp_path):
    folder = run(tmp_path, *small("method.labelled=0.001"))
    (line,) = [note for note in result_of(folder)["notes"] if note.startswith("warning: student:")]
    assert "all 1 labelled training examples are of class" in line


def test_a_loud_term_is_warned_of(tmp_path, capsys):
    folder = run(tmp_path, *small("method=fitnets", "method.terms.hint.weight=100000"))
    (line,) = [note for note in result_of(folder)["notes"] if "drown" in note]
    assert line.startswith("warning: method.terms.hint begins as ") and line in capsys.readouterr().err


@pytest.mark.parametrize(
    "overrides, line",
    [
        (["partition=iid"], "partition: method=kd trains on all examples as one pool"),
        (["method.terms.kd.tau=0"], "method.terms.kd.tau: 0.0 is not above 0"),
        (["method.teacher=bert_mini"], "method.teachers[0]: model bert_mini does not read task=mnist"),
        (["method.teacher=cnn_9"], "method.teachers[0]: model=cnn_9: unknown name (did you mean 'cnn_"),
        (["method.teacher=../../x"], "method.teachers[0]: model=../../x: unknown name"),
        (["method.schedule.kind=[mutual]"], "method.schedule.kind: no schedule ['mutual']"),
        (["method.teachers=[3]"], "method.teachers[0]: 3 is not the name of a model"),
        (["method.schedule.kind=mutual"], "method.teachers: are of schedule.kind=offline"),
        (["method.schedule.kind=online"], "method.schedule.kind: no schedule 'online'"),
        (["+method.terms.kx.weight=1"], "method.terms.kx: no such term"),
        (["~method.terms.ce", "~method.terms.kd"], "method.terms: has none"),
        (["method.labelled=0"], "method.labelled: 0.0 is not in (0, 1]"),
        (["training.distil.momentum=0.5"], "training.distil.momentum: 0.5 is of sgd"),
        (["method=sp", "training.distil.batch=1"], "training.distil.batch: 1 leaves method.terms.sp nothing"),
        (["method=rkd", "training.distil.batch=1"], "method.terms.rkd nothing to compare; relations need at least 2"),
        (["method=pkt", "training.distil.batch=1"], "method.terms.pkt nothing to compare; relations need at least 2"),
        ([*TRIPLET, "training.distil.batch=2"], "method.terms.triplet nothing to compare"),
        (["+method.schedule.phases=[{epochs: 1, terms: {sp: {weight: 1}}}]", "training.distil.batch=1"], "1 leaves"),
        (["training.distil.milestones=[3,2]"], "training.distil.milestones: [3, 2] do not rise"),
    ],
)
def test_what_does_not_fit_is_refused_when_composing(overrides, line):
    with pytest.raises(UserError) as problem:
        compose_jobs(small(*overrides), None)
    assert line in str(problem.value) and "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "overrides, line",
    [
        (["method=student_alone", "+method.terms.kd.weight=1"], "method.terms.kd: needs a teacher"),
        (["method=at", "method.teacher=mlp_notebook"], "method.terms.at.taps: cnn_4 and mlp_notebook have no maps"),
        (["method=fitnets", "method.terms.hint.taps=[[block9,block1]]"], "cnn_4 has no tap 'block9'"),
        (["method=born_again", "~method.terms.ce"], "the first of schedule.kind=generations has no teacher"),
        (["method.labelled=0.9999"], "method.labelled: "),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_training(overrides, line, tmp_path, capsys):
    assert main([*small(*overrides), f"paths.out={tmp_path}"]) == 2
    assert line in capsys.readouterr().err
    assert not list(Path(tmp_path).glob("artefacts/distil/*/tensors.safetensors"))


def test_the_vocabulary_does_not_depend_on_teachers():
    """So that a student of texts reads the same pieces alone and with a teacher."""
    from knot_runner.pipelines.federations.texts import load_tokenizer

    found = []
    for overrides in (["method=student_alone"], ["method=kd", "method.labelled=0.5"]):
        (job,) = compose_jobs(["task=sa", "task.limit=60", "model.vocab_size=300", *overrides], None)
        parties_ = teaching_parties(load_task(job.settings.task, None), job.method, 0)
        found.append(load_tokenizer(job.settings.model, parties_, None).get_vocab())
    assert found[0] == found[1]
