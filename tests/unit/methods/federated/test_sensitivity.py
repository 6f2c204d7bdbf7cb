"""What one client can change of what a private server reads, of every method: the property that epsilon stands on."""

import dataclasses
import math
import runpy

import pytest
import torch

from knot_runner.config.settings.methods.algorithms import FEDERATED_ALGORITHMS
from knot_runner.methods.around.compression import compressed
from knot_runner.methods.federation import ServerExamples
from knot_runner.methods.messages import in_rounds
from tests.feddf_runs import TRANSFER, distill
from tests.tiny import EXAMPLES
from tests.unit.methods.federated import worlds
from tests.unit.methods.federated.worlds import CLASSES, World, holding_out, rounds_of, sampled, settings

#: Bounds and scales of the property below.
C, Z, B, EXPECTED = 0.3, 0.7, 0.2, 4
FIRST = {"update": 1.0, "steps": 1.0, "control": 0.8, "labels": 0.6}
SECOND = {"logits": 1.0, "labels": 1.0, "present": B}
#: What clients do not send, nothing can be private of.
SENDING = sorted(FEDERATED_ALGORITHMS.keys() - {"local"})
DISTILLING = ("fedmd", "distilled fedavg")


def sending(world, algorithm, z):
    """(Settings, a world of five clients of which four were expected, its private method, what its server reads)."""
    changes = {"server_distillation": distill(ensemble="logits")} if algorithm in DISTILLING else {}
    changes |= {"top_k": 0.1} if algorithm == "compressed fedavg" else {}
    config = settings(algorithm.split()[-1], aggregation="uniform", **changes)
    spec = worlds.Unaccounted(clip_norm=C, noise_multiplier=z, sampling="poisson", participants=EXPECTED, clients=5,
                   clip_logits=B, scales=(("control", FIRST["control"]), ("labels", FIRST["labels"])))  # fmt: skip
    whole = sampled(holding_out(world), spec).with_training(small_clients="allow")
    federation = dataclasses.replace(
        whole.federation, server=ServerExamples(torch.arange(0, 40), TRANSFER, TRANSFER[:0])
    )
    federation = dataclasses.replace(federation, chosen=(0, 1, 2, 3, 4))
    method, read = worlds.private(config, federation, spec), []
    if getattr(config, "top_k", None):
        method = compressed(method, config.top_k)

    def reading(round, phase, sent, empty):
        mean, row = method.reduce(round, phase, sent, empty)
        if mean:
            read.append((phase, mean))
        return mean, row

    return config, World(federation, whole.engine), in_rounds(dataclasses.replace(method, reduce=reading), config), read


def scaled(phase, mean):
    """All parts of a mean as the vector whose norm is bounded."""
    scales = FIRST if phase == 1 else SECOND
    return torch.cat([scales[name] * part.flatten() for name, part in mean.items()])


def limit(phase, mean):
    """The largest norm of a client's message of such parts."""
    rows = len(TRANSFER) if "logits" in mean else 2 * CLASSES
    return C if phase == 1 else B * math.sqrt(rows)


def with_other(federation, requests, trained, client, factor):
    """(Federation, requests, outcomes) in which ``client`` has trained something else, on other labels."""
    labels = federation.train_labels.clone()
    labels[federation.clients[client].train] = 1
    other = list(trained)
    for index, result in enumerate(trained):
        if result.client == client:
            changed = factor * result.weights.flip(0)
            other[index] = dataclasses.replace(result, weights=changed, steps=result.steps + 5)
    return dataclasses.replace(federation, train_labels=labels), requests, other


@pytest.mark.parametrize(("algorithm", "factor"), [
    *((name, 1e4) for name in (*SENDING, "distilled fedavg", "compressed fedavg", "fednova")),
    ("fedavg", 1e-2), ("fedmd", 1e-2),
])  # fmt: skip
def test_reduce_bounds_sensitivity_to_one_client(deep, algorithm, factor):
    """A client that is replaced moves the mean by 2 C over the expected number, one that is left out by C, at most."""
    runpy.run_path(str(EXAMPLES / "fednova.py"))
    config, world, method, read = sending(deep, algorithm, Z)
    federation, client = world.federation, 2
    state = rounds_of(world, config, 1, method)[-1].after
    requests = method.plan(config, state, federation, 1)
    trained = world.engine.train(requests)

    def served(federation, requests, trained):
        read.clear()
        method.fold(config, state, federation, 1, requests, trained, world.engine)
        return list(read)

    whole = served(federation, requests, trained)
    other = served(*with_other(federation, requests, trained, client, factor))
    rest = [index for index, one in enumerate(requests) if one.client != client]
    without = served(federation, [requests[index] for index in rest], [trained[index] for index in rest])
    assert len(whole) == (2 if algorithm == "distilled fedavg" else 1)
    for (phase, mean), (_, replaced), (_, less) in zip(whole, other, without, strict=True):
        bound = limit(phase, mean)
        moved = float((scaled(phase, replaced) - scaled(phase, mean)).norm())
        assert 0 < moved <= 2 * bound / EXPECTED * (1 + 1e-9)
        assert 0 < EXPECTED * float((scaled(phase, mean) - scaled(phase, less)).norm()) <= bound * (1 + 1e-9)
        assert float(scaled(phase, mean).norm()) > 0
