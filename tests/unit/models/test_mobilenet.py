"""MobileNetV2: its size as published, its pass against one by hand, its first weights, what is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from knot_runner.composing.commands import compose_all
from knot_runner.config.settings.networks import MobilenetSettings
from knot_runner.config.strict import build
from knot_runner.models.images import build_image_model
from knot_runner.models.network import Network, build_network
from knot_runner.models.taps import read_taps, tap_names
from tests.golden.messages import refuses

NARROW = {"kind": "mobilenet", "name": "m", "width": 0.1, "last": 16, "norm": "group", "groups": 4}
#: (expansion, channels, stride) of the 17 blocks, written out from the paper's table 2
BLOCKS = [
    (1, 16, 1), (6, 24, 2), (6, 24, 1), (6, 32, 2), (6, 32, 1), (6, 32, 1), (6, 64, 2), (6, 64, 1), (6, 64, 1),
    (6, 64, 1), (6, 96, 1), (6, 96, 1), (6, 96, 1), (6, 160, 2), (6, 160, 1), (6, 160, 1), (6, 320, 1),
]  # fmt: skip


def network(shape=(3, 32, 32), classes=5, **changes):
    return Network(build(MobilenetSettings, NARROW | changes, "model"), shape, classes)


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_mobilenet_has_the_published_size(norm):
    """3,504,872 with 1,000 classes, as torchvision's and Keras's without their running statistics."""
    spec = compose_all(["task=gld23k", "model=mobilenet_v2_gn", f"model.norm={norm}"])[0][0].settings.model
    with torch.device("meta"):
        model = build_image_model(spec, (3, 224, 224), 1000)
        assert model(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_504_872
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == (52 if norm == "group" else 0) and {one.num_groups for one in norms} <= {8}
    assert list(model.state_dict())[-1] == "head.bias"


def test_mobilenet_rounds_channels_and_begins_as_torchvision_does():
    widths = {0.1: [8, 8, 8, 8, 16, 16, 32], 0.75: [16, 24, 24, 48, 72, 120, 240], 1.4: [24, 32, 48, 88, 136, 224, 448]}
    for width, expected in widths.items():
        spec = network(width=width).spec
        assert [spec.channels(count) for count in (16, 24, 32, 64, 96, 160, 320)] == expected
    torch.manual_seed(0)
    model = build_network(network(width=1.0, last=1280, classes=203))
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
            spread = (2 / (module.kernel_size[0] ** 2 * module.out_channels)) ** 0.5
            assert float(module.weight.detach().std()) == pytest.approx(spread, rel=0.05) and module.bias is None
        if isinstance(module, nn.GroupNorm):
            assert (module.weight == 1).all() and not module.bias.any()
    assert float(model.head.weight.detach().std()) == pytest.approx(0.01, rel=0.05) and not model.head.bias.any()


def test_mobilenet_equals_the_papers_pass():
    torch.manual_seed(0)
    net = network(shape=(2, 40, 24), width=0.25)
    model = build_network(net).double()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    state = model.state_dict()

    def normed(name, x):
        return F.group_norm(x, 4, state[f"{name}.weight"], state[f"{name}.bias"])

    def clipped(name, x):
        return normed(name, x).clamp(0, 6)

    x = torch.randn(3, 2, 40, 24, dtype=torch.float64) * 20
    y = clipped("norm", F.conv2d(x, state["stem.weight"], stride=2, padding=1))
    ends, before = [], 8
    for number, (expansion, channels, stride) in enumerate(BLOCKS):
        name, read, after = f"stages.{number}", y, net.spec.channels(channels)
        if expansion != 1:
            y = clipped(f"{name}.norm1", F.conv2d(y, state[f"{name}.expand.weight"]))
            assert y.shape[1] == 6 * before
        y = F.conv2d(y, state[f"{name}.depthwise.weight"], stride=stride, padding=1, groups=y.shape[1])
        y = normed(f"{name}.norm3", F.conv2d(clipped(f"{name}.norm2", y), state[f"{name}.project.weight"]))
        if stride == 1 and before == after:
            y = y + read
        before = after
        if number in (0, 2, 5, 9, 12, 15, 16):
            ends.append(y)
    y = clipped("last_norm", F.conv2d(y, state["widen.weight"])).mean((2, 3))
    expected = y @ state["head.weight"].T + state["head.bias"]
    names = [f"block{number}" for number in range(1, 8)]
    assert tap_names(net) == [*names, "features"]
    logits, taps = read_taps(model, net, [*names, "features"])(x=x)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-12)
    for name, own in zip([*names, "features"], [*ends, y], strict=True):
        torch.testing.assert_close(taps[name], own, rtol=1e-10, atol=1e-12)
    assert taps["block7"].shape[2:] == (2, 1)  # five halvings of 40 x 24, rounded up


@pytest.mark.parametrize("changes", [
    {"groups": 3}, {"groups": 3, "last": 18}, {"last": 18}, {"groups": 8}, {"last": 4}, {"width": 0.0},
    {"last": 0, "norm": "batch"},
])  # fmt: skip
def test_mobilenet_refuses_settings(changes):
    with refuses():
        network(**changes)


def test_mobilenet_trains_on_one_pixel():
    """A single image of 1x1: no group is of one value, for which PyTorch has no variance."""
    model = build_network(network(shape=(1, 1, 1)))
    model(torch.ones(1, 1, 1, 1)).logsumexp(1).sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert gradients["head.bias"].sum() == pytest.approx(1)
