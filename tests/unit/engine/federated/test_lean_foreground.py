"""The first layer on images that are mostly background, against the dense product."""

import pytest
import torch

from knot_runner.engine.federated.lean.dense import RARE, Foreground

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
def test_the_layer_is_that_of_the_dense_product(count, channels, share):
    images = drawn(count, channels, 20, share)
    weight = torch.randn(7, channels * 20, generator=DRAWS, dtype=torch.float64)
    bias = torch.randn(7, generator=DRAWS, dtype=torch.float64)
    found = Foreground(images).affine((weight, bias))
    assert found.shape == (count, 7)
    assert float((found - (images.flatten(1) @ weight.t() + bias)).abs().max()) < 1e-12


def test_which_pixels_are_multiplied_and_which_are_added():
    """Of 2 RARE images two differ in one pixel, three in another, none in a third, and all in none."""
    images = torch.full((2 * RARE, 1, 2, 2), 0.5)
    images[[3, 9], 0, 0, 1] = 1.0
    images[:3, 0, 1, 0] = -1.0
    found = Foreground(images)
    assert found.numel() == 2 * RARE + 2 * 2  # one dense column; two places and two values
    assert found.saves
    assert Foreground(torch.full((3, 1, 2, 2), 0.5)).numel() == 0
