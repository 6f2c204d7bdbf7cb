"""Settings of the image models, with one dataclass per ``model.kind``. Input shape and classes come from the task."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.settings.sizes import ABOVE_ZERO, AT_LEAST_ONE, Channels, Depth, ImageSide
from knot_runner.config.strict import AtMost, SettingsClasses, require
from knot_runner.util.config_yaml import Config

#: Channels of a wide ResNet's first convolution, and of its first stage times ``widen``.
WRN_WIDTH = 16
#: Kind of normalization; output of the head.
Norm = Literal["batch", "group"]
Output = Literal["logits", "softmax"]
#: Stages of MobileNetV2 (Sandler et al. 2018, table 2): expansion, channels, blocks, stride of the first block.
MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


@dataclass
class ImageModel:
    """Settings common to all image models."""

    kind: str
    name: str


@dataclass
class MlpSettings(ImageModel):
    """A multilayer perceptron with ReLU."""

    #: units of each hidden layer
    hidden: list[Channels]
    #: output of the head; softmax applies softmax before cross-entropy, as in the FedRep code
    output: Output


@dataclass
class ConvSettings:
    """A convolution (stride 1), ReLU, and 2x2 max-pooling."""

    #: output channels
    channels: Channels
    #: kernel size
    kernel: Annotated[ImageSide, AT_LEAST_ONE]
    #: zero padding
    padding: ImageSide

    def __post_init__(self) -> None:
        require(0 <= self.padding < self.kernel, "padding", f"expected 0 to kernel - 1, got {self.padding}")


@dataclass
class CnnSettings(ImageModel):
    """Convolutions, then hidden layers with ReLU, then a linear head."""

    #: convolutions in order
    convs: list[ConvSettings]
    #: units of each hidden layer
    hidden: list[Channels]
    #: output of the head; softmax applies softmax before cross-entropy, as in the FedRep code
    output: Output

    def __post_init__(self) -> None:
        require(
            len(self.convs) >= 1,
            "convs",
            "expected at least one convolution. For a model without convolutions, use the kind 'mlp'",
        )


def _require_groups(model: Any, channels: Iterable[int], what: str) -> None:
    """Check that the number of normalization groups divides ``channels``; ``what`` describes the channels in errors."""
    fits = model.norm != "group" or math.gcd(model.groups, *channels) == model.groups
    require(fits, "groups", f"expected a divisor of {what}, got {model.groups}")


@dataclass
class ResnetSettings(ImageModel):
    """A ResNet of basic blocks (He et al. 2016); the width doubles at each stage."""

    #: residual blocks per stage
    blocks: list[Depth]
    #: channels of the first stage
    width: Channels
    #: 3x3 convolution (cifar), or 7x7 with stride 2 and max-pooling (imagenet)
    stem: Literal["cifar", "imagenet"]
    #: batch or group normalization
    norm: Norm
    #: groups for norm=group
    groups: Channels

    def __post_init__(self) -> None:
        require(min(self.blocks, default=0) >= 1, "blocks", f"expected at least 1 per stage, got {self.blocks}")
        _require_groups(self, [self.width], f"width={self.width}")


@dataclass
class WrnSettings(ImageModel):
    """A Wide ResNet (Zagoruyko and Komodakis 2016) whose stages have ``widen`` times 16, 32 and 64 channels."""

    #: total layers: 6n + 4 for n blocks per stage
    depth: Depth
    #: width multiplier
    widen: Channels
    #: batch or group normalization
    norm: Norm
    #: groups for norm=group
    groups: Channels

    def __post_init__(self) -> None:
        fits = self.depth >= 10 and (self.depth - 4) % 6 == 0
        require(fits, "depth", f"expected 6n + 4 with n >= 1, such as 10, 16, 22, 28 or 40, got {self.depth}")
        _require_groups(self, [WRN_WIDTH], f"{WRN_WIDTH} (the number of channels of the first convolution)")

    @property
    def blocks(self) -> list[int]:
        """Return a list with the number of blocks in each stage. A block has two convolutions."""
        return [(self.depth - 4) // 6] * 3


@dataclass
class VggSettings(ImageModel):
    """RepDistiller's VGG for CIFAR: 3x3 convolutions with normalization and ReLU; global pooling; head."""

    #: channels of the convolutions in each stage
    stages: list[list[Channels]]
    #: number of stages, from the first, followed by 2x2 max-pooling
    pools: Depth
    #: batch or group normalization
    norm: Norm
    #: groups for norm=group
    groups: Channels

    def __post_init__(self) -> None:
        require(all([self.stages, *self.stages]), "stages", f"expected one or more non-empty stages, got {self.stages}")
        fits = 0 <= self.pools <= len(self.stages)
        require(fits, "pools", f"expected 0 to {len(self.stages)} (the number of stages), got {self.pools}")
        _require_groups(self, itertools.chain(*self.stages), "all numbers in model.stages")


@dataclass
class MobilenetSettings(ImageModel):
    """MobileNetV2 (Sandler et al. 2018); channels are rounded to multiples of 8."""

    #: width multiplier
    width: Annotated[float, AtMost(100), ABOVE_ZERO]
    #: channels of the last convolution
    last: Channels
    #: batch or group normalization
    norm: Norm
    #: groups for norm=group
    groups: Channels

    def __post_init__(self) -> None:
        _require_groups(self, [8, self.last], f"model.last={self.last} and of 8 (block widths are multiples of 8)")
        # a group of one channel at one pixel has no variance
        narrowest = min(self.channels(MOBILENET_STAGES[0][1]), self.last)
        fits = self.norm != "group" or narrowest >= 2 * self.groups
        require(
            fits,
            "groups",
            f"expected at most {narrowest // 2} (a layer has {narrowest} channels, and each group needs at least 2), "
            f"got {self.groups}",
        )

    def channels(self, count: int) -> int:
        """Return ``count * width``, rounded to a multiple of 8.

        The result is at least 8, and at least 90% of the exact product.
        """
        exact = count * self.width
        rounded = max(8, int(exact + 4) // 8 * 8)
        if rounded < 0.9 * exact:
            rounded += 8
        return rounded

    @property
    def blocks(self) -> list[int]:
        """Return a list with the number of blocks in each stage."""
        return [count for _, _, count, _ in MOBILENET_STAGES]


@dataclass
class CustomSettings(ImageModel):
    """A custom image model.

    ``target`` is called with the image shape, the number of classes and ``options``, and returns a ``torch.nn.Module``
    that maps images to logits.
    """

    #: module:function, where the module is one of ``plugins``
    target: str
    #: module name of the last layer, which FedPer and FedRep keep local
    head: str = "head"
    #: additional arguments of ``target``
    options: Config = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = self.target.split(":")
        fits = len(parts) == 2 and all(parts)
        require(fits, "target", f"expected module:function (the module must be in plugins), got {self.target!r}")


#: ``model.kind`` -> its settings.
NETWORK_SETTINGS: SettingsClasses = {
    "mlp": MlpSettings,
    "cnn": CnnSettings,
    "resnet": ResnetSettings,
    "wrn": WrnSettings,
    "vgg": VggSettings,
    "mobilenet": MobilenetSettings,
    "custom": CustomSettings,
}
