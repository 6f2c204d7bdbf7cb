"""The benchmark's strong baseline does the work that it says: it ends where the reference engine does."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from knot_runner.engine.examples import normalized
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.loop import Loop
from knot_runner.engine.seeds import generator
from knot_runner.models.network import build_network
from tests.unit.engine.federated.cases import MODELS, PLAIN, Case, cohort, images

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

import bench_federation
import good_loop
import workloads


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_good_loop_matches_the_reference_loop(model, momentum):
    network, data = MODELS[model], images(MODELS[model].inputs)
    case = Case(replace(PLAIN, lr=0.02, momentum=momentum))
    request = cohort(network, case, torch.float32, sizes=(23,))[0]
    (expected,) = Loop(network, data, data, torch.device("cpu"), torch.float32).train([request])

    model = build_network(network)
    flat.load_flat(model, request.start.weights, request.start.buffers)
    model.to(memory_format=torch.channels_last)
    pixels = normalized(data, request.rows, torch.float32).permute(0, 2, 3, 1).contiguous()
    training = good_loop.Training(model, [23], epochs=2, batch_size=8, lr=0.02, momentum=momentum)
    draws = generator(request.seed, "local", request.round, request.client)
    good_loop.train_client(model, model, pixels, data.labels[request.rows], training, draws)
    actual, _ = flat.flat_vectors(model)
    moved = (expected.weights - request.start.weights).abs().max()
    assert moved > 1e-3 and float((actual - expected.weights).abs().max()) < 2e-6


def test_bench_federation_pads_texts_as_engines_do():
    small = replace(workloads.WORKLOADS["W5"], sizes=[4, 3])
    data = small.data()
    (first, _), collate = bench_federation._datasets(small, data)
    ids, mask, types, labels = collate(first)
    wanted = data.texts.batch(torch.arange(4))
    assert ids.equal(wanted["ids"]) and mask.equal(wanted["mask"]) and types.equal(wanted["types"])
    assert labels.equal(data.labels[:4])
