"""Layers of the lean engine against autograd, over shapes that the parity cases do not have."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.config.settings.networks import MlpSettings
from knot_runner.engine.federated.cohort import Phase, Recipe
from knot_runner.engine.federated.lean import stems
from knot_runner.engine.federated.lean.dense import LARGE, RARE, Foreground, affine
from knot_runner.engine.federated.lean.stems import Convs
from knot_runner.engine.objectives import CrossEntropy
from knot_runner.models.network import Network
from tests.unit.engine.federated.cases import CLASSES, GRAY, Case, assert_alike, cohort, made


def assert_gradients_of_autograd(side, kernels, paddings, channels, count):
    torch.manual_seed(0)
    layers = []
    for before, after, kernel in zip(channels, channels[1:], kernels, strict=False):
        layers.append((torch.randn(after, before, kernel, kernel).double(), torch.randn(after).double()))
    images = torch.randn(count, channels[0], *side).double()
    x = images
    for (weight, bias), padding in zip(layers, paddings, strict=True):
        weight.requires_grad_(), bias.requires_grad_()
        x = F.max_pool2d(F.relu(F.conv2d(x, weight, bias, padding=padding)), 2)
    wanted, slope = x.flatten(1), torch.randn(count, x[0].numel()).double()
    (wanted * slope).sum().backward()

    with torch.no_grad():
        targets = [(torch.ones_like(weight), torch.ones_like(bias)) for weight, bias in layers]
        stem = Convs(layers, list(paddings), images)
        stem.set_targets(targets)
        (batch,) = stem.batches(torch.arange(count), None, count)
        for _ in range(2):  # what a step leaves in memory does not matter to the next
            torch.testing.assert_close(stem.forward(batch), wanted, rtol=1e-12, atol=1e-11)
            stem.backward(slope)
        stem.accumulate(-0.5)
    for target, layer in zip(targets, layers, strict=True):
        for actual, parameter in zip(target, layer, strict=True):
            torch.testing.assert_close(actual, 1 - 0.5 * parameter.grad, rtol=1e-10, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(
    side=st.tuples(st.integers(12, 17), st.integers(12, 17)),
    kernels=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    paddings=st.tuples(st.integers(0, 2), st.integers(0, 1)),
    count=st.integers(1, 4),
)
def test_convs_matches_autograd_gradients_at_any_shape(side, kernels, paddings, count):
    assert_gradients_of_autograd(side, kernels, paddings, (2, 3, 4), count)


@pytest.mark.parametrize("outputs", [16, LARGE // 400])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_affine_matches_torch_linear_at_any_size(outputs, dtype):
    torch.manual_seed(1)
    weight, bias = torch.randn(outputs, 400, dtype=dtype), torch.randn(outputs, dtype=dtype)
    x = torch.randn(5, 400, dtype=dtype)
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(affine(x, (weight, bias)), F.linear(x, weight, bias), **near)


DRAWS = torch.Generator().manual_seed(3)


def drawn(count, channels, pixels, share):
    """Images [count, channels, 4, pixels / 4] that show a background per channel but for ``share`` of their pixels."""
    background = torch.randn(channels, generator=DRAWS, dtype=torch.float64)
    images = background[None, :, None].repeat(count, 1, pixels)
    shown = torch.rand(images.shape, generator=DRAWS) < share
    shown[:, :, 0] = False
    images[shown] = torch.randn(int(shown.sum()), generator=DRAWS, dtype=torch.float64)
    return images.view(count, channels, 4, -1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("count", [1, 2 * RARE, 50])
def test_foreground_affine_matches_the_dense_product(count, channels, share):
    images = drawn(count, channels, 20, share)
    weight = torch.randn(7, channels * 20, generator=DRAWS, dtype=torch.float64)
    bias = torch.randn(7, generator=DRAWS, dtype=torch.float64)
    actual = Foreground(images).affine((weight, bias))
    assert actual.shape == (count, 7)
    assert float((actual - (images.flatten(1) @ weight.t() + bias)).abs().max()) < 1e-12


def test_foreground_splits_dense_columns_from_rare_pixel_values():
    """Of 2 RARE images two differ in one pixel, three in another, none in a third, and all in none."""
    images = torch.full((2 * RARE, 1, 2, 2), 0.5)
    images[[3, 9], 0, 0, 1] = 1.0
    images[:3, 0, 1, 0] = -1.0
    actual = Foreground(images)
    assert actual.numel() == 2 * RARE + 2 * 2  # one dense column; two places and two values
    assert actual.saves
    assert Foreground(torch.tensor([0.5, 1.0]).view(1, 2, 1, 1).repeat(3, 1, 2, 2)).numel() == 0


phases = st.lists(
    st.builds(Phase, st.integers(0, 3), st.sampled_from(["all", "head", "body"])), min_size=1, max_size=3
).map(tuple)


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 40), batch=st.integers(1, 17), phases=phases, outputs=st.integers(1, 20))
def test_gram_trains_like_loop_at_any_size(size, batch, phases, outputs):
    network = Network(MlpSettings("mlp", "mlp", [outputs, 6], "logits"), GRAY, CLASSES)
    requests = cohort(network, Case(Recipe(phases, batch, False, 0.01), options=CrossEntropy(0.5)), sizes=(size,))
    with mock.patch.object(stems, "MIN_SAVING", float("inf")):  # every layer takes this way
        actual = made("lean", network).train(requests)
    assert_alike(actual, made("loop", network).train(requests))
