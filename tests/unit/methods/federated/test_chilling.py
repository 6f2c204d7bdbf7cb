"""Temperatures: constant, per round, per client, per sample, and the control of the rate."""

from dataclasses import replace

import pytest

from knot_runner.config.settings.methods.federated import Schedule, Stragglers
from knot_runner.config.settings.methods.server_distillation import ServerDistillation
from knot_runner.engine.federated.cohort import Phase
from knot_runner.engine.objectives import CrossEntropy, tempered
from knot_runner.methods.around.server_distillation import _recipe
from knot_runner.methods.federated.averaging import local_request
from knot_runner.methods.federated.chilling import scheduled, stragglers
from tests.unit.methods.federated.worlds import assert_alike, settings


def request_of(config, federation, round=0, client=0):
    return local_request(config, federation, round, client, federation.start_of(client))


def test_schedules_by_hand():
    assert scheduled(0.25, None, 7) == 0.25
    assert scheduled(0.1, Schedule("linear", 1.0, 9), 3) == pytest.approx(0.4)
    assert scheduled(1.0, Schedule("exponential", 0.01, 10), 5) == pytest.approx(0.1)
    assert scheduled(1.0, Schedule("cosine", 0.0 + 0.5, 10), 5) == pytest.approx(0.75)
    assert [scheduled(1.0, Schedule("step", 0.05, 3), r) for r in range(5)] == [1, 1, 1, 0.05, 0.05]
    for shape in ("linear", "cosine", "exponential", "step"):
        assert [scheduled(0.3, Schedule(shape, 8.0, 5), round) for round in (0, 5, 6, 40)] == pytest.approx(
            [0.3, 8, 8, 8]
        )


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
    changes = {"momentum": 0.9, "weight_decay": 0.01, "decay_biases": False, "drop_last": True, "lr": 0.3}
    changed = world.with_training(**changes, local_epochs=3, batch_size=7)
    made = request_of(settings("fedprox", mu=0.5, batchnorm="frozen"), changed.federation).recipe
    assert_alike(made, changed.federation.training, 7)
    assert (made.frozen_statistics, made.proximal, made.phases) == (True, 0.5, (Phase(3),))
    world = world.with_training(optimizer="adamw")
    plain = request_of(settings(), world.federation).recipe
    assert_alike(plain, world.federation.training, 7)
    assert (plain.frozen_statistics, plain.proximal) == (False, 0.0)


def test_server_recipe_holds_the_values_of_the_settings():
    made = {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.01, "batch_size": 7, "check": 5, "patience": 11, "epochs": 3}
    spec = ServerDistillation(None, "A", "logits", False, 1.0, 1.0, steps=None, optimizer="sgd", after=0, every=1,
                              bias=None, schedule="cosine", valid=0.1, **made)  # fmt: skip
    recipe = _recipe(settings(batchnorm="frozen"), spec)
    assert_alike(recipe, spec, 7)
    assert (recipe.phases, recipe.cosine, recipe.frozen_statistics) == ((Phase(3),), True, True)
    assert _recipe(settings(), replace(spec, steps=4, schedule="constant")) == replace(
        recipe, phases=(Phase(1),), cosine=False, frozen_statistics=False
    )


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
