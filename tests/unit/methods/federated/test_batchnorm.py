"""Running statistics: averaged, kept by each client, or frozen."""

import pytest
import torch

from knot_runner.config.settings import ResnetSettings
from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel
from knot_runner.engine.federated.loop import Loop
from knot_runner.methods.contract import METHODS
from knot_runner.models.network import Network
from tests.unit.methods.federated.conftest import World, settings, with_network


@pytest.fixture(scope="module")
def normed(world):
    """The same clients with a small ResNet on 8x8 images."""
    shape = (1, 8, 8)
    pixels = torch.rand(80, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data = ImageData(pixels, world.engine.data.labels, torch.zeros(1), torch.ones(1))
    network = Network(ResnetSettings("resnet", "r", [1, 1], 4, "cifar", "batch", 1), shape, 3)
    start = ClientModel(*(vector.double() for vector in flat.initial(network, 0)))
    federation = with_network(world.federation, network, start)
    return World(federation, Loop(network, data, data, torch.device("cpu"), torch.float64))


@pytest.mark.parametrize("how", ["averaged", "local", "frozen"])
def test_where_the_statistics_go(normed, how):
    hp, method, federation = settings(batchnorm=how), METHODS["fedavg"], normed.federation
    start = state = method.init(hp, federation)
    for round in range(2):
        requests = method.plan(hp, state, federation, round)
        for request in requests:
            own = state.get(f"buffers/{request.client}")
            assert torch.equal(request.start.buffers, state["buffers"] if own is None else own)
        trained = normed.engine.train(requests)
        before, (state, _) = state, method.fold(hp, state, federation, round, requests, trained)
    mean = sum(len(r.rows) * t.buffers for r, t in zip(requests, trained, strict=True))
    mean = mean / sum(len(r.rows) for r in requests)
    torch.testing.assert_close(state["buffers"], mean, rtol=1e-13, atol=1e-15)
    assert not torch.equal(state["weights"], start["weights"])
    if how == "frozen":
        assert torch.equal(state["buffers"], start["buffers"])
    else:
        assert not torch.equal(state["buffers"], start["buffers"])
    kept = [key for key in state if key.startswith("buffers/")]
    assert (len(kept) >= 3) == (how == "local")
    for result in trained:
        model = method.deployed(hp, state, federation, result.client)
        assert torch.equal(model.buffers, result.buffers if how == "local" else state["buffers"])
    assert before is not state


@pytest.mark.parametrize("how", ["averaged", "local"])
def test_statistics_of_a_last_round_of_heads_stay_where_they_are_kept(normed, how):
    """The server's stay as they are; a client's own are those that its head was trained with."""
    hp, method = settings("fedper", batchnorm=how, final_head_epochs=1), METHODS["fedper"]
    federation = normed.federation
    start = method.init(hp, federation)
    requests = method.plan(hp, start, federation, federation.training.rounds)
    trained = normed.engine.train(requests)
    state, _ = method.fold(hp, start, federation, federation.training.rounds, requests, trained)
    assert torch.equal(state["buffers"], start["buffers"])
    for result in trained:
        assert not torch.equal(result.buffers, start["buffers"])
        wanted = result.buffers if how == "local" else start["buffers"]
        assert torch.equal(method.deployed(hp, state, federation, result.client).buffers, wanted)
