"""What methods whose clients keep models of their own have in common: Ditto, APFL, FedALA and FedSoup."""

import pytest
import torch

from knot_runner.methods.contract import METHODS
from tests.unit.methods.federated.plain import play
from tests.unit.methods.federated.worlds import holding_out, settings

#: (algorithm, its settings, the rounds in which its global model is FedAvg's)
CASES = [
    ("ditto", {}, 3),
    ("apfl", {"alpha": 0.5, "adaptive": True}, 3),
    ("fedala", {}, 1),
    ("fedsoup", {"start": 0.99}, 1),
]


@pytest.mark.parametrize(("algorithm", "changes", "rounds"), CASES)
def test_global_model_equals_fedavg_and_serves_untrained_clients(world, algorithm, changes, rounds):
    world, method, config = holding_out(world), METHODS[algorithm], settings(algorithm, **changes)
    state, _ = play(world, config, method, rounds)
    plain, _ = play(world, settings(), METHODS["fedavg"], rounds)
    assert torch.equal(state["weights"], plain["weights"])
    assert method.plan(config, state, world.federation, 4) == []
    state, ((requests, _, _),) = play(world, config, method, 1)
    absent = set(range(5)) - {request.client for request in requests}
    assert absent
    for client in range(5):
        own = method.deployed(config, state, world.federation, client).weights
        assert torch.equal(own, state["weights"]) is (client in absent)
        assert algorithm not in ("fedala", "fedsoup") or all(request.program is None for request in requests)
