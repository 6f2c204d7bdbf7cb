"""Flat vectors: a model survives the way there and back, and head, body and biases are where they are said to be."""

import pytest
import torch
from torch import nn

from knot_runner.engine.federated import flat
from knot_runner.models.network import build_network
from tests.unit.engine.federated.cases import MODELS


def built(network, seed=1):
    torch.manual_seed(seed)
    return build_network(network)


@pytest.mark.parametrize("model", MODELS)
def test_load_flat_restores_what_flat_vectors_took(model):
    layout, source, target = flat.layout_of(MODELS[model]), built(MODELS[model], 1), built(MODELS[model], 2)
    for buffer in source.buffers():
        buffer.add_(torch.rand_like(buffer))
    weights, buffers = flat.flat_vectors(source)
    flat.load_flat(target, layout, weights, buffers)
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value), name


def test_views_keep_leading_dimensions_and_share_memory():
    layout = flat.layout_of(MODELS["cnn"])
    values = torch.arange(3 * layout.size, dtype=torch.float64).view(3, -1)
    named = flat.views(values, layout.parameters)
    for field in layout.parameters:
        assert named[field.name].shape == (3, *field.shape)
        assert torch.equal(named[field.name].flatten(1), values[:, field.start : field.stop])
    named["head.bias"].fill_(-1)
    assert int((values == -1).sum()) == 3 * 5


@pytest.mark.parametrize("model", MODELS)
def test_layout_mask_takes_last_layer_as_head(model):
    layout, module = flat.layout_of(MODELS[model]), built(MODELS[model])
    head, body = layout.mask("head"), layout.mask("body")
    assert layout.mask("all").all() and torch.equal(head, ~body)
    last = [m for m in module.modules() if isinstance(m, nn.Linear)][-1]
    count = last.weight.numel() + last.bias.numel()
    assert int(head.sum()) == count and head[-count:].all()


def test_biases_by_hand():
    layout = flat.layout_of(MODELS["mlp"])  # 64-16-12-5
    found = layout.biases().nonzero()[:, 0].tolist()
    starts = [(64 * 16, 16), (65 * 16 + 16 * 12, 12), (65 * 16 + 17 * 12 + 12 * 5, 5)]
    assert found == [at + k for at, size in starts for k in range(size)]
