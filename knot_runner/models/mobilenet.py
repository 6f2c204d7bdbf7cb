"""MobileNetV2 (Sandler et al. 2018), as torchvision builds and initializes it; with GroupNorm for federated rounds."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings import MobilenetSettings
from knot_runner.config.settings.networks import MOBILENET_STAGES
from knot_runner.models.layers import initialize_convolutions, make_norm

#: channels of the first convolution
STEM = 32


class _InvertedResidual(nn.Module):
    """1x1 convolution to ``expansion`` times the channels (none where it is 1), a 3x3 convolution of each channel by
    itself, and a linear 1x1 convolution; added to the input where the shape is the same."""

    def __init__(self, spec: MobilenetSettings, before: int, after: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = before * expansion
        self.expand, self.norm1 = None, None
        if expansion != 1:
            self.expand, self.norm1 = nn.Conv2d(before, inner, 1, bias=False), make_norm(spec, inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        self.norm2 = make_norm(spec, inner)
        self.project = nn.Conv2d(inner, after, 1, bias=False)
        self.norm3 = make_norm(spec, after)
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else F.relu6(self.norm1(self.expand(x)))
        y = F.relu6(self.norm2(self.depthwise(y)))
        y = self.norm3(self.project(y))
        return x + y if self.adds else y


class Mobilenet(nn.Module):
    """``width: 1``, ``last: 1280`` has 3,504,872 parameters with 1,000 classes, with either normalization. The paper's
    strides at every image size; without torchvision's dropout before the head."""

    def __init__(self, spec: MobilenetSettings, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        before = spec.channels(STEM)
        self.stem = nn.Conv2d(shape[0], before, 3, 2, 1, bias=False)
        self.norm = make_norm(spec, before)
        blocks = []
        for expansion, count, repeats, first_stride in MOBILENET_STAGES:
            after = spec.channels(count)
            for number in range(repeats):
                stride = first_stride if number == 0 else 1
                blocks.append(_InvertedResidual(spec, before, after, expansion, stride))
                before = after
        self.stages = nn.Sequential(*blocks)
        self.widen = nn.Conv2d(before, spec.last, 1, bias=False)
        self.last_norm = make_norm(spec, spec.last)
        self.head = nn.Linear(spec.last, classes)
        initialize_convolutions(self)
        nn.init.normal_(self.head.weight, 0.0, 0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu6(self.norm(self.stem(x))))
        x = F.relu6(self.last_norm(self.widen(x)))
        return self.head(x.mean((2, 3)))
