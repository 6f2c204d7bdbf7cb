"""SCAFFOLD against its own algorithm, written out client by client in float64."""

import torch

from knot_runner.methods.contract import METHODS
from tests.golden.messages import refuses
from tests.unit.methods.federated.conftest import settings


def test_three_rounds_follow_algorithm_1_option_2(world):
    hp, method, federation = settings("scaffold", aggregation="uniform"), METHODS["scaffold"], world.federation
    state = method.init(hp, federation)
    control = torch.zeros_like(state["weights"])
    own = {k: torch.zeros_like(control) for k in range(len(federation))}
    for round in range(3):
        requests = method.plan(hp, state, federation, round)
        for request in requests:
            torch.testing.assert_close(request.control, control - own[request.client], rtol=1e-13, atol=1e-15)
        trained = world.engine.train(requests)
        start = state["weights"]
        state, _ = method.fold(hp, state, federation, round, requests, trained)
        changes = []
        for request, result in zip(requests, trained, strict=True):
            new = own[request.client] - control + (start - result.weights) / (result.steps * 0.1)
            changes.append(new - own[request.client])
            own[request.client] = new
        control = control + sum(changes) / len(federation)
        torch.testing.assert_close(state["control"], control, rtol=1e-12, atol=1e-14)
        mean = sum(result.weights for result in trained) / len(trained)
        torch.testing.assert_close(state["weights"], mean, rtol=1e-13, atol=1e-15)


def test_a_client_control_is_its_mean_corrected_gradient(world):
    """With one step a client, (w - w_k) / lr is the corrected gradient itself, so c_k becomes its plain gradient."""
    small = world.with_training(epochs=1, batch=24, small_clients="allow", participants=5)
    hp, method, federation = settings("scaffold"), METHODS["scaffold"], small.federation
    state = method.init(hp, federation)
    for round in range(2):
        start = state["weights"]
        requests = method.plan(hp, state, federation, round)
        state, _ = method.fold(hp, state, federation, round, requests, small.engine.train(requests))
        plain = METHODS["fedavg"].plan(settings(), {**state, "weights": start}, federation, round)
        for result in small.engine.train(plain):
            gradient = (start - result.weights) / 0.1
            torch.testing.assert_close(state[f"control/{result.client}"], gradient, rtol=1e-9, atol=1e-12)


def test_momentum_is_refused(world):
    with refuses():
        METHODS["scaffold"].init(settings("scaffold"), world.with_training(momentum=0.5).federation)
