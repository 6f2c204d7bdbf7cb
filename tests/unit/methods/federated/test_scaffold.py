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


def test_scaffold_control_equals_plain_gradient_after_one_step(world):
    """With one step a client, (w - w_k) / lr is the corrected gradient itself, so c_k becomes its plain gradient."""
    small = world.with_training(local_epochs=1, batch_size=24, small_clients="allow", clients_per_round=5)
    for round, one in enumerate(rounds_of(small, settings("scaffold"), 2)):
        plain = METHODS["fedavg"].plan(settings(), one.before, small.federation, round)
        for result in small.engine.train(plain):
            gradient = (one.before["weights"] - result.weights) / 0.1
            torch.testing.assert_close(one.after[f"client/{result.client}/control"], gradient, rtol=1e-9, atol=1e-12)


def test_momentum_is_refused(world):
    with refuses():
        METHODS["scaffold"].init(settings("scaffold"), world.with_training(momentum=0.5).federation)
