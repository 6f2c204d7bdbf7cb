"""Weights of loss terms and their first ratios, what a term draws, and terms that fit no network."""

import pytest
import torch
import torch.nn.functional as F

from knot_runner.config.settings.methods.terms import PktTermSettings
from knot_runner.engine.seeds import generator, keyed
from knot_runner.methods.distil.students import Students
from knot_runner.methods.distil.term import TERMS, Term
from tests.golden.messages import refuses
from tests.oracles.methods.distil_loops import frozen_model, pixels, softened, started, trained
from tests.unit.methods.distil_requests import (
    CE,
    CNN,
    WIDE,
    assert_same_bits,
    make_place,
    put_teacher,
    silent,
    students,
)


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path)


def first_values(place, teacher):
    """Mean cross-entropy and softened KL on the first batches, by hand."""
    x, y = pixels(place, "train")
    order = torch.randperm(40, generator=generator(5, "first batches", "student"))
    student, model = started("student"), frozen_model(place, teacher)
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
    ce, kd = first_values(place, teacher)
    assert facts["terms"]["ce"] == {"weight": 0.5, "ratio": pytest.approx(0.5, rel=1e-5)}
    assert facts["terms"]["kd"] == {"weight": pytest.approx(3 * ce / kd, rel=1e-4), "ratio": pytest.approx(3.0)}
    typed = students(place, {**terms, "kd": {"weight": facts["terms"]["kd"]["weight"], "tau": 2.0}}, [teacher])
    assert_same_bits(trained(typed, place, "b")[0], trained(request, place, "c")[0])


def test_weighing_leaves_memories_as_they_are(place):
    """A memory that moved before the first step would make a term depend on whether its ratio was measured."""
    teacher = put_teacher(place, WIDE, 1)
    request = students(place, {"ce": CE, "crd": {"weight": 1.0, "dim": 4}}, [teacher], CNN)
    made = Students(request, place, silent)
    after = {name: tensor.clone() for name, tensor in made.losses[0].state_dict().items()}
    torch.manual_seed(keyed(5, "adapters", "student"))
    made._make_losses(made.losses[0].specs)
    assert after and all(torch.equal(after[name], tensor) for name, tensor in made.losses[0].state_dict().items())


@pytest.mark.parametrize(("terms", "schedule"), [
    ({"kd": {"weight": "auto"}}, {"kind": "average"}), ({"kd": {"weight": 1.0}}, {"kind": "offline"}),
    ({"kx": {"weight": 1.0}}, {"kind": "offline"}), ({"at": {"weight": 1.0}}, {"kind": "snapshot"}),
    ({"hint": {"weight": 1.0, "taps": [["layer9", "layer1"]]}}, {"kind": "snapshot"}),
    ({"hint": {"weight": 1.0, "taps": [["layer1", "nix"]]}}, {"kind": "snapshot"}),
])  # fmt: skip
def test_terms_that_do_not_fit_are_refused(place, terms, schedule):
    with refuses():
        trained(students(place, terms, schedule=schedule), place, "a")


def test_draws_of_terms_are_keyed_by_seed_and_epoch(place, monkeypatch):
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
