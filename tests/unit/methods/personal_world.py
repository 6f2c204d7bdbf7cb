"""Five small clients after the rounds of FedAvg, for personalization: each with training and held-out examples."""

import dataclasses

import torch

from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel
from knot_runner.methods.party import Party
from knot_runner.methods.personalization.contract import PersonalFederation
from tests.unit.methods.federated.worlds import make_world, settings, with_network, with_rows


def perturbed(model, seed, scale=0.3):
    """``model`` with other weights."""
    noise = torch.randn(model.weights.shape, generator=torch.Generator().manual_seed(seed), dtype=model.weights.dtype)
    return ClientModel(model.weights + scale * noise, model.buffers)


def after_rounds(hidden=(5,), starts=1, groups=None, **changes):
    """(Federation, engine) with every fourth example held out; ``starts``: number of models of the last round."""
    world = make_world(list(hidden))
    federation = world.federation
    parts = [(rows[torch.arange(len(rows)) % 4 > 0], rows[::4]) for rows in federation.rows("train")]
    rows = {"train": [train for train, _ in parts], "valid": [valid for _, valid in parts]}
    federation = dataclasses.replace(with_rows(federation, **rows), **changes)
    models = [perturbed(federation.model, seed) for seed in range(starts)]
    return PersonalFederation.after(
        federation, settings(), lambda client: models[client % starts], groups
    ), world.engine


def run_kind(kind, config, federation, engine):
    """All its rounds: (last state, {point: {client: model}})."""
    state, measured, rows = kind.init(config, federation), {}, []
    round = 0
    while requests := kind.plan(config, state, federation, round):
        trained = engine.train(requests)
        state, row = kind.fold(config, state, federation, round, requests, trained)
        rows.append(row)
        for number, models in kind.measured(config, federation, state, round):
            assert models.keys().isdisjoint(measured.setdefault(number, {})), "measured twice"
            measured[number] |= models
        round += 1
    assert round == kind.rounds(config, federation)
    assert sorted(measured) == list(range(len(kind.points(config))))
    assert all(len(models) == len(federation.clients) for models in measured.values())
    return state, measured, rows


def small_images(network, count=40, dtype=torch.float64):
    """Random images of a network's shape with labels."""
    draws = torch.Generator().manual_seed(1)
    pixels = torch.rand(count, *network.inputs, generator=draws, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, network.classes, (count,), generator=draws)
    mean = torch.zeros(network.inputs[0])
    return ImageData(pixels, labels, mean, mean + 1)


def on_network(network, dtype):
    """A federation of three clients with random models of ``network``, their trained models [K, P], and the images."""
    federation, _ = after_rounds()
    data = small_images(network, dtype=dtype)
    weights, buffers = (value.to(dtype) for value in flat.initial(network, 0))
    start = ClientModel(weights, buffers)
    rows = torch.arange(len(data.labels)).split([15, 20, 5])
    parties = tuple(Party(f"c{i}", own, own, own) for i, own in enumerate(rows))
    federation = dataclasses.replace(with_network(federation, network, start), clients=parties)
    federation = dataclasses.replace(
        federation, train_labels=data.labels, method=settings(temperature=0.5), start=lambda _: start
    )
    trained = [perturbed(start, seed, 0.05) for seed in range(3)]
    return federation, trained, data
