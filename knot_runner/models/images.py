"""Image models: multilayer perceptron, convolutional network, ResNet, wide ResNet, VGG, MobileNet.

In every model, the last linear layer is named ``head``. :mod:`knot_runner.models.taps` lists the intermediate outputs
that distillation can use.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.networks import (
    MOBILENET_STAGES,
    WRN_WIDTH,
    CnnSettings,
    ImageModel,
    MlpSettings,
    MobilenetSettings,
    ResnetSettings,
    VggSettings,
    WrnSettings,
)
from knot_runner.models.layers import initialize_convolutions, make_norm
from knot_runner.util.errors import UserError

#: (channels, height, width)
Shape = tuple[int, int, int]


def build_image_model(spec: ImageModel, shape: Shape, classes: int) -> nn.Module:
    """Return the model that ``spec`` describes, with random initial weights drawn from torch's global generator.

    The model maps images of shape [B, C, H, W] to logits of shape [B, classes].

    Raises:
        UserError: The images are too small for the number of convolutions or pooling layers.
    """
    match spec:
        case ResnetSettings():
            return Resnet(spec, shape, classes)
        case WrnSettings():
            return Wrn(spec, shape, classes)
        case VggSettings():
            return Vgg(spec, shape, classes)
        case MobilenetSettings():
            return Mobilenet(spec, shape, classes)
    return Cnn(spec, shape, classes)


class Cnn(nn.Module):
    """A convolutional network (McMahan et al. 2017), or a multilayer perceptron if there are no convolutions.

    Each convolution is followed by ReLU and 2x2 max-pooling. Hidden dense layers with ReLU follow the convolutions.
    The head is the last layer. An example of a multilayer perceptron is FEMNIST-DNN (784-512-256-128-62).
    """

    def __init__(self, spec: CnnSettings | MlpSettings, shape: Shape, classes: int) -> None:
        super().__init__()
        convs = getattr(spec, "convs", [])
        channels, height, width = shape
        self.convs = nn.ModuleList()
        for conv in convs:
            self.convs.append(nn.Conv2d(channels, conv.channels, conv.kernel, padding=conv.padding))
            channels = conv.channels
            height, width = ((side + 2 * conv.padding - conv.kernel + 1) // 2 for side in (height, width))
            if min(height, width) < 1:
                raise UserError(
                    f"{len(convs)} convolutions reduce {shape[1]}x{shape[2]} images to nothing. Use fewer convolutions",
                    "model.convs",
                )
        sizes = [channels * height * width, *spec.hidden]
        self.flatten = nn.Flatten()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.head = nn.Linear(sizes[-1], classes)
        self.softmax = spec.output == "softmax"

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits for images ``x`` [B, C, H, W]. With ``output: softmax``, return probabilities instead."""
        for conv in self.convs:
            x = F.max_pool2d(F.relu(conv(x)), 2)
        x = self.flatten(x)
        for layer in self.layers:
            x = F.relu(layer(x))
        x = self.head(x)
        return torch.softmax(x, 1) if self.softmax else x


def convolution(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """Return a convolution from ``before`` to ``after`` channels, without bias.

    With stride 1, the output of the convolution has the same height and width as the input.
    """
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)


def _block_sizes(counts: list[int], before: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Yield (input channels, output channels, stride) of every block.

    ``counts``: the number of blocks in each stage. The first stage has ``width`` channels. Each further stage doubles
    the number of channels, and its first block halves the height and the width of the feature maps.
    """
    for stage, count in enumerate(counts):
        after = width * 2**stage
        stride = min(stage + 1, 2)
        for _ in range(count):
            yield before, after, stride
            before = after
            stride = 1


class _Block(nn.Module):
    def __init__(self, spec: ResnetSettings, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(before, after, 3, stride)
        self.norm1 = make_norm(spec, after)
        self.conv2 = convolution(after, after)
        self.norm2 = make_norm(spec, after)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short = nn.Sequential(convolution(before, after, 1, stride), make_norm(spec, after))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for x [B, C, H, W]."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class Resnet(nn.Module):
    """A ResNet with basic blocks.

    For example, the settings ``blocks: [2, 2, 2, 2]`` and ``width: 64`` give ResNet-18, which has 11.2 M parameters for
    100 classes.
    """

    def __init__(self, spec: ResnetSettings, shape: Shape, classes: int) -> None:
        super().__init__()
        kernel = 3
        stride = 1
        self.pool: nn.Module = nn.Identity()
        if spec.stem == "imagenet":
            kernel = 7
            stride = 2
            self.pool = nn.MaxPool2d(3, 2, 1)
        self.stem = convolution(shape[0], spec.width, kernel, stride)
        self.norm = make_norm(spec, spec.width)
        sizes = _block_sizes(spec.blocks, spec.width, spec.width)
        self.stages = nn.Sequential(*(_Block(spec, *block) for block in sizes))
        self.head = nn.Linear(spec.width * 2 ** (len(spec.blocks) - 1), classes)
        initialize_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits for the images ``x`` [B, C, H, W]."""
        x = self.stages(self.pool(F.relu(self.norm(self.stem(x)))))
        return self.head(x.mean((2, 3)))  # instead of adaptive pooling, whose gradient is not deterministic on CUDA


class _PreActivation(nn.Module):
    """A residual block with normalization and ReLU before each convolution.

    The block returns the sum of shortcut and residual without an activation. The ReLU is applied at the beginning of
    the next block, or after the last normalization of the network. If the number of channels changes, the shortcut
    reads the block's input after normalization and ReLU.
    """

    def __init__(self, spec: WrnSettings, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1 = make_norm(spec, before)
        self.conv1 = convolution(before, after, 3, stride)
        self.norm2 = make_norm(spec, after)
        self.conv2 = convolution(after, after)
        self.short = convolution(before, after, 1, stride) if before != after else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for x [B, C, H, W]."""
        active = F.relu(self.norm1(x))
        y = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return y + (x if self.short is None else self.short(active))


class Wrn(nn.Module):
    """A wide ResNet.

    For example, the settings ``depth: 16`` and ``widen: 2`` give WRN-16-2, which has 703,284 parameters for 100
    classes.
    """

    def __init__(self, spec: WrnSettings, shape: Shape, classes: int) -> None:
        super().__init__()
        self.stem = convolution(shape[0], WRN_WIDTH)
        width = WRN_WIDTH * spec.widen
        sizes = _block_sizes(spec.blocks, WRN_WIDTH, width)
        self.stages = nn.Sequential(*(_PreActivation(spec, *block) for block in sizes))
        last = width * 2 ** (len(spec.blocks) - 1)
        self.norm = make_norm(spec, last)
        self.head = nn.Linear(last, classes)
        initialize_convolutions(self)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits for the images ``x`` [B, C, H, W]."""
        x = F.relu(self.norm(self.stages(self.stem(x))))
        return self.head(x.mean((2, 3)))


class Vgg(nn.Module):
    """A VGG network.

    For example, the settings ``stages: [[64], [128], [256], [512], [512]]`` and ``pools: 3`` give VGG-8, which has
    3,965,028 parameters for 100 classes and 3x32x32 images.
    """

    def __init__(self, spec: VggSettings, shape: Shape, classes: int) -> None:
        super().__init__()
        if min(shape[1:]) < 2**spec.pools:
            raise UserError(
                f"{spec.pools} poolings reduce {shape[1]}x{shape[2]} images to nothing. Use fewer poolings",
                "model.pools",
            )
        self.stages = nn.ModuleList()
        before = shape[0]
        for sizes in spec.stages:
            layers = []
            for after in sizes:
                layers += [nn.Conv2d(before, after, 3, 1, 1), make_norm(spec, after), nn.ReLU()]
                before = after
            self.stages.append(nn.Sequential(*layers))
        self.pools = spec.pools
        self.head = nn.Linear(before, classes)
        initialize_convolutions(self)
        nn.init.normal_(self.head.weight, 0.0, 0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits for the images ``x`` [B, C, H, W]."""
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if number < self.pools:
                x = F.max_pool2d(x, 2)
        return self.head(x.mean((2, 3)))


# --------------------------------------------------------------------------------------------------------- mobilenet


#: channels of the first convolution
STEM = 32


class _InvertedResidual(nn.Module):
    """An inverted residual block of MobileNetV2.

    The block has a 1x1 convolution that multiplies the number of channels by ``expansion``, a depthwise 3x3 convolution
    and a linear 1x1 convolution. The first convolution is omitted if ``expansion`` is 1. If input and output have the
    same shape, they are added.
    """

    def __init__(self, spec: MobilenetSettings, before: int, after: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = before * expansion
        self.expand = None
        self.norm1 = None
        if expansion != 1:
            self.expand = convolution(before, inner, 1)
            self.norm1 = make_norm(spec, inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        self.norm2 = make_norm(spec, inner)
        self.project = convolution(inner, after, 1)
        self.norm3 = make_norm(spec, after)
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for x [B, C, H, W]."""
        y = x
        if self.expand is not None:
            y = F.relu6(self.norm1(self.expand(y)))
        y = F.relu6(self.norm2(self.depthwise(y)))
        y = self.norm3(self.project(y))
        return x + y if self.adds else y


class Mobilenet(nn.Module):
    """MobileNetV2 (Sandler et al. 2018), built and initialized as in torchvision, but without dropout before the head.

    The normalization is BatchNorm or GroupNorm. Both give the same number of parameters. For example, the settings
    ``width: 1`` and ``last: 1280`` give 3,504,872 parameters for 1,000 classes. For every image size, the
    strides are those of the paper.
    """

    def __init__(self, spec: MobilenetSettings, shape: Shape, classes: int) -> None:
        super().__init__()
        before = spec.channels(STEM)
        self.stem = convolution(shape[0], before, 3, 2)
        self.norm = make_norm(spec, before)
        blocks = []
        for expansion, count, repeats, stride in MOBILENET_STAGES:
            after = spec.channels(count)
            for _ in range(repeats):
                blocks.append(_InvertedResidual(spec, before, after, expansion, stride))
                before = after
                stride = 1
        self.stages = nn.Sequential(*blocks)
        self.widen = convolution(before, spec.last, 1)
        self.last_norm = make_norm(spec, spec.last)
        self.head = nn.Linear(spec.last, classes)
        initialize_convolutions(self)
        nn.init.normal_(self.head.weight, 0.0, 0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits for the images ``x`` [B, C, H, W]."""
        x = self.stages(F.relu6(self.norm(self.stem(x))))
        x = F.relu6(self.last_norm(self.widen(x)))
        return self.head(x.mean((2, 3)))
