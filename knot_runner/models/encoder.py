"""Autoencoders whose code stands for an image where data sets are compared (FedWaD D.2, D.3)."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.errors import UserError
from knot_runner.models.images import Shape
from knot_runner.settings import EncoderSettings


def build_encoder(spec: EncoderSettings, shape: Shape) -> Autoencoder:
    """The autoencoder that ``spec`` describes for images of ``shape`` (C, H, W); weights from torch's current seed.

    Raises :class:`UserError` when the images are too small for it.
    """
    return {"conv": ConvAutoencoder, "dense": DenseAutoencoder}[spec.kind](spec, shape)


class Autoencoder(nn.Module):
    """``encode``: images [B, C, H, W] (normalised) -> codes [B, ``code``]; ``decode``: codes -> images."""

    #: numbers in a code
    code: int

    def encode(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def decode(self, codes: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


class ConvAutoencoder(Autoencoder):
    """4x4 convolutions of stride 2 and padding 1, each with ReLU, and transposed ones back (linear at the end, since
    normalised pixels have no bounds).

    ``sizes`` [12, 24, 48] on 3x32x32 give a code of 48x4x4 = 768, the public CIFAR-10 autoencoder that fedwad.md
    names. An odd side is halved and rounded down (28 -> 14 -> 7 -> 3); its transposed convolution pads the output by
    the one row that was lost.
    """

    def __init__(self, spec: EncoderSettings, shape: Shape) -> None:
        super().__init__()
        channels = [shape[0], *spec.sizes]
        sides = [tuple(shape[1:])]
        for _ in spec.sizes:
            sides.append(tuple(side // 2 for side in sides[-1]))
        if min(sides[-1]) < 1:
            raise UserError(f"encoder.sizes: {len(spec.sizes)} convolutions leave nothing of {shape[1]}x{shape[2]}")
        steps = list(zip(channels, channels[1:], sides, strict=False))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b, _ in steps)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 4, 2, 1, output_padding=(height % 2, width % 2))
            for a, b, (height, width) in reversed(steps)
        )
        self.inner = (channels[-1], *sides[-1])
        self.code = math.prod(self.inner)

    def encode(self, x: Tensor) -> Tensor:
        for layer in self.down:
            x = F.relu(layer(x))
        return x.flatten(1)

    def decode(self, codes: Tensor) -> Tensor:
        return _through(self.up, codes.unflatten(1, self.inner))


class DenseAutoencoder(Autoencoder):
    """Linear layers with ReLU between them, and their mirror image; code and output are linear."""

    def __init__(self, spec: EncoderSettings, shape: Shape) -> None:
        super().__init__()
        sizes = [math.prod(shape), *spec.sizes]
        steps = list(zip(sizes, sizes[1:], strict=False))
        self.down = nn.ModuleList(nn.Linear(a, b) for a, b in steps)
        self.up = nn.ModuleList(nn.Linear(b, a) for a, b in reversed(steps))
        self.shape = shape
        self.code = sizes[-1]

    def encode(self, x: Tensor) -> Tensor:
        return _through(self.down, x.flatten(1))

    def decode(self, codes: Tensor) -> Tensor:
        return _through(self.up, codes).unflatten(1, self.shape)


def _through(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """``layers`` with ReLU between them, the last one without."""
    for layer in layers[:-1]:
        x = F.relu(layer(x))
    return layers[-1](x)
