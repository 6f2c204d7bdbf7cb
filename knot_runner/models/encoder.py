"""Autoencoders. The distance between two data sets is computed from the codes of their images (FedWaD D.2, D.3)."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from knot_runner.config.settings.methods.transport import EncoderSettings
from knot_runner.models.images import Shape
from knot_runner.util.errors import UserError


def build_encoder(spec: EncoderSettings, shape: Shape) -> Autoencoder:
    """Return the autoencoder that ``spec`` describes, for images of ``shape`` (C, H, W).

    The initial weights are drawn from torch's global random generator.

    Raises:
        UserError: The images are too small for the number of convolutions.
    """
    if spec.kind == "conv":
        return _convolutions(spec, shape)
    return _linear_layers(spec, shape)


class Autoencoder(nn.Module):
    """An encoder and a decoder for images.

    Attributes:
        encoder: Maps normalized images of shape [B, C, H, W] to codes of shape [B, code].
        decoder: Maps codes to images of shape [B, C, H, W].
        code: The number of values in a code.
    """

    def __init__(self, encoder: nn.Sequential, decoder: nn.Sequential, code: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.code = code

    def forward(self, x: Tensor) -> Tensor:
        """Return the reconstruction of the images x, shape [B, C, H, W]."""
        return self.decoder(self.encoder(x))


def _convolutions(spec: EncoderSettings, shape: Shape) -> Autoencoder:
    """Return an autoencoder with convolutions in the encoder and transposed convolutions in the decoder.

    All layers have 4x4 kernels, stride 2 and padding 1, and are followed by ReLU. The decoder's last layer has no ReLU,
    because normalized pixels can be negative. For 3x32x32 images, ``sizes: [12, 24, 48]`` gives a code of 48x4x4 = 768
    values, as in the closest public CIFAR-10 autoencoder (docs/papers/fedwad.md).

    A convolution halves the height and the width, rounded down (28 -> 14 -> 7 -> 3). For an odd height or width, output
    padding of the corresponding transposed convolution restores the lost row or column.
    """
    down = []
    odd_sides = []
    channels, height, width = shape
    for size in spec.sizes:
        down += [nn.Conv2d(channels, size, 4, 2, 1), nn.ReLU()]
        odd_sides.append((height % 2, width % 2))
        channels = size
        height = height // 2
        width = width // 2
    if min(height, width) < 1:
        raise UserError(
            f"{len(spec.sizes)} layers reduce {shape[1]}x{shape[2]} images to nothing. Use fewer layers",
            "encoder.sizes",
        )
    inner = (channels, height, width)
    up = [nn.Unflatten(1, inner)]
    for size, odd in zip([shape[0], *spec.sizes][-2::-1], odd_sides[::-1], strict=True):
        up += [nn.ConvTranspose2d(channels, size, 4, 2, 1, output_padding=odd), nn.ReLU()]
        channels = size
    return Autoencoder(nn.Sequential(*down, nn.Flatten()), nn.Sequential(*up[:-1]), math.prod(inner))


def _linear_layers(spec: EncoderSettings, shape: Shape) -> Autoencoder:
    """Return an autoencoder of linear layers with ReLU in between. The decoder has the encoder's sizes in reverse.

    The code and the output have no activation.
    """
    sizes = [math.prod(shape), *spec.sizes]
    encoder = nn.Sequential(nn.Flatten(), *_with_relu(sizes))
    return Autoencoder(encoder, nn.Sequential(*_with_relu(sizes[::-1]), nn.Unflatten(1, shape)), sizes[-1])


def _with_relu(sizes: list[int]) -> list[nn.Module]:
    """Return linear layers between consecutive ``sizes``, with a ReLU between each two layers."""
    layers = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]
