"""The small families of the distillation literature: sizes by hand and as printed, passes against independent ones."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.composing.commands import compose_all
from knot_runner.config.settings import VggSettings, WrnSettings
from knot_runner.config.strict import build
from knot_runner.models.images import Shape, build_image_model
from tests.golden.messages import refuses

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


@cache
def chosen(name: str):
    """The settings of ``model=name``."""
    return compose_all(["task=cifar100", f"model={name}"])[0][0].settings.model


def size_of(name: str, shape: Shape, classes: int) -> int:
    with torch.device("meta"):
        model = build_image_model(chosen(name), shape, classes)
        assert model(torch.zeros(2, *shape)).shape == (2, classes)
    assert list(model.state_dict())[-1] == "head.bias"
    return sum(parameter.numel() for parameter in model.parameters())


def cnn(width: int, shape: Shape, classes: int) -> int:
    """Three 3x3 convolutions with biases; the sides are halved and rounded down three times."""
    channels, height, side = shape
    convs = sum(9 * a * b + b for a, b in ((channels, width), (width, 2 * width), (2 * width, 4 * width)))
    pixels = (height // 8) * (side // 8)
    return convs + 4 * width * pixels * classes + classes


def resnet(depth: int, classes: int) -> int:
    """Stem and blocks of two 3x3 convolutions, each with normalisation; two 1x1 shortcuts, with normalisation, too."""
    blocks = (depth - 2) // 6
    same = [2 * (9 * width * width + 2 * width) for width in (16, 32, 64)]
    wider = [9 * a * b + 9 * b * b + a * b + 3 * 2 * b for a, b in ((16, 32), (32, 64))]
    inner = blocks * same[0] + (blocks - 1) * (same[1] + same[2]) + sum(wider)
    return 27 * 16 + 2 * 16 + inner + 64 * classes + classes


def wrn(depth: int, widen: int, classes: int) -> int:
    """Normalisation of what each convolution reads, and of what the head reads; 1x1 shortcuts where channels change."""
    blocks, widths = (depth - 4) // 6, [16, 16 * widen, 32 * widen, 64 * widen]
    found = 27 * 16
    for before, after in zip(widths, widths[1:], strict=False):
        short = before * after if before != after else 0
        found += 2 * before + 9 * before * after + 2 * after + 9 * after * after + short
        found += (blocks - 1) * 2 * (2 * after + 9 * after * after)
    return found + 2 * widths[-1] + widths[-1] * classes + classes


def vgg(channels: list[int], classes: int) -> int:
    """3x3 convolutions with biases and normalisation."""
    convs = sum(9 * a * b + 3 * b for a, b in zip([3, *channels], channels, strict=False))
    return convs + channels[-1] * classes + classes


@pytest.mark.parametrize("width", [4, 8, 16, 32, 64])
def test_sizes_of_the_convolutional_networks(width: int) -> None:
    assert size_of(f"cnn_{width}", GREY, 10) == cnn(width, GREY, 10)
    assert size_of(f"cnn_{width}", COLOUR, 10) == cnn(width, COLOUR, 10)


#: (He et al. 2016, table 6: millions with 10 classes and shortcuts without parameters; with 100 classes: what
#: RepDistiller's classes have when they are built)
RESNETS = {
    8: (None, 83_892),
    20: (0.27, 278_324),
    32: (0.46, 472_756),
    56: (0.85, 861_620),
    110: (1.7, 1_736_564),
}


@pytest.mark.parametrize("depth", RESNETS)
def test_sizes_of_the_residual_networks(depth: int) -> None:
    printed, theirs = RESNETS[depth]
    assert size_of(f"resnet{depth}", COLOUR, 100) == resnet(depth, 100) == theirs
    ten = size_of(f"resnet{depth}", COLOUR, 10)
    assert ten == resnet(depth, 10)
    shortcuts = 16 * 32 + 64 + 32 * 64 + 128
    assert printed is None or round((ten - shortcuts) / 1e6, len(str(printed)) - 2) == printed


#: (Zagoruyko and Komodakis 2016: millions with 10 classes; with 100 classes: RepDistiller's classes)
WRNS = {(16, 1): (None, 180_916), (16, 2): (0.7, 703_284), (40, 1): (0.6, 569_780), (40, 2): (2.2, 2_255_156)}


@pytest.mark.thorough
@pytest.mark.parametrize(("depth", "widen"), WRNS)
def test_sizes_of_the_wide_residual_networks(depth: int, widen: int) -> None:
    printed, theirs = WRNS[depth, widen]
    assert size_of(f"wrn_{depth}_{widen}", COLOUR, 100) == wrn(depth, widen, 100) == theirs
    ten = size_of(f"wrn_{depth}_{widen}", COLOUR, 10)
    assert ten == wrn(depth, widen, 10)
    assert printed is None or round(ten / 1e6, 1) == printed


@pytest.mark.parametrize(
    ("name", "channels", "theirs"),
    [
        ("vgg8", [64, 128, 256, 512, 512], 3_965_028),
        ("vgg13", [64, 64, 128, 128, 256, 256, 512, 512, 512, 512], 9_462_180),
    ],
)
def test_sizes_of_the_vggs(name: str, channels: list[int], theirs: int) -> None:
    """``theirs``: RepDistiller's classes with 100 classes (3.97 and 9.46 million in its descendants' tables)."""
    assert size_of(name, COLOUR, 100) == vgg(channels, 100) == theirs
    assert size_of(name, COLOUR, 10) == vgg(channels, 10)


def disturbed(spec: WrnSettings | VggSettings, classes: int = 4) -> nn.Module:
    """A model whose normalisations are unlike one and zero, so that none is left out unseen."""
    torch.manual_seed(0)
    model = build_image_model(spec, (2, 12, 12), classes).double()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("widen", [1, 2])
def test_the_wide_residual_network_is_zagoruykos(widen: int) -> None:
    model = disturbed(WrnSettings("wrn", "w", 16, widen, "batch", 1))
    state, x = model.state_dict(), torch.randn(5, 2, 12, 12, dtype=torch.float64)

    def activated(name: str, x: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, None, None, state[f"{name}.weight"], state[f"{name}.bias"], True))

    y = F.conv2d(x, state["stem.weight"], padding=1)
    for number, stride in enumerate((1, 1, 2, 1, 2, 1)):
        name = f"stages.{number}"
        read = activated(f"{name}.norm1", y)
        added = F.conv2d(read, state[f"{name}.conv1.weight"], stride=stride, padding=1)
        added = F.conv2d(activated(f"{name}.norm2", added), state[f"{name}.conv2.weight"], padding=1)
        wider = number in (2, 4) or (number == 0 and widen > 1)
        assert (f"{name}.short.weight" in state) == wider
        y = (F.conv2d(read, state[f"{name}.short.weight"], stride=stride) if wider else y) + added
    features = activated("norm", y).mean((2, 3))
    expected = features @ state["head.weight"].T + state["head.bias"]
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("pools", [0, 1, 3])
def test_the_vgg_is_its_layers_in_a_row(pools: int) -> None:
    model = disturbed(VggSettings("vgg", "v", [[3], [4, 5], [6]], pools, "batch", 1))
    x = torch.randn(5, 2, 12, 12, dtype=torch.float64)
    layers, pooled = [], [nn.MaxPool2d(2)] * pools + [nn.Identity()] * (3 - pools)
    for stage, pool in zip(model.stages, pooled, strict=True):
        for conv, norm, _ in zip(*[iter(stage)] * 3, strict=True):
            theirs = nn.BatchNorm2d(norm.weight.numel()).double()
            theirs.load_state_dict(norm.state_dict(), strict=False)
            layers += [conv, theirs, nn.ReLU()]
        layers.append(pool)
    plain = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.head)
    torch.testing.assert_close(model(x), plain(x), rtol=1e-10, atol=1e-12)


def test_weights_begin_as_in_the_public_code() -> None:
    """Convolutions N(0, 2 / (9 outputs)), no biases, and a VGG's head N(0, 0.01^2)."""
    torch.manual_seed(0)
    for model in (build_image_model(chosen("vgg8"), COLOUR, 100), build_image_model(chosen("wrn_16_2"), COLOUR, 100)):
        for module in model.modules():
            if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
                spread = (2 / (module.kernel_size[0] ** 2 * module.out_channels)) ** 0.5
                assert float(module.weight.detach().std()) == pytest.approx(spread, rel=0.05)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                assert not module.bias.any()
    head = build_image_model(chosen("vgg8"), COLOUR, 100).head
    assert float(head.weight.detach().std()) == pytest.approx(0.01, rel=0.05)


WRN = {"kind": "wrn", "name": "w", "depth": 16, "widen": 1, "norm": "batch", "groups": 8}
VGG = {"kind": "vgg", "name": "v", "stages": [[8], [16]], "pools": 2, "norm": "batch", "groups": 8}


@pytest.mark.parametrize(("kind", "values"), [
    (WrnSettings, {**WRN, "depth": 18}), (WrnSettings, {**WRN, "depth": 4}), (WrnSettings, {**WRN, "widen": 0}),
    (WrnSettings, {**WRN, "norm": "group", "groups": 5}), (VggSettings, {**VGG, "stages": [[8], []]}),
    (VggSettings, {**VGG, "stages": []}), (VggSettings, {**VGG, "stages": [[8], [0]]}),
    (VggSettings, {**VGG, "pools": 3}), (VggSettings, {**VGG, "pools": -1}),
    (VggSettings, {**VGG, "norm": "group", "groups": 16}),
])  # fmt: skip
def test_settings_that_describe_no_network_are_refused(kind: type, values: dict) -> None:
    with refuses():
        build(kind, values, "model")


def test_images_too_small_for_the_pooling_are_named() -> None:
    spec = build(VggSettings, VGG, "model")
    assert build_image_model(spec, (1, 4, 4), 3)(torch.zeros(2, 1, 4, 4)).shape == (2, 3)
    with refuses():
        build_image_model(spec, (1, 9, 3), 3)
