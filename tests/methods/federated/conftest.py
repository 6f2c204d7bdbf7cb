"""Five small clients, a linear model, and the plain loop: enough to check what a method exchanges."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from knot_runner.config.settings import FederatedSettings, FederatedTraining, MlpSettings, ServerSettings
from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.loop import Loop
from knot_runner.methods.federated.fleet import devices
from knot_runner.methods.federated.population import ClientModel, Population
from knot_runner.models.network import Network

SIZES = (8, 12, 16, 20, 24)
CLASSES = 3
SHAPE = (1, 2, 2)
TRAINING = FederatedTraining("t", 4, 3, 2, 4, 0.1, 0.0, 0.0, True, False, "stop", None, False, 1)
SERVER = ServerSettings("none", 1.0, 0.9, 0.99, 1e-3)


def settings(algorithm: str = "fedavg", **changes) -> FederatedSettings:
    """Method settings with ``changes``."""
    needed = {"fedprox": {"mu": 0.5}, "fedrep": {"head_epochs": 1}}.get(algorithm, {})
    plain = {"name": algorithm, "algorithm": algorithm, "aggregation": "weighted", "batchnorm": "averaged",
             "temperature": 1.0, "lr_control": False, "server": SERVER}  # fmt: skip
    return FederatedSettings(**{**plain, **needed, **changes})


@dataclasses.dataclass
class World:
    """A population and the engine that trains it."""

    population: Population
    engine: Loop

    def with_training(self, **changes) -> World:
        """The same clients under other training settings."""
        training = dataclasses.replace(self.population.training, **changes)
        return World(dataclasses.replace(self.population, training=training), self.engine)


@pytest.fixture(scope="module", params=[(), (5,)], ids=["linear", "hidden"])
def world(request) -> World:
    """A world of either model."""
    return make_world(list(request.param))


@pytest.fixture(scope="module")
def linear() -> World:
    """A model that is a head alone: steps can be written out by hand."""
    return make_world([])


@pytest.fixture(scope="module")
def deep() -> World:
    """A model with a body to share."""
    return make_world([5])


def make_world(hidden: list[int]) -> World:
    """Random images; float64, so that sums can be compared closely."""
    draws = torch.Generator().manual_seed(5)
    total = sum(SIZES)
    pixels = torch.rand(total, *SHAPE, generator=draws, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (total,), generator=draws)
    data = ImageData(pixels, labels, torch.zeros(1), torch.ones(1))
    network = Network(MlpSettings("mlp", "t", hidden, "logits"), SHAPE, CLASSES)
    weights, buffers = flat.initial(network, 0)
    rows = list(torch.arange(total).split(SIZES))
    population = Population(
        names=[f"c{i}" for i in range(len(SIZES))],
        train=rows,
        test=[r[:4] for r in rows],
        layout=flat.layout_of(network),
        start=ClientModel(weights.double(), buffers.double()),
        training=TRAINING,
        augment="none",
        seed=3,
    )
    return World(population, Loop(network, data, data, torch.device("cpu"), torch.float64))


@pytest.fixture
def paced(monkeypatch):
    """Seconds per example of the five clients, as a test says."""

    def pace(*seconds):
        speeds = torch.tensor([*seconds, *[1.0] * (5 - len(seconds))], dtype=torch.float64)
        monkeypatch.setattr(devices, "seconds_per_example", lambda fleet, population: speeds)

    return pace


@pytest.fixture
def failing(monkeypatch):
    """Client -> the share of its work after which it fails, in every round."""

    def fail(shares):
        found = [shares.get(client) for client in range(5)]
        monkeypatch.setattr(devices, "failures", lambda fleet, population, round: found)

    return fail
