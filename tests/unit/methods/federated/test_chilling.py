"""Temperatures: constant, per round, per client, per sample, and the control of the rate."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.config.settings import Schedule, Stragglers
from knot_runner.engine.objectives import CrossEntropy, tempered
from knot_runner.methods.federated.averaging import local_request
from knot_runner.methods.federated.chilling import scheduled, stragglers
from tests.unit.methods.federated.worlds import rounds_of, settings


def request_of(config, federation, round=0, client=0):
    return local_request(config, federation, round, client, federation.start_of(client))


def test_schedules_by_hand():
    assert scheduled(0.25, None, 7) == 0.25
    assert scheduled(0.1, Schedule("linear", 1.0, 9), 3) == pytest.approx(0.4)
    assert scheduled(1.0, Schedule("exponential", 0.01, 10), 5) == pytest.approx(0.1)
    assert scheduled(1.0, Schedule("cosine", 0.0 + 0.5, 10), 5) == pytest.approx(0.75)
    assert [scheduled(1.0, Schedule("step", 0.05, 3), r) for r in range(5)] == [1, 1, 1, 0.05, 0.05]


@given(
    shape=st.sampled_from(["linear", "cosine", "exponential", "step"]),
    start=st.floats(0.01, 8),
    end=st.floats(0.01, 8),
    rounds=st.integers(1, 50),
    now=st.integers(0, 100),
)
def test_scheduled_stays_in_range_and_reaches_end(shape, start, end, rounds, now):
    value = scheduled(start, Schedule(shape, end, rounds), now)
    slack = 1e-9 * max(start, end)
    assert min(start, end) - slack <= value <= max(start, end) + slack
    assert now < rounds or math.isclose(value, end, rel_tol=1e-9)


def test_lr_control_moves_temperature_into_rate(world):
    def made(**chilling):
        request = request_of(settings(**chilling), world.federation)
        return request.recipe.lr, tempered(request.objective)

    assert made(temperature=0.05) == (0.1, CrossEntropy(0.05))
    assert made(temperature=0.05, lr_control=True) == (pytest.approx(2.0), CrossEntropy(1.0))
    assert made(hard_temperature=0.05) == (0.1, CrossEntropy(1.0, 0.05, per_sample_rate=False))
    both = {"temperature": 0.5, "hard_temperature": 0.05, "lr_control": True}
    assert made(**both) == (0.1, CrossEntropy(0.5, 0.05, per_sample_rate=True))


def test_recipe_holds_the_values_of_the_settings(world):
    changed = world.with_training(momentum=0.9, weight_decay=0.01, decay_biases=False, drop_last=True, lr=0.3)
    made = request_of(settings("fedprox", mu=0.5, batchnorm="frozen"), changed.federation).recipe
    assert (made.lr, made.momentum, made.weight_decay, made.batch_size) == (0.3, 0.9, 0.01, 4)
    assert (made.decay_biases, made.drop_last, made.frozen_statistics, made.proximal) == (False, True, True, 0.5)
    plain = request_of(settings(), world.federation).recipe
    assert (plain.decay_biases, plain.drop_last, plain.frozen_statistics, plain.proximal) == (True, False, False, 0.0)


def test_stragglers_form_fixed_share_training_colder_and_shorter(world):
    config = settings(stragglers=Stragglers(0.4, 0.05, 1))
    slow = stragglers(config, world.federation)
    assert len(slow) == 2 and slow == stragglers(config, world.federation)
    for client in range(5):
        request = request_of(config, world.federation, 2, client)
        assert tempered(request.objective).temperature == (0.05 if client in slow else 1.0)
        assert request.recipe.phases[0].epochs == (1 if client in slow else 2)
        as_long = request_of(settings(stragglers=Stragglers(0.4, 0.05, None)), world.federation, 2, client)
        assert as_long.recipe.phases[0].epochs == 2


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "scaffold", "fedrep", "fedper"])
def test_temperature_changes_the_training_of_every_method(deep, algorithm):
    warm, cold = (rounds_of(deep, settings(algorithm, temperature=heat))[0].after for heat in (1.0, 0.25))
    assert not torch.allclose(warm["weights"], cold["weights"])
