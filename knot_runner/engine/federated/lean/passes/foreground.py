"""The first dense layer of many models on the same images, most of whose pixels show the background: exact, less work.

With the background B, the same in every image, the layer's output is X W' + b = (X - B) W' + (B W' + b), and X - B is 0
wherever an image shows the background. Pixels in which every image does cost nothing, pixels in which few do not are
added image by image, and the others are multiplied as ever. Sums have another order than in a dense product, so results
differ from its by rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.engine.federated.lean.passes.dense import WeightBias

#: A pixel is added image by image where at most one image in so many differs from the background: such an addition
#: takes about 14 times as long as one within a dense product (a core with AVX-512, layers of 256 outputs).
RARE = 16
#: The form is used where at most this share of the pixels is multiplied as ever.
MOST_MULTIPLIED = 0.8


class Foreground:
    """Where images [n, C, H, W] differ from their background: the value, per channel, of the first pixel of the first
    image. (Another value would be right, too, and save less.)"""

    def __init__(self, images: Tensor) -> None:
        count, channels = images.shape[:2]
        self._background = images[0, :, 0, 0].repeat_interleave(images[0, 0].numel())
        difference = images.reshape(count, -1) - self._background
        differing = (difference != 0).sum(0)
        self._often = (differing * RARE > count).nonzero()[:, 0]
        self._rarely = ((differing > 0) & (differing * RARE <= count)).nonzero()[:, 0]
        self._dense = difference[:, self._often].contiguous()
        rare = difference[:, self._rarely]
        image, self._pixel = rare.nonzero(as_tuple=True)  # one image after another
        self._value = rare[image, self._pixel]
        self._begins = torch.searchsorted(image, torch.arange(count))

    @property
    def saves(self) -> bool:
        """Whether so few pixels are multiplied that it is the faster way."""
        return len(self._often) <= MOST_MULTIPLIED * len(self._background)

    def numel(self) -> int:
        """Values that are kept."""
        return self._dense.numel() + 2 * self._value.numel()

    def affine(self, pair: WeightBias) -> Tensor:
        """X W' + b [n, out] of a layer's (weight [out, C H W], bias [out])."""
        weight, bias = pair
        constant = torch.addmv(bias, weight, self._background)
        found = torch.addmm(constant, self._dense, weight.index_select(1, self._often).t())
        if len(self._value):
            columns = weight.index_select(1, self._rarely).t().contiguous()
            options = {"mode": "sum", "per_sample_weights": self._value}
            found += F.embedding_bag(self._pixel, columns, self._begins, **options)
        return found
