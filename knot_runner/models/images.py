"""Image models: multi-layer perceptron, convolutional network, ResNet. The last linear layer is ``head`` in all."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings import CnnSettings, ImageModel, MlpSettings, ResnetSettings
from knot_runner.models.norms import make_norm
from knot_runner.util.errors import UserError

#: (channels, height, width)
Shape = tuple[int, int, int]


def build_image_model(spec: ImageModel, shape: Shape, classes: int) -> nn.Module:
    """The model that ``spec`` describes, x [B, C, H, W] -> logits [B, classes]; weights from torch's current seed.

    Raises :class:`UserError` when the images are too small for it.
    """
    kinds = {MlpSettings: Mlp, CnnSettings: Cnn, ResnetSettings: Resnet}
    return kinds[type(spec)](spec, shape, classes)


def _dense(sizes: list[int]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False))


def _through_dense(model: Mlp | Cnn, x: Tensor) -> Tensor:
    x = x.flatten(1)
    for layer in model.layers:
        x = F.relu(layer(x))
    x = model.head(x)
    return torch.softmax(x, 1) if model.softmax else x


class Mlp(nn.Module):
    """Flatten, hidden layers with ReLU, head (FEMNIST-DNN: 784-512-256-128-62)."""

    def __init__(self, spec: MlpSettings, shape: Shape, classes: int) -> None:
        super().__init__()
        sizes = [shape[0] * shape[1] * shape[2], *spec.hidden]
        self.layers = _dense(sizes)
        self.head = nn.Linear(sizes[-1], classes)
        self.softmax = spec.output == "softmax"

    def forward(self, x: Tensor) -> Tensor:
        return _through_dense(self, x)


class Cnn(nn.Module):
    """Convolutions with ReLU and 2x2 max-pooling, hidden layers with ReLU, head (McMahan et al. 2017)."""

    def __init__(self, spec: CnnSettings, shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.convs = nn.ModuleList()
        for conv in spec.convs:
            self.convs.append(nn.Conv2d(channels, conv.channels, conv.kernel, padding=conv.padding))
            channels = conv.channels
            height, width = ((side + 2 * conv.padding - conv.kernel + 1) // 2 for side in (height, width))
            if min(height, width) < 1:
                raise UserError(f"model.convs: {len(spec.convs)} convolutions leave nothing of {shape[1]}x{shape[2]}")
        sizes = [channels * height * width, *spec.hidden]
        self.layers = _dense(sizes)
        self.head = nn.Linear(sizes[-1], classes)
        self.softmax = spec.output == "softmax"

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.max_pool2d(F.relu(conv(x)), 2)
        return _through_dense(self, x)


class _Block(nn.Module):
    def __init__(self, spec: ResnetSettings, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = make_norm(spec, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = make_norm(spec, after)
        self.short = nn.Identity()
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), make_norm(spec, after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class Resnet(nn.Module):
    """Basic blocks; ``blocks: [2, 2, 2, 2]``, ``width: 64`` is ResNet-18 (11.2 M parameters with 100 classes)."""

    def __init__(self, spec: ResnetSettings, shape: Shape, classes: int) -> None:
        super().__init__()
        wide = spec.stem == "imagenet"
        kernel, stride, padding = (7, 2, 3) if wide else (3, 1, 1)
        self.stem = nn.Conv2d(shape[0], spec.width, kernel, stride, padding, bias=False)
        self.norm = make_norm(spec, spec.width)
        self.pool = nn.MaxPool2d(3, 2, 1) if wide else nn.Identity()
        stages, before = [], spec.width
        for stage, count in enumerate(spec.blocks):
            after = spec.width * 2**stage
            for block in range(count):
                stages.append(_Block(spec, before, after, 2 if stage and not block else 1))
                before = after
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.pool(F.relu(self.norm(self.stem(x)))))
        return self.head(x.mean((2, 3)))  # not adaptive pooling, whose gradient is not deterministic on CUDA
