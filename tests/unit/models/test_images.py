"""Image models: sizes by hand and as printed, passes against independent ones, gradients by finite differences."""

from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from knot_runner.composing.commands import compose_all
from knot_runner.config.settings.methods.transport import EncoderSettings
from knot_runner.config.settings.networks import (
    CnnSettings,
    ConvSettings,
    MlpSettings,
    ResnetSettings,
    VggSettings,
    WrnSettings,
)
from knot_runner.config.strict import build
from knot_runner.models.encoder import build_encoder
from knot_runner.models.images import build_image_model
from tests.golden.messages import refuses

DNN = MlpSettings("mlp", "femnist_dnn", [512, 256, 128], "logits")
MCMAHAN = CnnSettings("cnn", "mcmahan", [ConvSettings(32, 5, 2), ConvSettings(64, 5, 2)], [512], "logits")
FEDREP = CnnSettings("cnn", "fedrep", [ConvSettings(64, 5, 0), ConvSettings(64, 5, 0)], [120, 64], "logits")
SMALL_CNN = CnnSettings("cnn", "small", [ConvSettings(3, 3, 1), ConvSettings(2, 2, 0)], [4], "logits")


def resnet(stem="cifar", norm="batch", blocks=(2, 2, 2, 2), width=64):
    return ResnetSettings("resnet", "resnet", list(blocks), width, stem, norm, 4)


SIZES = [
    # 784*512+512 + 512*256+256 + 256*128+128 + 128*62+62
    (DNN, (1, 28, 28), 62, 574_142),
    # McMahan et al. 2017 print 1,663,370 for MNIST
    (MCMAHAN, (1, 28, 28), 10, 1_663_370),
    # 3*25*64+64 + 64*25*64+64 + 1600*120+120 + 120*64+64 + 64*10+10; 1600 = 64 * 5 * 5
    (FEDREP, (3, 32, 32), 10, 4_864 + 102_464 + 192_120 + 7_744 + 650),
    (resnet(), (3, 32, 32), 100, 11_220_132),
    (resnet(norm="group"), (3, 32, 32), 100, 11_220_132),
    # torchvision's resnet18 has 11,689,512
    (resnet("imagenet"), (3, 64, 64), 1000, 11_689_512),
    (MlpSettings("mlp", "linear", [], "logits"), (1, 4, 4), 3, 16 * 3 + 3),
]


@pytest.mark.parametrize(("spec", "shape", "classes", "size"), SIZES)
def test_image_models_have_the_published_sizes(spec, shape, classes, size):
    assert size_of(spec, shape, classes) == size


@pytest.mark.parametrize("output", ["logits", "softmax"])
def test_mlp_equals_its_formula(output):
    model = build_image_model(MlpSettings("mlp", "m", [5, 4], output), (2, 3, 3), 6).double()
    x = torch.randn(7, 2, 3, 3, dtype=torch.float64)
    h = x.numpy().reshape(7, -1)
    for layer in model.layers:
        h = np.maximum(h @ layer.weight.detach().numpy().T + layer.bias.detach().numpy(), 0)
    h = h @ model.head.weight.detach().numpy().T + model.head.bias.detach().numpy()
    if output == "softmax":
        h = np.exp(h) / np.exp(h).sum(1, keepdims=True)
    np.testing.assert_allclose(model(x).detach().numpy(), h, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("output", ["logits", "softmax"])
def test_cnn_equals_its_layers_in_a_row(output):
    spec = CnnSettings("cnn", "c", SMALL_CNN.convs, SMALL_CNN.hidden, output)
    model = build_image_model(spec, (2, 9, 7), 5).double()
    layers = [part for conv in model.convs for part in (conv, nn.ReLU(), nn.MaxPool2d(2))]
    layers += [nn.Flatten(), model.layers[0], nn.ReLU(), model.head]
    layers += [nn.Softmax(1)] if output == "softmax" else []
    x = torch.randn(3, 2, 9, 7, dtype=torch.float64)
    torch.testing.assert_close(model(x), nn.Sequential(*layers)(x), rtol=1e-12, atol=0)


def block(state, name, x, stride):
    """One basic block with BatchNorm of the batch, straight from He et al. (2016)."""

    def conv(part, x, stride, padding):
        return F.conv2d(x, state[f"{name}.{part}.weight"], stride=stride, padding=padding)

    def norm(part, x):
        return F.batch_norm(x, None, None, state[f"{name}.{part}.weight"], state[f"{name}.{part}.bias"], True)

    y = norm("norm2", conv("conv2", F.relu(norm("norm1", conv("conv1", x, stride, 1))), 1, 1))
    if f"{name}.short.0.weight" in state:
        x = norm("short.1", conv("short.0", x, stride, 0))
    return F.relu(y + x)


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_resnet_equals_he_et_als(stem):
    model = disturbed(resnet(stem, blocks=(2, 1), width=3))
    state, x = model.state_dict(), torch.randn(5, 2, 12, 12, dtype=torch.float64)
    stride, padding = (2, 3) if stem == "imagenet" else (1, 1)
    y = F.conv2d(x, state["stem.weight"], stride=stride, padding=padding)
    y = F.relu(F.batch_norm(y, None, None, state["norm.weight"], state["norm.bias"], True))
    y = F.max_pool2d(y, 3, 2, 1) if stem == "imagenet" else y
    for number, step in enumerate((1, 1, 2)):
        y = block(state, f"stages.{number}", y, step)
    expected = F.adaptive_avg_pool2d(y, 1).flatten(1) @ state["head.weight"].T + state["head.bias"]
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-12)


COLOR = (3, 32, 32)


@cache
def chosen(name):
    """The settings of ``model=name``."""
    return compose_all(["task=cifar100", f"model={name}"])[0][0].settings.model


def size_of(spec, shape, classes):
    """How many parameters a model has, of which a linear head is the last."""
    with torch.device("meta"):
        model = build_image_model(spec, shape, classes)
        assert model(torch.zeros(2, *shape)).shape == (2, classes)
    assert model.head.out_features == classes and list(model.state_dict())[-1] == "head.bias"
    return sum(parameter.numel() for parameter in model.parameters())


#: name -> parameters with 100 classes, as RepDistiller's classes have when they are built, and millions with 10 classes
#: as He et al. (2016, table 6, shortcuts without parameters) and Zagoruyko and Komodakis (2016) print them
PUBLISHED = {
    "resnet8": (83_892, None), "resnet20": (278_324, 0.27), "resnet32": (472_756, 0.46), "resnet56": (861_620, 0.85),
    "resnet110": (1_736_564, 1.7), "wrn_16_1": (180_916, None), "wrn_16_2": (703_284, 0.7),
    "wrn_40_1": (569_780, 0.6), "wrn_40_2": (2_255_156, 2.2), "vgg8": (3_965_028, None), "vgg13": (9_462_180, None),
}  # fmt: skip
SHORTCUTS = 16 * 32 + 64 + 32 * 64 + 128


@pytest.mark.parametrize("name", PUBLISHED)
def test_small_networks_have_the_published_sizes(name):
    theirs, printed = PUBLISHED[name]
    assert size_of(chosen(name), COLOR, 100) == theirs
    if printed is not None:
        ten = size_of(chosen(name), COLOR, 10) - (SHORTCUTS if name.startswith("resnet") else 0)
        assert round(ten / 1e6, len(str(printed)) - 2) == printed


def test_convolutional_networks_have_the_size_by_hand():
    """Three 3x3 convolutions with biases; the sides are halved and rounded down three times."""
    for width, channels, side in ((4, 1, 28), (64, 3, 32)):
        convs = sum(9 * a * b + b for a, b in ((channels, width), (width, 2 * width), (2 * width, 4 * width)))
        head = 4 * width * (side // 8) ** 2 * 10 + 10
        assert size_of(chosen(f"cnn_{width}"), (channels, side, side), 10) == convs + head


def disturbed(spec, classes=4):
    """A model whose normalizations are unlike one and zero, so that none is left out unseen."""
    torch.manual_seed(0)
    model = build_image_model(spec, (2, 12, 12), classes).double()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("widen", [1, 2])
def test_wrn_equals_zagoruykos(widen):
    model = disturbed(WrnSettings("wrn", "w", 16, widen, "batch", 1))
    state, x = model.state_dict(), torch.randn(5, 2, 12, 12, dtype=torch.float64)

    def activated(name, x):
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
def test_vgg_equals_its_layers_in_a_row(pools):
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


def test_weights_begin_as_in_the_public_code():
    """Convolutions N(0, 2 / (9 outputs)), no biases, and a VGG's head N(0, 0.01^2)."""
    torch.manual_seed(0)
    for model in (build_image_model(chosen("vgg8"), COLOR, 100), build_image_model(chosen("wrn_16_2"), COLOR, 100)):
        for module in model.modules():
            if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
                spread = (2 / (module.kernel_size[0] ** 2 * module.out_channels)) ** 0.5
                assert float(module.weight.detach().std()) == pytest.approx(spread, rel=0.05)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                assert not module.bias.any()
    head = build_image_model(chosen("vgg8"), COLOR, 100).head
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
def test_network_settings_refuse(kind, values):
    with refuses():
        build(kind, values, "model")


def test_image_models_refuse_small_images():
    spec = build(VggSettings, VGG, "model")
    assert build_image_model(spec, (1, 4, 4), 3)(torch.zeros(2, 1, 4, 4)).shape == (2, 3)
    for model, shape in ((spec, (1, 9, 3)), *((FEDREP, shape) for shape in ((1, 8, 8), (1, 28, 6), (1, 3, 28)))):
        with refuses():
            build_image_model(model, shape, 10)


def spec(kind, sizes):
    return EncoderSettings("e", kind, sizes, 0, 10, 1e-3)


def layers(part):
    """Those with weights, in order."""
    return [layer for layer in part if list(layer.parameters())]


def test_conv_encoder_equals_sequential_layers_that_halve_each_side():
    for shape, code in (((3, 32, 32), 48 * 4 * 4), ((1, 28, 28), 48 * 3 * 3), ((2, 9, 15), 48 * 1 * 1)):
        model, x = build_encoder(spec("conv", [12, 24, 48]), shape), torch.randn(5, *shape)
        assert model.encoder(x).shape == (5, code) and model.code == code and model(x).shape == x.shape
    with refuses():
        build_encoder(spec("conv", [4, 4, 4, 4]), (1, 8, 8))
    model = build_encoder(spec("conv", [4, 6]), (2, 9, 7)).double()
    x = torch.randn(3, 2, 9, 7, dtype=torch.float64)
    (first, second), (third, last) = layers(model.encoder), layers(model.decoder)
    down = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten())
    torch.testing.assert_close(model.encoder(x), down(x), rtol=0, atol=0)
    up = nn.Sequential(nn.Unflatten(1, (6, 2, 1)), third, nn.ReLU(), last)
    torch.testing.assert_close(model.decoder(down(x)), up(down(x)), rtol=0, atol=0)


def test_dense_encoder_equals_its_formula():
    model = build_encoder(spec("dense", [5, 3]), (1, 2, 4)).double()
    x = torch.randn(6, 1, 2, 4, dtype=torch.float64)
    (first, second), (third, last) = layers(model.encoder), layers(model.decoder)
    h = x.numpy().reshape(6, 8)
    for number, layer in enumerate((first, second, third, last)):
        h = h @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        if number == 1:
            np.testing.assert_allclose(model.encoder(x).detach().numpy(), h, rtol=1e-12)
        h = np.maximum(h, 0) if number in (0, 2) else h
    np.testing.assert_allclose(model(x).detach().numpy(), h.reshape(6, 1, 2, 4), rtol=1e-12)
