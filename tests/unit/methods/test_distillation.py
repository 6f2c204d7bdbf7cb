"""The distillation objective: losses and weightings against hand-computed values and an independent oracle."""

import math

import numpy as np
import ot
import pytest
import torch

from knot_runner.config.settings import EntropySettings, SinkhornSettings
from knot_runner.engine.objectives import ObjectiveInputs
from knot_runner.methods.losses import LOSSES, distillation
from knot_runner.methods.weighting import WEIGHTINGS
from knot_runner.transport import Solver, transport_loss
from tests.golden.messages import refuses

Q = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]])  # one text, two teachers
P = torch.tensor([[[0.5, 0.25, 0.25]]])
LINE = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
SINKHORN = {"name": "sinkhorn", "solver": "newton", "epsilon": 0.01, "tolerance": 1e-8, "scaling": 0.5}


def entropy(form, q=Q, p=P):
    return LOSSES["entropy"].function(EntropySettings("entropy", form), p.log(), q, LINE)[0]


def test_kl_by_hand():
    expected = 0.7 * math.log(0.7 / 0.5) + 0.2 * math.log(0.2 / 0.25) + 0.1 * math.log(0.1 / 0.25)
    assert float(entropy("kl")[0]) == pytest.approx(expected, rel=1e-6)


def test_cross_entropy_is_base_two():
    expected = -(0.1 * math.log2(0.5) + 0.1 * math.log2(0.25) + 0.8 * math.log2(0.25))
    assert float(entropy("cross_entropy")[1]) == pytest.approx(expected, rel=1e-6)


def test_symmetric_is_the_mean_of_both_directions():
    backward = sum(p * math.log(p / q) for p, q in zip((0.5, 0.25, 0.25), (0.7, 0.2, 0.1), strict=True))
    expected = 0.5 * (float(entropy("kl")[0]) + backward)
    assert float(entropy("symmetric")[0]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("form", ["kl", "symmetric", "cross_entropy"])
def test_one_hot_teachers_give_finite_values_and_gradients(form):
    logits = torch.zeros(1, 1, 3, requires_grad=True)
    q = torch.eye(3)[None]
    value = LOSSES["entropy"].function(EntropySettings("entropy", form), logits.log_softmax(-1), q, LINE).sum()
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(logits.grad).all()


def test_sinkhorn_is_near_the_exact_transport_cost():
    options = SinkhornSettings("sinkhorn", "newton", 1e-3, 1e-8, 0.5)
    ours = LOSSES["sinkhorn"].function(options, P.log(), Q, LINE)[0]
    cost = np.abs(np.subtract.outer(np.arange(3.0), np.arange(3.0)))
    exact = [
        ot.emd2(P[0, 0].double().numpy(), Q[0, k].double().numpy() / float(Q[0, k].double().sum()), cost)
        for k in range(2)
    ]
    np.testing.assert_allclose(ours.numpy(), exact, atol=5e-3)


@pytest.mark.parametrize("solver", ["newton", "geomloss"])
@pytest.mark.parametrize(("epsilon", "scaling"), [(0.03, 0.5), (0.5, 0.9)])
def test_sinkhorn_is_the_loss_of_its_settings(solver, epsilon, scaling):
    """Value and gradient of T(p, q), p the student's, at the epsilon, tolerance and scaling that were asked for."""
    options, p = SinkhornSettings("sinkhorn", solver, epsilon, 1e-8, scaling), P.clone().requires_grad_()
    ours = LOSSES["sinkhorn"].function(options, p.log(), Q, LINE)
    theirs = transport_loss(p, Q, LINE, Solver(solver, epsilon, 1e-8, scaling))
    assert ours.shape == (1, 2)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    gradients = (torch.autograd.grad(value.sum(), p)[0] for value in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_weightings_by_hand():
    shares, biases = torch.tensor([0.25, 0.75]), torch.tensor([[0.7, 0.2, 0.1], [0.8, 0.1, 0.1]])
    assert WEIGHTINGS["A"](Q, shares, None).tolist() == [[1, 1]]
    assert WEIGHTINGS["D"](Q, shares, None).tolist() == [[0.25, 0.75]]
    uniform = [math.dist(row, [1 / 3] * 3) for row in Q[0].tolist()]
    assert WEIGHTINGS["U"](Q, shares, None)[0].tolist() == pytest.approx(uniform)
    confidence = WEIGHTINGS["E"](Q, shares, biases)[0].tolist()
    assert confidence == pytest.approx([0, math.dist([0.1, 0.1, 0.8], [0.8, 0.1, 0.1])], abs=1e-6)


def settings(**change):
    return {
        "loss": {"name": "entropy", "form": "kl"}, "weighting": "D", "normalise": False, "student_temperature": 1.0,
        "teacher_temperature": 1.0, "teachers": ["a", "b"], "shares": [0.25, 0.5], "biases": None,
        "points": LINE.tolist(), **change,
    }  # fmt: skip


def teacher_logits():
    tensors = {name: Q[:, k].log() for k, name in enumerate("ab")}
    return ObjectiveInputs(torch.tensor([-1]), tensors, start_logits=None)


@pytest.mark.parametrize(("normalise", "divisor"), [(False, 1.0), (True, 0.75)])
def test_equation_3_sums_weighted_costs(normalise, divisor):
    rows, loss = distillation(settings(normalise=normalise), teacher_logits())
    value = loss(P[:, 0].log(), rows)
    expected = (0.25 * entropy("kl")[0] + 0.5 * entropy("kl")[1]) / divisor
    assert float(value) == pytest.approx(float(expected), rel=1e-5)


def test_temperatures_flatten_their_side():
    rows, _ = distillation(settings(teacher_temperature=2.0), teacher_logits())
    expected = torch.softmax(Q.log() / 2, dim=-1)
    torch.testing.assert_close(rows["targets"], expected)
    logits = torch.tensor([[3.0, 0.0, -3.0]])
    plain, tempered = (
        distillation(settings(student_temperature=t), teacher_logits())[1](logits * t, rows) for t in (1.0, 4.0)
    )
    torch.testing.assert_close(plain, tempered)


EVERY_LOSS = [
    *({"name": "entropy", "form": form} for form in ("kl", "symmetric", "cross_entropy")),
    *({**SINKHORN, "solver": solver} for solver in ("newton", "geomloss", "exact", "line")),
]


@pytest.mark.parametrize("loss", EVERY_LOSS, ids=lambda loss: loss.get("form") or loss["solver"])
def test_gradient_descent_on_the_loss_reaches_a_lone_teacher(loss):
    rows, objective = distillation(settings(loss=loss, weighting="A", teachers=["a"], shares=[1.0]), teacher_logits())
    logits = torch.zeros(1, 3, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        objective(logits, rows).sum().backward()
        optimiser.step()
    torch.testing.assert_close(logits.softmax(1), Q[:, 0], atol=0.05, rtol=0)


def test_an_option_of_another_loss_is_refused():
    with refuses():
        distillation(settings(loss={"name": "entropy", "form": "kl", "epsilon": 1.0}), teacher_logits())


@pytest.mark.parametrize("weighting", ["A", "D", "U", "E"])
@pytest.mark.parametrize("normalise", [False, True])
def test_float64_targets_are_not_rounded(weighting, normalise):
    """Against the formula (eq. 3 with KL) typed in numpy, in the precision of the models."""
    draws = torch.Generator().manual_seed(4)
    teachers = {name: torch.randn(6, 3, generator=draws, dtype=torch.float64) for name in "ab"}
    shares, biases = [1 / 3, 2 / 3], [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]
    settings = {
        "loss": {"name": "entropy", "form": "kl"}, "weighting": weighting, "normalise": normalise,
        "teachers": ["a", "b"], "student_temperature": 1.0, "teacher_temperature": 1.7, "shares": shares,
        "biases": biases, "points": LINE.tolist(),
    }  # fmt: skip
    rows, loss = distillation(settings, ObjectiveInputs(torch.zeros(6), teachers, lambda: None))
    student = torch.randn(6, 3, generator=draws, dtype=torch.float64)
    q = np.stack([np.exp(own.numpy() / 1.7) for own in teachers.values()], 1)
    q /= q.sum(2, keepdims=True)
    log_p = student.numpy() - np.log(np.exp(student.numpy()).sum(1, keepdims=True))
    reference = {"U": np.full((2, 3), 1 / 3), "E": np.array(biases)}.get(weighting)
    fixed = {"A": np.ones((6, 2)), "D": np.tile(shares, (6, 1))}.get(weighting)
    w = np.linalg.norm(q - reference, axis=2) if fixed is None else fixed
    expected = (w * (q * (np.log(q) - log_p[:, None])).sum(2)).sum(1) / (w.sum(1) if normalise else 1)
    np.testing.assert_allclose(loss(student, rows).numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("weighting", ["U", "E"])
def test_normalized_weights_of_teachers_at_their_reference_are_equal(weighting):
    """Both teachers are uniform, which is also their bias: all weights are 0, and the loss is the mean of theirs."""
    uniform = {name: torch.zeros(2, 3) for name in "ab"}
    settings = {
        "loss": {"name": "entropy", "form": "kl"}, "weighting": weighting, "normalise": True, "teachers": ["a", "b"],
        "student_temperature": 1.0, "teacher_temperature": 1.0, "shares": [0.5, 0.5], "biases": [[1 / 3] * 3] * 2,
        "points": LINE.tolist(),
    }  # fmt: skip
    rows, loss = distillation(settings, ObjectiveInputs(torch.zeros(2), uniform, lambda: None))
    student = torch.log(torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]))
    by_hand = [math.log(1 / 3) - (math.log(0.5) + 2 * math.log(0.25)) / 3, 0.0]
    np.testing.assert_allclose(loss(student, rows).numpy(), by_hand, atol=1e-6)
