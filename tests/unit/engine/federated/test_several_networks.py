"""Clients of several architectures in one engine: each is trained as by an engine of its own network, bit for bit."""

from dataclasses import replace
from multiprocessing import active_children

import pytest
import torch

from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.choose import make_engine
from knot_runner.engine.federated.cohort import ClientModel, Inference
from tests.unit.engine.federated.cases import FAMILIES, GREY, LINEAR, MODELS, RECIPES, cohort, images

#: The largest neither first nor last, and one with running statistics.
NETWORKS = [LINEAR, MODELS["mlp"], FAMILIES["wrn_batch"]]
DATA, TEST = images(GREY), images(GREY, 40, 1)


def hardware(engine, workers):
    return HardwareSettings("cpu", "cpu", threads=1, workers=workers, engine=engine)


def mixed():
    """Requests of all networks, in turn, with control variates."""
    own = [cohort(network, RECIPES["control"], torch.float32, seed=5) for network in NETWORKS]
    return [replace(own[place % 3][place // 3], client=place, network=place % 3) for place in range(12)]


def asked():
    found = []
    for number, network in enumerate(NETWORKS):
        model = ClientModel(*flat.initial(network, number))
        found.append(Inference(model, torch.arange(30), "train", network=number))
    return found[::-1]


def same(one, other):
    whole = torch.equal(one.weights, other.weights) and torch.equal(one.buffers, other.buffers)
    return whole and replace(one, weights=None, buffers=None) == replace(other, weights=None, buffers=None)


@pytest.mark.parametrize(("name", "workers"), [("lean", 1), ("lean", 2), ("loop", 1), ("stacked", 1)])
def test_every_client_is_trained_as_by_an_engine_of_its_own_network(name, workers):
    before = len(active_children())
    engine = make_engine(hardware(name, workers), NETWORKS[0], DATA, TEST, others=NETWORKS[1:])
    assert engine.name == name and engine.device.type == "cpu"
    assert len(active_children()) - before == (workers if workers > 1 else 0)  # whatever the number of networks
    trained, logits = engine.train(mixed()), engine.logits(asked())
    assert engine.train([]) == [] and [own.client for own in trained] == list(range(12))
    for number, network in enumerate(NETWORKS):
        alone = make_engine(hardware(name, 1), network, DATA, TEST)
        wanted = alone.train([replace(request, network=0) for request in mixed() if request.network == number])
        assert all(map(same, trained[number::3], wanted))
        (told,) = alone.logits([replace(asked()[2 - number], network=0)])
        assert torch.equal(logits[2 - number], told)
    engine.close()
