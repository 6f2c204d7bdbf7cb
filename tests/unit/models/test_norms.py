"""BatchNorm and max pooling equal PyTorch's on whole batches, and on padded ones PyTorch's on the real rows alone."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import grad, vmap

from knot_runner.engine.training import train_mode
from knot_runner.models.layers import BatchNorm, max_pool

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


def images(shape, levels=3, seed=0):
    return torch.randint(levels, shape, generator=torch.Generator().manual_seed(seed)).double() - 1


def gradient_of(pool, x, weights):
    x = x.clone().requires_grad_()
    pooled = pool(x)
    assert pooled.is_contiguous()  # the next layer computes in the order of memory
    (pooled * weights).sum().backward()
    assert x.grad.is_contiguous()
    return x.grad


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(2, 7), st.integers(2, 7)),
    levels=st.integers(1, 6),
    single=st.booleans(),
    seed=st.integers(0, 99),
)
def test_max_pool_equals_pytorchs(shape, levels, single, seed):
    x = images(shape, levels, seed).to(torch.float32 if single else torch.float64)
    expected = F.max_pool2d(x, 2)
    weights = torch.randn(expected.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(max_pool(x), expected)
    with torch.no_grad():
        actual = max_pool(x)
    assert torch.equal(actual, expected) and actual.is_contiguous()
    assert torch.equal(gradient_of(max_pool, x, weights), gradient_of(lambda x: F.max_pool2d(x, 2), x, weights))


@pytest.mark.parametrize("grad_on", [True, False])
def test_max_pool_keeps_nan_in_its_window(grad_on):
    for at in range(4):
        x = torch.zeros(1, 2, 4, 4)
        x[0, 1, 2 + at // 2, at % 2] = float("nan")
        with torch.set_grad_enabled(grad_on):
            assert torch.equal(max_pool(x).isnan(), F.max_pool2d(x, 2).isnan())
            assert int(max_pool(x).isnan().sum()) == 1


def test_max_pool_under_vmap():
    x, weights = images((3, 2, 4, 6, 5)), torch.randn(3, 2, 4, 3, 2, dtype=torch.float64)
    expected = torch.stack(
        [gradient_of(lambda x: F.max_pool2d(x, 2), one, w) for one, w in zip(x, weights, strict=True)]
    )
    assert torch.equal(gradient_of(vmap(max_pool), x, weights), expected)
    slopes = vmap(grad(lambda one, weight: (max_pool(one) * weight).sum()))(x, weights)
    assert torch.equal(slopes, expected)
    with torch.no_grad():
        assert torch.equal(vmap(max_pool)(x), F.max_pool2d(x.flatten(0, 1), 2).unflatten(0, (3, 2)))


def test_max_pool_second_gradients():
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: max_pool(x) ** 3, x)
    assert torch.autograd.gradgradcheck(lambda x: max_pool(x) ** 3, x)


def test_max_pool_keeps_channels_last():
    x = images((2, 3, 4, 4)).contiguous(memory_format=torch.channels_last)
    assert max_pool(x).is_contiguous(memory_format=torch.channels_last)
    assert max_pool(torch.empty(2, 3, 5, 4, device="meta")).shape == (2, 3, 2, 2)
