"""Autoencoders: shapes there and back for even and odd sides, the formula of the code, refusals."""

import numpy as np
import pytest
import torch
from torch import nn

from knot_runner.config.settings import EncoderSettings
from knot_runner.models.encoder import build_encoder
from tests.golden.messages import refuses


def spec(kind: str, sizes: list[int]) -> EncoderSettings:
    return EncoderSettings("e", kind, sizes, 0, 10, 1e-3)


def layers(part: nn.Sequential) -> list[nn.Module]:
    """Those with weights, in order."""
    return [layer for layer in part if list(layer.parameters())]


@pytest.mark.parametrize(
    ("shape", "code"), [((3, 32, 32), 48 * 4 * 4), ((1, 28, 28), 48 * 3 * 3), ((2, 9, 15), 48 * 1 * 1)]
)
def test_conv_encoder_halves_each_side(shape, code):
    model = build_encoder(spec("conv", [12, 24, 48]), shape)
    x = torch.randn(5, *shape)
    codes = model.encode(x)
    assert codes.shape == (5, code) and model.code == code
    assert model(x).shape == x.shape


def test_conv_encoder_equals_sequential_layers():
    model = build_encoder(spec("conv", [4, 6]), (2, 9, 7)).double()
    x = torch.randn(3, 2, 9, 7, dtype=torch.float64)
    (first, second), (third, last) = layers(model.encoder), layers(model.decoder)
    down = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten())
    torch.testing.assert_close(model.encode(x), down(x), rtol=0, atol=0)
    up = nn.Sequential(nn.Unflatten(1, (6, 2, 1)), third, nn.ReLU(), last)
    torch.testing.assert_close(model.decode(down(x)), up(down(x)), rtol=0, atol=0)


def test_dense_encoder_equals_its_formula():
    model = build_encoder(spec("dense", [5, 3]), (1, 2, 4)).double()
    x = torch.randn(6, 1, 2, 4, dtype=torch.float64)
    (first, second), (third, last) = layers(model.encoder), layers(model.decoder)
    h = x.numpy().reshape(6, 8)
    for number, layer in enumerate((first, second, third, last)):
        h = h @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        if number == 1:
            np.testing.assert_allclose(model.encode(x).detach().numpy(), h, rtol=1e-12)
        h = np.maximum(h, 0) if number in (0, 2) else h
    np.testing.assert_allclose(model(x).detach().numpy(), h.reshape(6, 1, 2, 4), rtol=1e-12)


def test_conv_encoder_refuses_small_images():
    with refuses():
        build_encoder(spec("conv", [4, 4, 4, 4]), (1, 8, 8))
