"""What Theorem 5.2 promises, on planted classes of functions whose truth is known."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.methods.bound import (
    bernstein,
    hoeffding,
    label_diameter,
    second_term,
    third_term,
    transport_losses,
)
from tests.unit.methods.bound_rows import points_of, rows

RESAMPLINGS, DELTA = 1000, 0.05


def planted(functions, population=300, seed=10):
    """Losses [H, P] and logits [H, P, C] of a finite class on a finite population whose expectations are known."""
    draws, points = np.random.default_rng(seed), points_of("sa")
    q = rows(draws, population, 5, 0.2)
    logits = torch.from_numpy(draws.normal(size=(functions, population, 5)))
    weights = torch.ones(population, 1)
    losses = [transport_losses(one.softmax(1), q[:, None], weights, points).numpy() for one in logits]
    return SimpleNamespace(losses=np.array(losses), logits=logits.numpy(), draws=draws, diameter=label_diameter(points))


def test_the_sharp_bound_fails_no_more_often_than_it_says():
    """For all eight functions of the class at once, over 1,000 samples of 60 texts."""
    world, texts = planted(8), 60
    samples = world.draws.integers(300, size=(RESAMPLINGS, texts))
    signs = world.draws.choice([-1.0, 1.0], size=(RESAMPLINGS, texts))
    sups = np.einsum("rn,hrnc->rhc", signs, world.logits[:, samples]).max(1) / texts  # [R, C]
    complexity = float(sups.mean())
    gaps = (world.losses.mean(1)[:, None] - world.losses[:, samples].mean(2)).max(0)  # [R], worst function
    allowed = second_term("sharp", 5, world.diameter, complexity) + third_term("sharp", 5, world.diameter, texts, DELTA)
    assert (gaps > allowed).sum() <= DELTA * RESAMPLINGS
    assert gaps.mean() > 0  # the class does overfit


def test_the_third_term_is_nearly_needed():
    """One function, so no complexity, whose loss is 0 or C_M: its bound fails rarely, and half of it far too often."""
    texts, losses = 60, np.array([0.0, 4.0])
    samples = losses[np.random.default_rng(12).integers(2, size=(RESAMPLINGS, texts))].mean(1)
    allowed = third_term("sharp", 5, 4.0, texts, DELTA)
    assert 0 < (2.0 - samples > allowed).sum() <= DELTA * RESAMPLINGS < (2.0 - samples > allowed / 2).sum()


@pytest.mark.parametrize("function", [hoeffding, bernstein])
def test_held_out_bounds_fail_no_more_often_than_they_say(function):
    """The best of eight checkpoints on the held-out texts themselves."""
    world, texts = planted(8, seed=11), 40
    expected, failed, tight = world.losses.mean(1), 0, []
    for sample in world.draws.integers(300, size=(RESAMPLINGS, texts)):
        best = world.losses[:, sample].mean(1).argmin()
        bound = function(world.losses[best, sample], world.diameter, 8, DELTA)
        failed += expected[best] > bound.total
        tight.append(bound.total - bound.first)
    assert failed <= DELTA * RESAMPLINGS and np.mean(tight) < world.diameter


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.integers(0, 10**6))
def test_proposition_b1(shares, seed):
    """||p - B||_2 is largest over the simplex at the corner of the least B, where it is sqrt(1 - 2 min B + ||B||^2)."""
    bias = np.array(shares) / sum(shares)
    most = math.sqrt(1 - 2 * bias.min() + bias @ bias)
    corners = np.linalg.norm(np.eye(len(bias)) - bias, axis=1)
    assert corners.argmax() == bias.argmin() or corners.max() == pytest.approx(corners[bias.argmin()])
    assert corners.max() == pytest.approx(most)
    others = np.random.default_rng(seed).dirichlet(np.full(len(bias), 0.3), 50)
    assert np.linalg.norm(others - bias, axis=1).max() <= most + 1e-12
