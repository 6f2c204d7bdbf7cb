"""The distillation objective: losses and weightings against hand-computed values and an independent oracle."""

import math

import numpy as np
import pytest
import torch

from knot_runner.config.settings.methods.knot import EntropySettings, SinkhornSettings
from knot_runner.engine.objectives import ObjectiveInputs
from knot_runner.methods.losses import LOSSES, distillation
from knot_runner.transport import Solver, transport_loss

Q = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]])  # one text, two teachers
P = torch.tensor([[[0.5, 0.25, 0.25]]])
LINE = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
FORMS = {
    "kl": lambda p, q: sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)),
    "cross_entropy": lambda p, q: -sum(b * math.log2(a) for a, b in zip(p, q, strict=True)),
    "symmetric": lambda p, q: (FORMS["kl"](p, q) + FORMS["kl"](q, p)) / 2,
}


@pytest.mark.parametrize("form", FORMS)
def test_entropy_matches_formula_and_stays_finite(form):
    function, options = LOSSES["entropy"].function, EntropySettings("entropy", form)
    expected = [FORMS[form](P[0, 0].tolist(), q) for q in Q[0].tolist()]
    assert function(options, P.log(), Q, LINE)[0].tolist() == pytest.approx(expected, rel=1e-6)
    sure = [0.9996, 0.0003, 0.0001]
    found = function(options, P.double().log(), torch.tensor([[sure]], dtype=torch.float64), LINE)
    assert found.item() == pytest.approx(FORMS[form](P[0, 0].tolist(), sure), rel=1e-12)
    logits = torch.zeros(1, 1, 3, requires_grad=True)
    value = function(options, logits.log_softmax(-1), torch.eye(3)[None], LINE).sum()
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(logits.grad).all()


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


def settings(**change):
    return {
        "loss": EntropySettings("entropy", "kl"), "weighting": "D", "normalize": False, "student_temperature": 1.0,
        "teacher_temperature": 1.0, "teachers": ["a", "b"], "shares": [1 / 3, 2 / 3],
        "biases": [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], "points": LINE.tolist(), **change,
    }  # fmt: skip


def objective(logits, **change):
    return distillation(settings(**change), ObjectiveInputs(torch.zeros(len(logits["a"])), logits, lambda: None))


@pytest.mark.parametrize("weighting", ["A", "D", "U", "E"])
@pytest.mark.parametrize("normalize", [False, True])
def test_objective_is_equation_3_in_float64(weighting, normalize):
    """Against the formula (eq. 3 with KL) typed in numpy, in the precision of the models."""
    draws = torch.Generator().manual_seed(4)
    teachers = {name: torch.randn(6, 3, generator=draws, dtype=torch.float64) for name in "ab"}
    temperatures = {"teacher_temperature": 1.7, "student_temperature": 1.3}
    rows, loss = objective(teachers, weighting=weighting, normalize=normalize, **temperatures)
    student = torch.randn(6, 3, generator=draws, dtype=torch.float64)
    q = np.stack([np.exp(own.numpy() / 1.7) for own in teachers.values()], 1)
    q /= q.sum(2, keepdims=True)
    log_p = student.numpy() / 1.3 - np.log(np.exp(student.numpy() / 1.3).sum(1, keepdims=True))
    w = {
        "A": np.ones((6, 2)),
        "D": np.tile([1 / 3, 2 / 3], (6, 1)),
        "U": np.linalg.norm(q - 1 / 3, axis=2),
        "E": np.linalg.norm(q - np.array(settings()["biases"]), axis=2),
    }[weighting]
    expected = (w * (q * (np.log(q) - log_p[:, None])).sum(2)).sum(1) / (w.sum(1) if normalize else 1)
    np.testing.assert_allclose(loss(student, rows).numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("weighting", ["U", "E"])
def test_normalized_weighting_equals_mean_for_uniform_teachers(weighting):
    """Both teachers are uniform, which is also their bias: all weights are 0, and the loss is the mean of theirs."""
    uniform, biases = {name: torch.zeros(2, 3) for name in "ab"}, [[1 / 3] * 3] * 2
    rows, loss = objective(uniform, weighting=weighting, normalize=True, biases=biases)
    student = torch.log(torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]))
    by_hand = [math.log(1 / 3) - (math.log(0.5) + 2 * math.log(0.25)) / 3, 0.0]
    np.testing.assert_allclose(loss(student, rows).numpy(), by_hand, atol=1e-6)
