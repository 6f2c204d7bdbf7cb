"""Settings of the image models, one dataclass per ``model.kind``. Input shape and classes come from the task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.settings.sizes import AT_LEAST_ONE, Depth, ImageSide, Width
from knot_runner.config.strict import require


@dataclass
class MlpSettings:
    """Flattened pixels, hidden layers with ReLU, a linear head. ``output=softmax``: the head's output is a softmax, fed
    again to cross-entropy, as the FedRep code does."""

    kind: Literal["mlp"]
    name: str
    hidden: list[Width]
    output: Literal["logits", "softmax"]

    def __post_init__(self) -> None:
        require(all(size >= 1 for size in self.hidden), "hidden", f"{self.hidden} has a size below 1")


@dataclass
class ConvSettings:
    """One convolution (stride 1), ReLU, then 2x2 max-pooling."""

    channels: Annotated[Width, AT_LEAST_ONE]
    kernel: Annotated[ImageSide, AT_LEAST_ONE]
    padding: ImageSide

    def __post_init__(self) -> None:
        require(0 <= self.padding < self.kernel, "padding", f"{self.padding} is not in 0..kernel-1")


@dataclass
class CnnSettings:
    """Convolutions, each with ReLU and 2x2 max-pooling, then hidden layers with ReLU and a linear head."""

    kind: Literal["cnn"]
    name: str
    convs: list[ConvSettings]
    hidden: list[Width]
    output: Literal["logits", "softmax"]

    def __post_init__(self) -> None:
        require(len(self.convs) >= 1, "convs", "needs at least one convolution; model.kind=mlp has none")
        require(all(size >= 1 for size in self.hidden), "hidden", f"{self.hidden} has a size below 1")


@dataclass
class ResnetSettings:
    """ResNet of basic blocks (He et al. 2016): ``blocks`` per stage, ``width`` of the first, doubled at each stage."""

    kind: Literal["resnet"]
    name: str
    blocks: list[Depth]
    width: Annotated[Width, AT_LEAST_ONE]
    #: cifar = 3x3 stride 1; imagenet = 7x7 stride 2 and 3x3 max-pooling
    stem: Literal["cifar", "imagenet"]
    norm: Literal["batch", "group"]
    #: for norm=group
    groups: Annotated[Width, AT_LEAST_ONE]

    def __post_init__(self) -> None:
        require(len(self.blocks) >= 1 and min(self.blocks) >= 1, "blocks", f"{self.blocks} has a stage without blocks")
        fits = self.norm != "group" or self.width % self.groups == 0
        require(fits, "groups", f"{self.groups} does not divide width={self.width}")


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
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = self.target.split(":")
        require(
            len(parts) == 2 and all(parts),
            "target",
            f"{self.target!r} is not module:function, the module being one of plugins",
        )


ImageModel = MlpSettings | CnnSettings | ResnetSettings | CustomSettings

#: ``model.kind`` -> its settings.
NETWORK_SETTINGS: dict[str, type] = {
    "mlp": MlpSettings,
    "cnn": CnnSettings,
    "resnet": ResnetSettings,
    "custom": CustomSettings,
}
