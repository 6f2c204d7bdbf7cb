"""Students by loss terms: against plain loops typed here, and a killed training against an undisturbed one."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from knot_runner.config.settings import StageSettings
from knot_runner.methods.distil import learner
from knot_runner.methods.distil.students import PickStudent
from knot_runner.models.network import build_network
from tests.oracles.methods.distil_loops import (
    KD,
    assert_same,
    frozen_model,
    labelled_ce,
    orders,
    pixels,
    plain,
    softened,
    started,
    taught_by,
    trained,
)
from tests.unit.methods.distil_requests import (
    CE,
    CNN,
    MLP,
    WIDE,
    assert_same_bits,
    killed_and_resumed,
    make_place,
    put_teacher,
    silent,
    students,
)


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path)


def test_offline_equals_a_plain_loop(place):
    teacher = put_teacher(place, WIDE, 1)
    request = students(place, {"ce": {"weight": 0.5}, "kd": KD}, [teacher], unlabelled=15)
    found, facts = trained(request, place, "a")
    model = frozen_model(place, teacher)

    def loss(_, student, x, y, epoch):
        with torch.no_grad():
            v = model(x)
        z = student(x)
        return 0.5 * labelled_ce(z, y) + 0.7 * softened(z, v, 2.0)

    (student,) = plain(place, request, loss, [started("student")])
    assert_same(found, student)
    assert facts["best_epoch"] == 3 and [row["epoch"] for row in facts["epochs"]] == [1, 2, 3]


def test_mutual_learning_equals_two_plain_loops(place):
    terms = {"ce": CE, "kd": {"weight": 0.7, "tau": 1.0}}
    request = students(place, terms, schedule={"kind": "mutual", "students": 2})
    found, _ = trained(request, place, "a")
    models = [started("student"), started("student 2")]

    def loss(number, student, x, y, epoch):
        with torch.no_grad():
            v = models[1 - number](x)
        z = student(x)
        return F.cross_entropy(z, y) + 0.7 * softened(z, v, 1.0)

    plain(place, request, loss, models)
    for number, model in enumerate(models):
        assert_same(found, model, f"{number}.")


def test_average_schedule_equals_a_plain_loop(place):
    schedule = {"kind": "average", "decay": 0.8, "ramp": 2}
    request = students(place, {"ce": CE, "kd": KD}, schedule=schedule)
    found, _ = trained(request, place, "a")
    student = started("student")
    teacher = copy.deepcopy(student)

    def average():
        with torch.no_grad():
            for mean, own in zip(teacher.parameters(), student.parameters(), strict=True):
                mean.mul_(0.8).add_(own, alpha=0.2)

    plain(place, request, taught_by(teacher, lambda epoch: min(1.0, epoch / 2)), [student], after=average)
    assert_same(found, student)


def test_snapshot_schedule_equals_a_plain_loop(place):
    request = students(place, {"ce": CE, "kd": KD}, schedule={"kind": "snapshot"})
    found, _ = trained(request, place, "a")
    student = started("student")
    teacher = copy.deepcopy(student)
    loss = taught_by(teacher, lambda epoch: float(epoch > 1))
    plain(place, request, loss, [student], epoch_end=lambda: teacher.load_state_dict(student.state_dict()))
    assert_same(found, student)


def test_sgd_with_milestones_equals_a_plain_loop(place):
    settings = StageSettings(
        epochs=3, batch=16, lr=0.1, weight_decay=0.01, select="last", optimiser="sgd", momentum=0.9, milestones=[1, 2]
    )
    request = students(place, {"ce": CE}, training=settings)
    found, _ = trained(request, place, "a")
    x, y = pixels(place, "train")
    model = started("student")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for epoch, batches in orders(request):
        optimiser.param_groups[0]["lr"] = {1: 0.1, 2: 0.01, 3: 0.001}[epoch]
        for rows in batches:
            optimiser.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    assert_same(found, model)


def test_teachers_outputs_are_the_same_cached_or_not(place, monkeypatch):
    teachers = [put_teacher(place, WIDE, 1), put_teacher(place, WIDE, 2)]
    request = students(place, {"ce": CE, "kd": KD, "hint": {"weight": 1.0}, "at": {"weight": 5.0}}, teachers, CNN)
    kept, _ = trained(request, place, "a")
    monkeypatch.setattr(learner, "MOST_BYTES", 0)
    anew, _ = trained(request, place, "b")
    for name, tensor in kept.items():
        torch.testing.assert_close(anew[name], tensor, rtol=1e-4, atol=1e-5)


def test_teacher_sees_the_crop_that_the_student_sees(place, monkeypatch):
    seen, real = [], learner.OutputReader.__call__

    def noted(self, inputs):
        seen.append((self, inputs["x"].clone()))
        return real(self, inputs)

    monkeypatch.setattr(learner.OutputReader, "__call__", noted)
    one = dataclasses.replace(students(place, {"ce": CE}).training, epochs=1)
    teacher = put_teacher(place, WIDE, 1)
    trained(students(place, {"ce": CE, "kd": KD}, [teacher], augment="crop_flip", training=one), place, "a")
    steps = [pair for pair in zip(seen, seen[1:], strict=False) if len(pair[0][1]) in (16, 8)][-5::2]
    assert len(steps) == 3 and all(a is not b and torch.equal(x, y) for (a, x), (b, y) in steps)


@pytest.mark.parametrize(("schedule", "terms"), [
    ({"kind": "offline"}, {"hint": {"weight": 1.0}, "crd": {"weight": 0.5, "dim": 4}}),
    ({"kind": "mutual"}, {"kd": KD}), ({"kind": "snapshot"}, {"kd": KD}),
    ({"kind": "average", "decay": 0.8, "ramp": 0}, {"kd": KD}),
], ids=lambda value: value.get("kind"))  # fmt: skip
@pytest.mark.parametrize("epoch", [1, 3])
def test_student_killed_in_any_epoch_ends_as_if_left_alone(place, schedule, terms, epoch):
    teachers = [put_teacher(place, WIDE, 1)] if schedule["kind"] == "offline" else []
    request = students(place, {"ce": CE, **terms}, teachers, CNN, schedule=schedule)
    undisturbed, facts = trained(request, place, "a")
    resumed, again = killed_and_resumed(request, place, epoch)
    assert_same_bits(resumed, undisturbed)
    assert again["terms"] == facts["terms"]
    assert [row["loss"] for row in again["epochs"]] == [row["loss"] for row in facts["epochs"]]


def test_picked_student_is_the_one_of_its_number(place):
    request = students(place, {"ce": CE, "kd": KD}, schedule={"kind": "mutual", "students": 3})
    tensors, facts = trained(request, place, "a")
    place.store.put("distil", "together", tensors, facts)
    for number in range(3):
        own, _ = PickStudent("picked", "x", ("distil", "together"), number).carry_out(place, None, silent)
        assert set(own) == set(build_network(MLP).state_dict())
        assert all(torch.equal(tensor, tensors[f"{number}.{name}"]) for name, tensor in own.items())
    assert not torch.equal(tensors["0.head.weight"], tensors["1.head.weight"])
