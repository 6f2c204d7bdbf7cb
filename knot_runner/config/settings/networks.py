"""Settings of the image models, one dataclass per ``model.kind``. Input shape and classes come from the task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.settings.sizes import ABOVE_ZERO, AT_LEAST_ONE, Depth, ImageSide, Width
from knot_runner.config.strict import AtMost, require

#: Channels of a wide ResNet's first convolution, and of its first stage times ``widen``.
WRN_WIDTH = 16
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
class MlpSettings:
    """Flattened pixels, hidden layers with ReLU, a linear head. ``output=softmax``: the head's output is a softmax, fed
    again to cross-entropy, as the FedRep code does."""

    kind: Literal["mlp"]
    name: str
    #: units of the hidden layers
    hidden: list[Width]
    #: what the head gives to the loss
    output: Literal["logits", "softmax"]

    def __post_init__(self) -> None:
        require(all(size >= 1 for size in self.hidden), "hidden", f"{self.hidden} has a size below 1")


@dataclass
class ConvSettings:
    """One convolution (stride 1), ReLU, then 2x2 max-pooling."""

    #: that the convolution makes
    channels: Annotated[Width, AT_LEAST_ONE]
    #: side of its kernel, in pixels
    kernel: Annotated[ImageSide, AT_LEAST_ONE]
    #: zeros around its input, in pixels
    padding: ImageSide

    def __post_init__(self) -> None:
        require(0 <= self.padding < self.kernel, "padding", f"{self.padding} is not in 0..kernel-1")


@dataclass
class CnnSettings:
    """Convolutions, each with ReLU and 2x2 max-pooling, then hidden layers with ReLU and a linear head."""

    kind: Literal["cnn"]
    name: str
    #: the convolutions, in their order
    convs: list[ConvSettings]
    #: units of the hidden layers after the convolutions
    hidden: list[Width]
    #: what the head gives to the loss
    output: Literal["logits", "softmax"]

    def __post_init__(self) -> None:
        require(len(self.convs) >= 1, "convs", "needs at least one convolution; model.kind=mlp has none")
        require(all(size >= 1 for size in self.hidden), "hidden", f"{self.hidden} has a size below 1")


@dataclass
class ResnetSettings:
    """ResNet of basic blocks (He et al. 2016): ``blocks`` per stage, ``width`` of the first, doubled at each stage."""

    kind: Literal["resnet"]
    name: str
    #: residual blocks of each stage
    blocks: list[Depth]
    #: channels of the first stage
    width: Annotated[Width, AT_LEAST_ONE]
    #: cifar = 3x3 stride 1; imagenet = 7x7 stride 2 and 3x3 max-pooling
    stem: Literal["cifar", "imagenet"]
    #: BatchNorm, or GroupNorm, which has no running statistics
    norm: Literal["batch", "group"]
    #: groups of GroupNorm, where norm=group
    groups: Annotated[Width, AT_LEAST_ONE]

    def __post_init__(self) -> None:
        require(len(self.blocks) >= 1 and min(self.blocks) >= 1, "blocks", f"{self.blocks} has a stage without blocks")
        fits = self.norm != "group" or self.width % self.groups == 0
        require(fits, "groups", f"{self.groups} does not divide width={self.width}")


@dataclass
class WrnSettings:
    """Wide ResNet of pre-activation blocks (Zagoruyko and Komodakis 2016): three stages of 16, 32 and 64 channels, each
    times ``widen``, and ``depth`` convolutions and linear layers in a row."""

    kind: Literal["wrn"]
    name: str
    #: layers in a row: 6n + 4 for n blocks a stage
    depth: Depth
    #: the channels of every stage times this
    widen: Annotated[Width, AT_LEAST_ONE]
    #: BatchNorm, or GroupNorm, which has no running statistics
    norm: Literal["batch", "group"]
    #: groups of GroupNorm, where norm=group
    groups: Annotated[Width, AT_LEAST_ONE]

    def __post_init__(self) -> None:
        fits = self.depth >= 10 and (self.depth - 4) % 6 == 0
        require(fits, "depth", f"{self.depth} is not 6n + 4, as 10, 16, 22, 28 and 40 are")
        fits = self.norm != "group" or WRN_WIDTH % self.groups == 0
        require(fits, "groups", f"{self.groups} does not divide {WRN_WIDTH}, the channels of the first convolution")

    @property
    def blocks(self) -> list[int]:
        """Per stage, as a ResNet's: two convolutions each, beside the first convolution, the head and two shortcuts."""
        return [(self.depth - 4) // 6] * 3


@dataclass
class VggSettings:
    """VGG without hidden layers (as RepDistiller's for CIFAR): ``stages`` of 3x3 convolutions by their channels, each
    with normalization and ReLU; 2x2 max-pooling after each of the first ``pools`` stages, global pooling, the head."""

    kind: Literal["vgg"]
    name: str
    #: channels of the convolutions of each stage
    stages: list[list[Annotated[Width, AT_LEAST_ONE]]]
    #: stages, from the first on, after which there is 2x2 max-pooling
    pools: Depth
    #: BatchNorm, or GroupNorm, which has no running statistics
    norm: Literal["batch", "group"]
    #: groups of GroupNorm, where norm=group
    groups: Annotated[Width, AT_LEAST_ONE]

    def __post_init__(self) -> None:
        require(len(self.stages) >= 1 and all(self.stages), "stages", f"{self.stages} has a stage without convolutions")
        fits = 0 <= self.pools <= len(self.stages)
        require(fits, "pools", f"{self.pools} is not in 0..{len(self.stages)}, the number of stages")
        sizes = [size for stage in self.stages for size in stage]
        fits = self.norm != "group" or all(size % self.groups == 0 for size in sizes)
        require(fits, "groups", f"{self.groups} does not divide the channels of every convolution")


@dataclass
class MobilenetSettings:
    """MobileNetV2 (Sandler et al. 2018): :data:`MOBILENET_STAGES` of inverted residuals, their channels times ``width``
    and rounded to multiples of 8, and a last convolution of ``last`` channels before the head."""

    kind: Literal["mobilenet"]
    name: str
    #: the channels of every stage times this
    width: Annotated[float, AtMost(100), ABOVE_ZERO]
    #: channels of the last convolution
    last: Annotated[Width, AT_LEAST_ONE]
    #: BatchNorm, or GroupNorm, which has no running statistics
    norm: Literal["batch", "group"]
    #: groups of GroupNorm, where norm=group
    groups: Annotated[Width, AT_LEAST_ONE]

    def __post_init__(self) -> None:
        if self.norm != "group":
            return
        fits = 8 % self.groups == 0 and self.last % self.groups == 0
        require(fits, "groups", f"{self.groups} does not divide 8 and last={self.last}")
        # a group of one channel at one pixel has no variance
        narrowest = min(self.channels(MOBILENET_STAGES[0][1]), self.last)
        fits = narrowest >= 2 * self.groups
        require(fits, "groups", f"{self.groups} groups need {2 * self.groups} channels; the narrowest has {narrowest}")

    def channels(self, count: int) -> int:
        """``count`` channels at this width: the nearest multiple of 8, at least 8, no more than a tenth below."""
        exact = count * self.width
        rounded = max(8, int(exact + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * exact else rounded

    @property
    def blocks(self) -> list[int]:
        """Blocks of every stage."""
        return [count for _, _, count, _ in MOBILENET_STAGES]


@dataclass
class CustomSettings:
    """An image model of one's own: ``target`` is called with the images' shape (channels, height, width), the number of
    classes and ``options``, and returns a ``torch.nn.Module`` that maps images [B, C, H, W] to logits [B, classes]."""

    kind: Literal["custom"]
    name: str
    #: module:function, the module being one of ``plugins``
    target: str
    #: its last layer, as the module names it: what fedper and fedrep do not share
    head: str = "head"
    #: what ``target`` is called with, besides shape and classes
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = self.target.split(":")
        require(
            len(parts) == 2 and all(parts),
            "target",
            f"{self.target!r} is not module:function, the module being one of plugins",
        )


ImageModel = MlpSettings | CnnSettings | ResnetSettings | WrnSettings | VggSettings | MobilenetSettings | CustomSettings

#: ``model.kind`` -> its settings.
NETWORK_SETTINGS: dict[str, type] = {
    "mlp": MlpSettings,
    "cnn": CnnSettings,
    "resnet": ResnetSettings,
    "wrn": WrnSettings,
    "vgg": VggSettings,
    "mobilenet": MobilenetSettings,
    "custom": CustomSettings,
}
