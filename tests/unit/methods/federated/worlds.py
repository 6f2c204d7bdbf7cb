"""Five small clients, a linear model, and the plain loop: enough to check what a method exchanges."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from knot_runner.config.settings.families import METHOD_SETTINGS
from knot_runner.config.settings.methods.algorithms import LabelDistillation, LatentGenerator
from knot_runner.config.settings.methods.federated import (
    AveragingSettings,
    FederatedSettings,
    FederatedTraining,
    ServerSettings,
)
from knot_runner.config.settings.networks import MlpSettings, ResnetSettings
from knot_runner.config.settings.text_tasks import Labels
from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining
from knot_runner.engine.federated.loop import Loop
from knot_runner.methods.around.fleet import devices
from knot_runner.methods.around.privacy import UserPrivacy, clip, reduce
from knot_runner.methods.around.server_distillation import with_distillation
from knot_runner.methods.contract import METHODS, Method, RoundMethod
from knot_runner.methods.federation import Federation
from knot_runner.methods.messages import in_rounds
from knot_runner.methods.party import Architecture, Party
from knot_runner.models.network import Network

SIZES = (8, 12, 16, 20, 24)
CLASSES = 3
SHAPE = (1, 2, 2)
TRAINING = FederatedTraining("t", 4, 3, 2, 4, 0.1, 0.0, 0.0, True, False, "stop", None, False, 1, "sgd")
SERVER = ServerSettings("none", 1.0, 0.9, 0.99, 1e-3)


def spec_of(**changes) -> LatentGenerator:
    """FedGen's generator with ``changes``."""
    plain = {"alpha": 2.0, "beta": 3.0, "decay": 0.5, "noise": 3, "hidden": 7, "steps": 4, "batch_size": 9, "lr": 0.01,
             "weight_decay": 0.1, "diversity": 0.6}  # fmt: skip
    return LatentGenerator(**{**plain, **changes})


#: Settings that an algorithm does not go without.
NEEDED = {
    "fedprox": {"mu": 0.5},
    "fedrep": {"head_epochs": 1, "final_head_epochs": 0, "first_head": "own"},
    "fedper": {"final_head_epochs": 0, "first_head": "own"},
    "ditto": {"lambda_": 0.5},
    "apfl": {"alpha": 0.5, "adaptive": True},
    "fedala": dict(layers=1, share=1.0, rate=1.0, threshold=0.1, window=10, max_epochs=3, deployed="trained"),
    "fedsoup": {"start": 0.0},
    "fedgen": {"generator": spec_of()},
    "feddistill": {"labels": LabelDistillation(0.7, 2.0)},
}


def settings(algorithm: str = "fedavg", **changes) -> FederatedSettings:
    """Method settings with ``changes``."""
    cls, needed = METHOD_SETTINGS.get(algorithm, AveragingSettings), NEEDED.get(algorithm, {})
    plain = {"name": algorithm, "algorithm": algorithm, "aggregation": "weighted", "batchnorm": "averaged",
             "temperature": 1.0, "lr_control": False}  # fmt: skip
    if issubclass(cls, AveragingSettings):
        plain["server"] = SERVER
    return cls(**{**plain, **needed, **changes})


def assert_alike(recipe, chosen, count: int) -> None:
    """Check that a recipe and settings agree in all keys that both have: ``count`` keys."""
    shared = {field.name for field in dataclasses.fields(recipe)} & {field.name for field in dataclasses.fields(chosen)}
    assert len(shared) == count, shared
    assert {key: getattr(recipe, key) for key in shared} == {key: getattr(chosen, key) for key in shared}


@dataclasses.dataclass
class World:
    """A federation and the engine that trains it."""

    federation: Federation
    engine: Loop

    def with_training(self, **changes) -> World:
        """The same clients under other training settings."""
        training = dataclasses.replace(self.federation.training, **changes)
        return World(dataclasses.replace(self.federation, training=training), self.engine)


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


def with_rows(federation: Federation, **rows) -> Federation:
    """``federation`` of which each client has other ``rows`` of a split."""
    clients = []
    for number, client in enumerate(federation.clients):
        clients.append(dataclasses.replace(client, **{split: own[number] for split, own in rows.items()}))
    return dataclasses.replace(federation, clients=tuple(clients))


def holding_out(world: World, share: int = 3) -> World:
    """The world with every so many of a client's examples held out."""
    rows = world.federation.rows("train")
    valid, train = [own[::share] for own in rows], [own[torch.arange(len(own)) % share != 0] for own in rows]
    return dataclasses.replace(world, federation=with_rows(world.federation, train=train, valid=valid))


def with_network(federation: Federation, network: Network, start: ClientModel) -> Federation:
    """``federation`` whose clients all have ``network`` and begin with ``start``."""
    return dataclasses.replace(federation, architectures=(Architecture(network, flat.layout_of(network), start),))


def normed_world(world: World) -> World:
    """The same clients with a small ResNet on random 8 x 8 images, which has running statistics."""
    shape = (1, 8, 8)
    pixels = torch.rand(sum(SIZES), *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data = ImageData(pixels, world.engine.data.labels, torch.zeros(1), torch.ones(1))
    network = Network(ResnetSettings("resnet", "r", [1, 1], 4, "cifar", "batch", 1), shape, CLASSES)
    start = ClientModel(*(vector.double() for vector in flat.initial(network, 0)))
    federation = with_network(world.federation, network, start)
    return World(federation, Loop(network, data, data, torch.device("cpu"), torch.float64))


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
    start = ClientModel(weights.double(), buffers.double())
    federation = Federation(
        clients=tuple(Party(f"c{i}", r, r[:4]) for i, r in enumerate(rows)),
        labels=Labels(["a", "b", "c"], [[0.0], [1.0], [3.0]], "semantic"),
        training=TRAINING,
        seed=3,
        architectures=(Architecture(network, flat.layout_of(network), start),),
        train_labels=labels,
    )
    return World(federation, Loop(network, data, data, torch.device("cpu"), torch.float64))


@dataclasses.dataclass
class Round:
    """The state ``before`` a round, ``folded`` without an exchange, and ``after`` it; ``asked``: its requests."""

    before: dict
    requests: list
    trained: list
    folded: dict
    after: dict
    row: dict
    asked: list
    distillation = property(lambda self: [one for one in self.asked if isinstance(one, LocalTraining)])


def method_of(config: FederatedSettings, method: Method | RoundMethod | None = None) -> RoundMethod:
    """The method of ``config``, or ``method``, as the loop of rounds carries it out."""
    method = METHODS[config.algorithm] if method is None else method
    return method if isinstance(method, RoundMethod) else in_rounds(with_distillation(method, config), config)


def sampled(world: World, spec: UserPrivacy) -> World:
    """``world`` whose clients are drawn as ``spec`` says."""
    federation = dataclasses.replace(world.federation, sampling=spec.sampling)
    return World(federation, world.engine).with_training(clients_per_round=spec.participants)


class Unaccounted(UserPrivacy):
    """A mechanism whose noise needs no accountant, because nobody asks for its epsilon."""

    def epsilon(self, rounds: int) -> None:
        """Unknown."""


def private(config: FederatedSettings, federation: Federation, privacy: UserPrivacy) -> Method:
    """The method of ``config``, whose messages ``privacy`` clips and covers by noise as in a private run."""
    method = with_distillation(METHODS[config.algorithm], config)
    exchange = method.exchange and method.exchange(config)
    return dataclasses.replace(
        method,
        fold_each=None,
        exchange=exchange and (lambda config: dataclasses.replace(exchange, reads="mean")),
        send=lambda sent, phase: clip(privacy, method.send(sent, phase), phase),
        reduce=functools.partial(reduce, privacy, federation.seed, method.fold is not None),
    )


def rounds_of(world: World, config: FederatedSettings, count=1, method=None, state=None, first=0) -> list[Round]:
    """``count`` rounds from round ``first`` on, without commits; ``method``: that of ``config``, if None."""
    federation, engine, whole = world.federation, world.engine, method_of(config, method)
    if not isinstance(method, RoundMethod):
        method = with_distillation(method or METHODS[config.algorithm], config)
    state, actual = whole.init(config, federation) if state is None else state, []
    for round in range(first, first + count):
        requests = whole.plan(config, state, federation, round)
        trained = engine.train(requests) if requests else []
        inputs = config, state, federation, round, requests, trained, engine
        after, row, asked = whole.fold(*inputs)
        exchanges = getattr(method, "exchange", None)
        folded = in_rounds(dataclasses.replace(method, exchange=None), config).fold(*inputs)[0] if exchanges else after
        actual.append(Round(state, requests, trained, folded, after, row, asked))
        state = after
    return actual


@pytest.fixture
def paced(monkeypatch):
    """Seconds per example of the five clients, as a test says."""

    def pace(*seconds):
        speeds = torch.tensor([*seconds, *[1.0] * (5 - len(seconds))], dtype=torch.float64)
        monkeypatch.setattr(devices, "seconds_per_example", lambda fleet, federation: speeds)

    return pace


@pytest.fixture
def failing(monkeypatch):
    """Client -> the share of its work after which it fails, in every round."""

    def fail(shares):
        actual = [shares.get(client) for client in range(5)]
        monkeypatch.setattr(devices, "failures", lambda fleet, federation, round: actual)

    return fail
