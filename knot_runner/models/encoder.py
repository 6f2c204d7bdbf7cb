"""Autoencoders, whose codes represent images in distances between data sets (FedWaD D.2, D.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from knot_runner.config.settings.methods.transport import EncoderSettings
from knot_runner.models.images import Shape
from knot_runner.util.errors import UserError


def build_encoder(spec: EncoderSettings, shape: Shape) -> Autoencoder:
    """Return the autoencoder of ``spec`` for images of ``shape`` (C, H, W), initialized from torch's current seed.

    Raises:
        UserError: The images are too small.
    """
    if spec.kind == "conv":
        return _convolutions(spec, shape)
    return _linear_layers(spec, shape)


class Autoencoder(nn.Module):
    """An encoder and a decoder for images.

    ``encoder`` maps normalized images of shape [B, C, H, W] to codes of shape [B, code], and ``decoder`` maps codes to
    images. ``code``: number of values of a code.
    """

    def __init__(self, encoder: nn.Sequential, decoder: nn.Sequential, code: int) -> None:
        super().__init__()
        self.encoder, self.decoder, self.code = encoder, decoder, code

    def forward(self, x: Tensor) -> Tensor:
        """Return the reconstruction of x [B, C, H, W]."""
        images: Tensor = self.decoder(self.encoder(x))
        return images


def _convolutions(spec: EncoderSettings, shape: Shape) -> Autoencoder:
    """Return an autoencoder with convolutions in the encoder and transposed convolutions in the decoder.

    All layers are 4x4 with stride 2 and padding 1, followed by ReLU. Only the decoder's last layer is linear, since
    normalized pixels are unbounded. ``sizes`` [12, 24, 48] on 3x32x32 give a code of 48x4x4 = 768, as in the closest
    public CIFAR-10 autoencoder (docs/papers/fedwad.md). A convolution halves the height and the width, rounded down (28
    -> 14 -> 7 -> 3). For an odd height or width, the matching transposed convolution restores the lost row or column by
    output padding.
    """
    channels, sides = [shape[0], *spec.sizes], [tuple(shape[1:])]
    for _ in spec.sizes:
        sides.append(tuple(side // 2 for side in sides[-1]))
    if min(sides[-1]) < 1:
        raise UserError(
            f"{len(spec.sizes)} layers reduce {shape[1]}x{shape[2]} images to nothing. Use fewer", "encoder.sizes"
        )
    steps = list(zip(channels, channels[1:], sides, strict=False))
    down = [nn.Conv2d(a, b, 4, 2, 1) for a, b, _ in steps]
    up = [
        nn.ConvTranspose2d(b, a, 4, 2, 1, output_padding=(height % 2, width % 2))
        for a, b, (height, width) in reversed(steps)
    ]
    inner = (channels[-1], *sides[-1])
    encoder = nn.Sequential(*_with_relu(down), nn.ReLU(), nn.Flatten())
    return Autoencoder(encoder, nn.Sequential(nn.Unflatten(1, inner), *_with_relu(up)), math.prod(inner))


def _linear_layers(spec: EncoderSettings, shape: Shape) -> Autoencoder:
    """Return an autoencoder of linear layers with ReLU in between. The decoder has the encoder's sizes in reverse.

    The code and the output have no activation.
    """
    sizes = [math.prod(shape), *spec.sizes]
    steps = list(zip(sizes, sizes[1:], strict=False))
    down = [nn.Linear(a, b) for a, b in steps]
    up = [nn.Linear(b, a) for a, b in reversed(steps)]
    decoder = nn.Sequential(*_with_relu(up), nn.Unflatten(1, shape))
    return Autoencoder(nn.Sequential(nn.Flatten(), *_with_relu(down)), decoder, sizes[-1])


def _with_relu(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Return ``layers`` with a ReLU between each two layers."""
    return [part for layer in layers for part in (layer, nn.ReLU())][:-1]
