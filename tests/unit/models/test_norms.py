"""BatchNorm equals PyTorch's on whole batches, and on padded ones PyTorch's on the real rows alone."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from knot_runner.engine.training import train_mode
from knot_runner.models.layers import BatchNorm

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def pair(channels, seed):
    """Ours and PyTorch's layer with the same random parameters and statistics, float64, training."""
    torch.manual_seed(seed)
    theirs = nn.BatchNorm2d(channels).double()
    for tensor in (theirs.weight.data, theirs.bias.data, theirs.running_mean):
        tensor.normal_()
    theirs.running_var.uniform_(0.2, 3)
    ours = BatchNorm(channels).double()
    ours.load_state_dict({key: value for key, value in theirs.state_dict().items() if key != "num_batches_tracked"})
    return ours, theirs


def step(layer, x, weights):
    """Output, the gradients of sum(weights * output), and the running statistics afterwards."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    (y * weights).sum().backward()
    return [y.detach(), x.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var]


def same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@given(st.integers(0, 999), st.integers(1, 5), st.integers(1, 4), st.sampled_from([(1, 2), (3, 3), (4, 1)]))
def test_batch_norm_equals_pytorchs(seed, batch, channels, size):
    ours, theirs = pair(channels, seed)
    for _ in range(3):
        x, weights = torch.randn(2, batch, channels, *size, dtype=torch.float64) * 3 + 1
        same(step(ours, x, weights), step(theirs, x, weights))
    ours.eval(), theirs.eval()
    same(step(ours, x, weights), step(theirs, x, weights))


@given(st.integers(0, 999), st.integers(2, 6), st.data())
def test_batch_norm_with_mask_uses_only_real_rows(seed, batch, data):
    real = torch.tensor(data.draw(st.lists(st.booleans(), min_size=batch, max_size=batch).filter(any)))
    ours, theirs = pair(3, seed)
    x, weights = torch.randn(2, batch, 3, 2, 2, dtype=torch.float64) + 1
    weights[~real] = 0  # padding has no part in the loss
    ours.mask = real.double()
    padded = step(ours, x, weights)
    alone = step(theirs, x[real], weights[real])
    assert not padded[1][~real].any()
    padded[0], padded[1] = padded[0][real], padded[1][real]
    same(padded, alone)


@pytest.mark.parametrize("masked", [False, True])
def test_batch_norm_single_value_uses_running_statistics(masked):
    ours, theirs = pair(3, 0)
    x, weights = torch.randn(2, 1, 3, 1, 1, dtype=torch.float64)
    expected = step(theirs.eval(), x, weights)
    if masked:  # one real row of two
        ours.mask = torch.tensor([1.0, 0.0], dtype=torch.float64)
        x, weights = (torch.cat([one, torch.zeros_like(one)]) for one in (x, weights))
    actual = step(ours, x, weights)
    actual[0], actual[1] = actual[0][:1], actual[1][:1]
    same(actual, expected)


def test_batch_norm_of_padding_changes_nothing():
    ours, _ = pair(3, 1)
    before = copy.deepcopy(ours.state_dict())
    ours.mask = torch.zeros(4, dtype=torch.float64)
    assert set(ours.state_dict()) == {"weight", "bias", "running_mean", "running_var"}  # and no mask
    y, *gradients, _, _ = step(ours, torch.randn(4, 3, 2, 2).double(), torch.zeros(4, 3, 2, 2).double())
    assert y.isfinite().all() and all(bool((g == 0).all()) for g in gradients)
    same(list(ours.state_dict().values()), list(before.values()))


def test_batch_norm_keeps_frozen_statistics():
    ours, theirs = pair(3, 2)
    train_mode(ours, frozen_statistics=True)
    x, weights = torch.randn(2, 4, 3, 2, 2, dtype=torch.float64)
    same(step(ours, x, weights), step(theirs.eval(), x, weights))
