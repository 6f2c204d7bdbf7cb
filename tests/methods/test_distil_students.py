"""Students by loss terms: against plain loops typed here, and a killed training against an undisturbed one."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from knot_runner.config.settings import StageSettings
from knot_runner.config.settings.distil_terms import PktTermSettings
from knot_runner.engine.commit import Checkpoint
from knot_runner.engine.seeds import generator, keyed
from knot_runner.methods.distil import frozen
from knot_runner.methods.distil.requests import PickStudent
from knot_runner.methods.distil.term import TERMS, Term
from knot_runner.models.network import build_network
from knot_runner.util.errors import UserError
from tests.methods.distil_requests import CE, CNN, MLP, WIDE, make_place, put_teacher, silent, students

KD = {"weight": 0.7, "tau": 2.0}


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path)


def trained(request, place, folder):
    return request.carry_out(place, place.store.root.parent / folder, silent)


def pixels(place, key):
    tensors = place.store.get("images", key).tensors()
    return ((tensors["pixels"].double() - 0.5) / 0.3).float(), tensors["labels"]


def softened(z, v, tau):
    """tau^2 KL(v || z) of softened outputs, mean over the batch."""
    q = torch.softmax(v / tau, 1)
    return tau**2 * (q * (q.log() - torch.log_softmax(z / tau, 1))).sum(1).mean()


def orders(request, count=40):
    """The batches of every epoch."""
    for epoch in range(1, request.training.epochs + 1):
        order = torch.randperm(count, generator=generator(request.seed, "order", "distil", "student", epoch))
        yield epoch, order.split(request.training.batch)


def started(name, network=MLP, seed=5):
    torch.manual_seed(keyed(seed, "init", name))
    return build_network(network)


def plain(place, request, loss, students_, order="simultaneous", after=lambda: None, epoch_end=lambda: None):
    """A textbook loop: ``loss(number, model, x, y, epoch)`` of each of the models, an optimiser each."""
    x, y = pixels(place, "train")
    settings = request.training
    optimisers = [
        torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay) for model in students_
    ]
    for epoch, batches in orders(request):
        for rows in batches:
            if order == "alternating":
                for number, model in enumerate(students_):
                    value = loss(number, model, x[rows], y[rows], epoch)
                    optimisers[number].zero_grad()
                    value.backward()
                    optimisers[number].step()
                continue
            values = [loss(number, model, x[rows], y[rows], epoch) for number, model in enumerate(students_)]
            for number, value in enumerate(values):
                optimisers[number].zero_grad()
                value.backward()
                optimisers[number].step()
            after()
        epoch_end()
    return students_


def assert_same(found, model, prefix=""):
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[prefix + name], tensor, rtol=1e-4, atol=2e-6)


def labelled_ce(z, y):
    return F.cross_entropy(z[y >= 0], y[y >= 0])


def test_offline_equals_a_plain_loop(place):
    teacher = put_teacher(place, WIDE, 1)
    request = students(place, {"ce": {"weight": 0.5}, "kd": KD}, [teacher], unlabelled=15)
    found, facts = trained(request, place, "a")
    model = build_network(WIDE).eval()
    model.load_state_dict(place.store.get(*teacher[1]).tensors())

    def loss(_, student, x, y, epoch):
        with torch.no_grad():
            v = model(x)
        z = student(x)
        return 0.5 * labelled_ce(z, y) + 0.7 * softened(z, v, 2.0)

    (student,) = plain(place, request, loss, [started("student")])
    assert_same(found, student)
    assert facts["best_epoch"] == 3 and [row["epoch"] for row in facts["epochs"]] == [1, 2, 3]


@pytest.mark.parametrize("order", ["simultaneous", "alternating"])
def test_mutual_learning_equals_two_plain_loops(place, order):
    schedule = {"kind": "mutual", "students": 2, "order": order}
    request = students(place, {"ce": CE, "kd": {"weight": 0.7, "tau": 1.0}}, schedule=schedule)
    found, _ = trained(request, place, "a")
    models = [started("student"), started("student 2")]

    def loss(number, student, x, y, epoch):
        with torch.no_grad():
            v = models[1 - number](x)
        z = student(x)
        return F.cross_entropy(z, y) + 0.7 * softened(z, v, 1.0)

    plain(place, request, loss, models, order)
    for number, model in enumerate(models):
        assert_same(found, model, f"{number}.")


def test_the_average_of_its_own_weights_teaches(place):
    schedule = {"kind": "average", "decay": 0.8, "ramp": 2}
    request = students(place, {"ce": CE, "kd": KD}, schedule=schedule)
    found, _ = trained(request, place, "a")
    student = started("student")
    teacher = copy.deepcopy(student)

    def loss(_, model, x, y, epoch):
        with torch.no_grad():
            v = teacher(x)
        z = model(x)
        return F.cross_entropy(z, y) + 0.7 * min(1.0, epoch / 2) * softened(z, v, 2.0)

    def average():
        with torch.no_grad():
            for mean, own in zip(teacher.parameters(), student.parameters(), strict=True):
                mean.mul_(0.8).add_(own, alpha=0.2)

    plain(place, request, loss, [student], after=average)
    assert_same(found, student)


def test_the_student_of_the_epoch_before_teaches(place):
    request = students(place, {"ce": CE, "kd": KD}, schedule={"kind": "snapshot"})
    found, _ = trained(request, place, "a")
    student = started("student")
    teacher = copy.deepcopy(student)

    def loss(_, model, x, y, epoch):
        with torch.no_grad():
            v = teacher(x)
        z = model(x)
        return F.cross_entropy(z, y) + (0.7 * softened(z, v, 2.0) if epoch > 1 else 0.0)

    plain(place, request, loss, [student], epoch_end=lambda: teacher.load_state_dict(student.state_dict()))
    assert_same(found, student)


def test_alone_it_is_a_plain_training_with_the_same_start_and_batches(place):
    request = students(place, {"ce": CE}, unlabelled=15)
    found, facts = trained(request, place, "a")
    (student,) = plain(place, request, lambda _, m, x, y, e: labelled_ce(m(x), y), [started("student")])
    assert_same(found, student)
    assert facts["terms"]["ce"]["ratio"] == pytest.approx(1.0)


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


def test_teachers_are_the_same_kept_or_asked_anew(place, monkeypatch):
    teachers = [put_teacher(place, WIDE, 1), put_teacher(place, WIDE, 2)]
    request = students(place, {"ce": CE, "kd": KD, "hint": {"weight": 1.0}, "at": {"weight": 5.0}}, teachers, CNN)
    kept, _ = trained(request, place, "a")
    monkeypatch.setattr(frozen, "MOST_BYTES", 0)
    anew, _ = trained(request, place, "b")
    for name, tensor in kept.items():
        torch.testing.assert_close(anew[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_teacher_sees_the_crop_that_the_student_sees(place, monkeypatch):
    """With augmentation nothing is kept: what the teacher says is of the very batch."""
    seen = []
    real = frozen.OutputReader.__call__

    def noted(self, inputs):
        seen.append((self, inputs["x"].clone()))
        return real(self, inputs)

    monkeypatch.setattr(frozen.OutputReader, "__call__", noted)
    one = dataclasses.replace(students(place, {"ce": CE}).training, epochs=1)
    teacher = put_teacher(place, WIDE, 1)
    trained(students(place, {"ce": CE, "kd": KD}, [teacher], augment="crop_flip", training=one), place, "a")
    steps = [pair for pair in zip(seen, seen[1:], strict=False) if len(pair[0][1]) in (16, 8)][-5::2]
    assert len(steps) == 3 and all(a is not b and torch.equal(x, y) for (a, x), (b, y) in steps)


SCHEDULES = {
    "adapters and memories": ({"kind": "offline"}, {"hint": {"weight": 1.0}, "crd": {"weight": 0.5, "dim": 4}}),
    "mutual": ({"kind": "mutual"}, {"kd": KD}),
    "average": ({"kind": "average", "decay": 0.8, "ramp": 0}, {"kd": KD}),
    "snapshot": ({"kind": "snapshot"}, {"kd": KD}),
}


class Killed(BaseException):
    pass


@pytest.mark.parametrize("schedule, terms", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("epoch", [1, 3])
def test_killed_in_any_epoch_it_ends_as_if_left_alone(place, schedule, terms, epoch):
    teachers = [put_teacher(place, WIDE, 1)] if schedule["kind"] == "offline" else []
    request = students(place, {"ce": CE, **terms}, teachers, CNN, schedule=schedule)
    undisturbed, facts = trained(request, place, "a")

    def kill(done, total, text):
        if done == total * epoch // 3 - 1:
            raise Killed

    work = place.store.root.parent / "b"
    with pytest.raises(Killed):
        request.carry_out(place, work, kill)
    assert Checkpoint(work).load().step == (epoch - 1 or -1)
    resumed, again = request.carry_out(place, work, silent)
    assert set(resumed) == set(undisturbed)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in undisturbed.items())
    assert again["terms"] == facts["terms"]
    assert [row["loss"] for row in again["epochs"]] == [row["loss"] for row in facts["epochs"]]


def test_a_student_that_was_trained_with_others_is_picked(place):
    request = students(place, {"ce": CE, "kd": KD}, schedule={"kind": "mutual", "students": 3})
    tensors, facts = trained(request, place, "a")
    place.store.put("distil", "together", tensors, facts)
    for number in range(3):
        own, _ = PickStudent("picked", "x", ("distil", "together"), number).carry_out(place, None, silent)
        assert set(own) == set(build_network(MLP).state_dict())
        assert all(torch.equal(tensor, tensors[f"{number}.{name}"]) for name, tensor in own.items())
    assert not torch.equal(tensors["0.head.weight"], tensors["1.head.weight"])


# -------------------------------------------------------------------------------------------------------------- weights


def first_values(place, terms, teacher, request):
    """Mean cross-entropy and softened KL on the first batches, by hand."""
    x, y = pixels(place, "train")
    order = torch.randperm(40, generator=generator(5, "first batches", "student"))
    student, model = started("student"), build_network(WIDE).eval()
    model.load_state_dict(place.store.get(*teacher[1]).tensors())
    with torch.no_grad():
        rows = order.split(16)
        ce = sum(float(F.cross_entropy(student(x[r]), y[r])) for r in rows) / 3
        kd = sum(float(softened(student(x[r]), model(x[r]), 2.0)) for r in rows) / 3
    return ce, kd


def test_weights_and_first_ratios_by_hand(place):
    teacher = put_teacher(place, WIDE, 1)
    terms = {"ce": {"weight": 0.5}, "kd": {"weight": "auto", "tau": 2.0}}
    request = students(place, terms, [teacher], auto_ratio=3.0)
    _, facts = trained(request, place, "a")
    ce, kd = first_values(place, terms, teacher, request)
    assert facts["terms"]["ce"] == {"weight": 0.5, "ratio": pytest.approx(0.5, rel=1e-5)}
    assert facts["terms"]["kd"] == {"weight": pytest.approx(3 * ce / kd, rel=1e-4), "ratio": pytest.approx(3.0)}
    typed = students(place, {**terms, "kd": {"weight": facts["terms"]["kd"]["weight"], "tau": 2.0}}, [teacher])
    same, _ = trained(typed, place, "b")
    automatic, _ = trained(request, place, "c")
    assert all(torch.equal(same[name], tensor) for name, tensor in automatic.items())


def test_weighing_leaves_memories_as_they_are(place):
    """A memory that moved before the first step would make a term depend on whether its ratio was measured."""
    from knot_runner.methods.distil.students import Students

    teacher = put_teacher(place, WIDE, 1)
    request = students(place, {"ce": CE, "crd": {"weight": 1.0, "dim": 4}}, [teacher], CNN)
    made = Students(request, place, silent)
    after = {name: tensor.clone() for name, tensor in made.losses[0].state_dict().items()}
    torch.manual_seed(keyed(5, "adapters", "student"))
    made._make_losses(made.losses[0].specs)
    assert after and all(torch.equal(after[name], tensor) for name, tensor in made.losses[0].state_dict().items())


@pytest.mark.parametrize(
    "terms, schedule, line",
    [
        ({"kd": {"weight": "auto"}}, {"kind": "average"}, "method.terms.kd.weight: auto weighs a term by its first"),
        ({"kd": {"weight": 1.0}}, {"kind": "offline"}, "method.terms.kd: needs a teacher"),
        ({"kx": {"weight": 1.0}}, {"kind": "offline"}, "method.terms.kx: no such term"),
        ({"at": {"weight": 1.0}}, {"kind": "snapshot"}, "have no maps to be compared"),
        ({"hint": {"weight": 1.0, "taps": [["layer9", "layer1"]]}}, {"kind": "snapshot"}, "has no tap 'layer9'"),
        ({"hint": {"weight": 1.0, "taps": [["layer1", "nix"]]}}, {"kind": "snapshot"}, "method.terms.hint.taps: mlp"),
    ],
)
def test_terms_that_do_not_fit_are_refused_in_a_line(place, terms, schedule, line):
    with pytest.raises(UserError) as problem:
        trained(students(place, terms, schedule=schedule), place, "a")
    assert line in str(problem.value) and "\n" not in str(problem.value)


def test_what_terms_draw_is_keyed_by_seed_and_epoch(place, monkeypatch):
    seen = []

    def make(options, inputs):
        def loss(student, teachers, batch):
            seen.append((batch.epoch, batch.draws.initial_seed(), tuple(batch.positions.tolist())))
            return student.logits.sum() * 0

        return loss

    monkeypatch.setitem(TERMS, "noted", Term(PktTermSettings, make, needs_teacher=False))
    trained(students(place, {"ce": CE, "noted": {"weight": 1.0}}, seed=6), place, "a")
    first, steps = seen[:3], seen[3:]  # three batches are weighed, and three are of each epoch
    assert {draws for _, draws, _ in first} == {keyed(6, "first batches", "student", "terms")}
    assert [(epoch, draws) for epoch, draws, _ in steps] == [
        (epoch, keyed(6, "terms", "distil", "student", epoch)) for epoch in (1, 2, 3) for _ in range(3)
    ]
    for epoch in range(3):
        rows = [position for _, _, own in steps[3 * epoch : 3 * epoch + 3] for position in own]
        assert sorted(rows) == list(range(40))  # places among all that it trains on
