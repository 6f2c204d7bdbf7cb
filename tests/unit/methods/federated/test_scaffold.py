"""SCAFFOLD against its own algorithm, written out client by client in float64."""

import torch

from knot_runner.methods.contract import METHODS
from tests.golden.messages import refuses
from tests.unit.methods.federated.worlds import rounds_of, settings


def test_three_rounds_follow_algorithm_1_option_2(world):
    config, federation = settings("scaffold", aggregation="uniform"), world.federation
    control = torch.zeros_like(federation.model.weights)
    own = {k: torch.zeros_like(control) for k in range(len(federation))}
    for one in rounds_of(world, config, 3):
        changes = []
        for request, result in zip(one.requests, one.trained, strict=True):
            torch.testing.assert_close(request.control, control - own[request.client], rtol=1e-13, atol=1e-15)
            moved = (one.before["weights"] - result.weights) / (result.steps * 0.1)
            changes.append(moved - control)
            own[request.client] = own[request.client] + changes[-1]
        control = control + sum(changes) / len(federation)
        torch.testing.assert_close(one.after["control"], control, rtol=1e-12, atol=1e-14)
        mean = sum(result.weights for result in one.trained) / len(one.trained)
        torch.testing.assert_close(one.after["weights"], mean, rtol=1e-13, atol=1e-15)


def test_momentum_is_refused(world):
    with refuses():
        METHODS["scaffold"].init(settings("scaffold"), world.with_training(momentum=0.5).federation)
