"""Federated learning on texts: the same methods, engines, commits and records as on images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.engine.examples import TextData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase, Recipe
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.federated.loop import Loop
from knot_runner.engine.objectives import Objective, cross_entropy
from knot_runner.engine.seeds import generator, keyed
from knot_runner.models.network import Network, build_network
from knot_runner.models.tokens import Encoded, batches

SPEC = ModelSettings(
    kind="bert", name="tiny", head="plain", weights="scratch", vocab="train", vocab_size=100, hub_id="", revision="",
    hidden=16, layers=1, heads=2, intermediate=32, dropout=0.1,
)  # fmt: skip
NETWORK, CPU = Network(SPEC, 60, 3), torch.device("cpu")


def texts(count, seed):
    draws = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 12, (count,), generator=draws)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.randint(5, 60, (int(offsets[-1]),), generator=draws, dtype=torch.int32)
    return TextData(Encoded(ids, offsets, lengths.clone()), torch.randint(3, (count,), generator=draws))


def request(client=0, **recipe):
    start = ClientModel(*flat.initial(NETWORK, 4))
    recipe = Recipe(**{"phases": (Phase(2),), "batch_size": 8, "drop_last": False, "lr": 0.01, **recipe})
    rows = torch.arange(client * 20, client * 20 + 20)
    objective = Objective(cross_entropy, {"temperature": 0.5})
    return LocalTraining(client, 1, 7, start, rows, torch.arange(5), recipe, objective=objective)


def plain_training(asked, data):
    """Train by a textbook loop in the engine's batch order, with dropout; return final weights and mean loss."""
    model = build_network(NETWORK).double()
    flat.load_flat(model, asked.start.weights, asked.start.buffers)
    kind = torch.optim.AdamW if asked.recipe.optimizer == "adamw" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=asked.recipe.lr, weight_decay=asked.recipe.weight_decay)
    draws, losses = generator(7, "local", 1, asked.client), []
    torch.manual_seed(keyed(7, "dropout", 1, asked.client))
    for _ in range(2):
        for part in batches(data.texts.lengths[asked.rows], 8, draws):
            logits = model.train()(**data.texts.batch(asked.rows[part]))
            loss = F.cross_entropy(logits / 0.5, data.labels[asked.rows[part]])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return flat.flat_vectors(model)[0], np.mean(losses)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_loop_engine_matches_plain_training_on_texts(optimizer):
    data, asked = texts(60, 0), request(1, optimizer=optimizer, weight_decay=0.1)
    asked = replace(asked, start=replace(asked.start, weights=asked.start.weights.double()))
    (found,) = Loop(NETWORK, data, texts(10, 1), CPU, torch.float64).train([asked])
    weights, loss = plain_training(asked, data)
    assert float((found.weights - weights).abs().max()) < 1e-9
    assert found.loss == pytest.approx(loss, rel=1e-12) and found.steps == 6


def test_epoch_drops_last_partial_batch_on_request():
    client = texts(60, 0).select(torch.arange(20, 40), torch.float32)
    whole, cut = (list(client.epoch(8, generator(0, "x"), drop, "none")) for drop in (False, True))
    assert sorted(len(positions) for positions, _ in whole) == [4, 8, 8]
    assert [len(positions) for positions, _ in cut] == [8, 8]
    assert sorted(torch.cat([positions for positions, _ in whole]).tolist()) == list(range(20))


def test_lean_matches_loop_and_preserves_rng_state():
    data, cohort = (texts(60, 0), texts(10, 1)), [request(client, optimizer="adamw") for client in range(2)]
    wanted = Loop(NETWORK, *data, CPU, torch.float32).train(cohort)
    before = torch.get_rng_state()
    for workers in (1, 2):
        engine = Lean([NETWORK], *data, torch.float32, workers, threads=1)
        for found, one in zip(engine.train(cohort[::-1])[::-1], wanted, strict=True):
            assert torch.equal(found.weights, one.weights) and found.loss == one.loss
        engine.close()
    assert torch.equal(torch.get_rng_state(), before)
