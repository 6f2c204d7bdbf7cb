"""2x2 max pooling against PyTorch's, bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from knot_runner.models.layers import max_pool


def images(shape: tuple[int, ...], levels: int = 3, seed: int = 0) -> Tensor:
    """Of few different values, so that most windows have equal ones."""
    return torch.randint(levels, shape, generator=torch.Generator().manual_seed(seed)).double() - 1


def gradient_of(pool, x: Tensor, weights: Tensor) -> Tensor:
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
def test_max_pool_equals_pytorchs(shape, levels: int, single: bool, seed: int) -> None:
    x = images(shape, levels, seed).to(torch.float32 if single else torch.float64)
    expected = F.max_pool2d(x, 2)
    weights = torch.randn(expected.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(max_pool(x), expected)
    with torch.no_grad():
        found = max_pool(x)
    assert torch.equal(found, expected) and found.is_contiguous()
    assert torch.equal(gradient_of(max_pool, x, weights), gradient_of(lambda x: F.max_pool2d(x, 2), x, weights))


@pytest.mark.parametrize("grad_on", [True, False])
def test_max_pool_keeps_nan_in_its_window(grad_on: bool) -> None:
    for at in range(4):
        x = torch.zeros(1, 2, 4, 4)
        x[0, 1, 2 + at // 2, at % 2] = float("nan")
        with torch.set_grad_enabled(grad_on):
            assert torch.equal(max_pool(x).isnan(), F.max_pool2d(x, 2).isnan())
            assert int(max_pool(x).isnan().sum()) == 1


def test_max_pool_under_vmap() -> None:
    x, weights = images((3, 2, 4, 6, 5)), torch.randn(3, 2, 4, 3, 2, dtype=torch.float64)
    expected = torch.stack(
        [gradient_of(lambda x: F.max_pool2d(x, 2), one, w) for one, w in zip(x, weights, strict=True)]
    )
    assert torch.equal(gradient_of(vmap(max_pool), x, weights), expected)
    slopes = vmap(grad(lambda one, weight: (max_pool(one) * weight).sum()))(x, weights)
    assert torch.equal(slopes, expected)
    with torch.no_grad():
        assert torch.equal(vmap(max_pool)(x), F.max_pool2d(x.flatten(0, 1), 2).unflatten(0, (3, 2)))


def test_max_pool_second_gradients() -> None:
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: max_pool(x) ** 3, x)
    assert torch.autograd.gradgradcheck(lambda x: max_pool(x) ** 3, x)


def test_max_pool_keeps_channels_last() -> None:
    x = images((2, 3, 4, 4)).contiguous(memory_format=torch.channels_last)
    assert max_pool(x).is_contiguous(memory_format=torch.channels_last)
    assert max_pool(torch.empty(2, 3, 5, 4, device="meta")).shape == (2, 3, 2, 2)
