"""Inference of the lean engine where many models are asked about the same images: what is done once for all of them."""

import functools
from dataclasses import replace

import pytest
import torch

from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ROWS_OF_MANY, ClientModel, Inference
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.federated.lean import client as lean_client
from knot_runner.engine.federated.lean.dense import Foreground
from tests.unit.engine.federated.cases import MODELS, images, made

lean = functools.partial(made, "lean", dtype=torch.float32)


def test_lean_logits_keeps_recent_images_within_its_limit(monkeypatch):
    """Training and test images of the same numbers are others; what was asked last is kept, as far as there is room."""
    network, rows = MODELS["mlp"], torch.arange(20)
    weights, buffers = flat.initial(network, 5)
    asked = [
        Inference(ClientModel(weights * (1 + scale), buffers), own, split)
        for scale in range(3)
        for own in (rows, rows[:7], rows.flip(0))
        for split in ("test", "train")
    ]
    expected = [lean(network).logits([request])[0] for request in asked]
    engine = lean(network)
    (client,) = engine._clients
    assert all(map(torch.equal, engine.logits(asked), expected))
    assert len(client._recent) == 6
    monkeypatch.setattr(lean_client, "_KEPT_VALUES", 30 * 64)  # images of 8 x 8
    assert all(map(torch.equal, engine.logits(asked), expected))
    assert [(split, len(kept)) for (split, *_), kept in client._recent.items()] == [("train", 20)]
    engine.logits([Inference(ClientModel(weights, buffers), rows[:7])])
    kept = list(client._recent.values())
    engine.logits([asked[5]])
    assert len(kept) == 2 and list(client._recent.values())[-1] is kept[0]  # not normalized again, and now the last


def asked_of_many(network, body=""):
    """Three models with one body and heads of their own, about two sets of rows."""
    weights, buffers = flat.initial(network, 5)
    head = flat.layout_of(network).mask("head")
    models = [ClientModel(torch.where(head, weights * (1 + scale), weights), buffers) for scale in range(3)]
    return [
        Inference(model, rows, many=True, body=body)
        for model in models
        for rows in (torch.arange(40), torch.arange(9, 30))
    ]


@pytest.mark.parametrize("model", ["mlp", "resnet_batch"])
def test_lean_logits_ignores_body_sharing_and_worker_count(model):
    alone, pool = lean(MODELS[model]), lean(MODELS[model], workers=2)
    expected = alone.logits(asked_of_many(MODELS[model]))
    plain = alone.logits([replace(request, many=False) for request in asked_of_many(MODELS[model])])
    assert all(float((a - b).abs().max()) < 1e-5 for a, b in zip(expected, plain, strict=True))
    for engine in (alone, pool):
        assert all(map(torch.equal, engine.logits(asked_of_many(MODELS[model], "one")), expected))
    pool.close()


@pytest.mark.parametrize("model", ["mlp_softmax", "cnn"])
def test_lean_logits_computes_features_once_per_shared_body(model, monkeypatch):
    computed = []
    features = lean_client.ManualBackward._features

    def counted(self, parameters, rows):
        computed.append(rows)
        return features(self, parameters, rows)

    monkeypatch.setattr(lean_client.ManualBackward, "_features", counted)
    engine = lean(MODELS[model])
    apart = engine.logits(asked_of_many(MODELS[model]))
    assert len(computed) == 6 and len({id(rows) for rows in computed}) == 2  # images are prepared once
    together = engine.logits(asked_of_many(MODELS[model], "one"))
    assert len(computed) == 6 + 2 and all(map(torch.equal, together, apart))
    engine.logits(asked_of_many(MODELS[model], "another")[:1])
    assert len(computed) == 6 + 2 + 1


def test_lean_logits_uses_foreground_for_images_with_background():
    """The layer in its other form, in pieces: as the plain one but for rounding, the same bits whoever computes it."""
    network = MODELS["mlp"]
    pictures = images(network.inputs, 40, 1)
    pictures.pixels[:, :, :, 3:] = 7
    pictures.pixels[:, :, 0, 0] = 7
    pictures.pixels[::20, :, 5, 5] = 9
    rows = torch.arange(40).repeat(2 * ROWS_OF_MANY // 40)[: ROWS_OF_MANY + 7]
    weights, buffers = flat.initial(network, 5)
    asked = [Inference(ClientModel(weights * (1 + scale), buffers), rows, many=True) for scale in range(2)]
    engines = [Lean([network], pictures, pictures, torch.float32, workers, threads=1) for workers in (1, 2)]
    one, two = (engine.logits(asked) for engine in engines)
    plain = engines[0].logits([replace(request, many=False) for request in asked])
    engines[1].close()
    assert any(isinstance(kept, Foreground) for kept in engines[0]._clients[0]._recent.values())
    assert all(map(torch.equal, one, two))
    for actual, wanted in zip(one, plain, strict=True):
        assert actual.shape == wanted.shape and 0 < float((actual - wanted).abs().max()) < 1e-5
