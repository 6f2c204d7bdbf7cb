"""Convolutions by Winograd's minimal filtering against torch, and which of a module's convolutions are."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from knot_runner.engines.native.engine import make_native_client
from knot_runner.engines.native.library import native_library
from knot_runner.engines.native.stem import WinogradConv2d, use_winograd
from tests.unit.engine.federated.cases import FAMILIES, MODELS, images
from tests.unit.engines.native_cases import needs_compiler

pytestmark = [pytest.mark.machine, needs_compiler]


def both(channels, filters, bias=True, dtype=torch.float64):
    """A convolution in torch, and the same by Winograd's."""
    torch.manual_seed(channels + filters)
    plain = nn.Sequential(nn.Conv2d(channels, filters, 3, 1, 1, bias=bias)).to(dtype)
    fast = copy.deepcopy(plain)
    use_winograd(fast, dtype)
    assert type(fast[0]) is WinogradConv2d and type(plain[0]) is nn.Conv2d
    return plain, fast


def gradients(model, x, slope):
    x = x.clone().requires_grad_()
    y = model(x)
    return [y, *torch.autograd.grad(y, [x, *model.parameters()], slope)]


def assert_alike(plain, fast, count, side, dtype=torch.float64, tolerance=1e-12):
    conv = plain[0]
    x = torch.randn(count, conv.in_channels, *side, dtype=dtype)
    slope = torch.randn(count, conv.out_channels, *side, dtype=dtype)
    for found, wanted in zip(gradients(fast, x, slope), gradients(plain, x, slope), strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance * wanted.detach().abs().max().item())


@settings(max_examples=60, deadline=None)
@given(
    vectors=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    side=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    count=st.integers(1, 5),
    bias=st.booleans(),
)
def test_winograd_conv_matches_torch_at_any_shape(vectors, side, count, bias):
    lanes = native_library(torch.float64).lanes()
    assert_alike(*both(lanes * vectors[0], lanes * vectors[1], bias), count, side)


def test_images_of_many_groups_of_tiles():
    """289 tiles, the last group of which is smaller."""
    assert_alike(*both(16, 32), 1, (33, 34))


def test_single_precision():
    assert_alike(*both(64, 48, dtype=torch.float32), 3, (9, 9), torch.float32, 1e-5)


def test_images_in_either_layout():
    _, fast = both(16, 16)
    x = torch.randn(2, 16, 6, 6).double()
    with torch.no_grad():
        assert torch.equal(fast[0](x), fast[0](x.contiguous(memory_format=torch.channels_last)))


@pytest.mark.parametrize("part", ["inputs", "weights"])
def test_winograd_conv_differentiates_only_the_needed_part(part):
    """The first layer's images; the weights of a body that is frozen."""
    plain, fast = both(16, 16, bias=False)
    x = torch.randn(2, 16, 5, 5).double().requires_grad_(part == "weights")
    found = []
    for model in (plain, fast):
        model[0].weight.requires_grad_(part == "inputs")
        leaf = model[0].weight if part == "inputs" else x
        found.append(torch.autograd.grad(model(x).square().sum(), leaf)[0])
    torch.testing.assert_close(*found)


def test_winograd_conv_accepts_an_empty_batch():
    _, fast = both(16, 16)
    assert fast(torch.zeros(0, 16, 4, 4).double()).shape == (0, 16, 4, 4)


def test_winograd_conv_copies_keep_separate_weights():
    """Methods with a second model copy the first."""
    _, fast = both(16, 16, bias=False)
    other, x = copy.deepcopy(fast), torch.randn(1, 16, 4, 4).double()
    before = fast(x)
    with torch.no_grad():
        other[0].weight.zero_()
    assert torch.equal(fast(x), before) and not other(x).any()


@pytest.mark.parametrize("options", [
    {"kernel_size": 5, "padding": 2}, {"kernel_size": 1, "padding": 0}, {"stride": 2}, {"padding": 0}, {"dilation": 2},
    {"groups": 2}, {"padding_mode": "circular"}, {"in_channels": 3}, {"out_channels": 20},
], ids=str)  # fmt: skip
def test_use_winograd_keeps_other_convolutions(options):
    usual = {"in_channels": 64, "out_channels": 64, "kernel_size": 3, "padding": 1}
    model = nn.Sequential(nn.Conv2d(**{**usual, **options}))
    x = torch.randn(2, model[0].in_channels, 8, 8)
    before = model(x)
    use_winograd(model, torch.float32)
    assert type(model[0]) is nn.Conv2d
    torch.testing.assert_close(model(x), before)


def layer_kinds(network, data):
    client = make_native_client(network, data, data, torch.float64)
    return {type(module) for module in client.model.modules()}


def test_make_native_client_uses_winograd_where_it_fits():
    data = images((3, 8, 8))
    assert WinogradConv2d in layer_kinds(MODELS["resnet_group"], data)
    gray = images((1, 8, 8))
    kinds = layer_kinds(FAMILIES["wrn_group"], gray)
    assert WinogradConv2d in kinds and nn.Conv2d in kinds  # the first and the strided ones stay
    assert WinogradConv2d not in layer_kinds(FAMILIES["mobilenet_group"], data)
