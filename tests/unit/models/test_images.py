"""Image models: sizes by hand, forward passes against independent ones, gradients against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings import CnnSettings, ConvSettings, ImageModel, MlpSettings, ResnetSettings
from knot_runner.models.images import build_image_model
from tests.golden.messages import refuses

DNN = MlpSettings("mlp", "femnist_dnn", [512, 256, 128], "logits")
MCMAHAN = CnnSettings("cnn", "mcmahan", [ConvSettings(32, 5, 2), ConvSettings(64, 5, 2)], [512], "logits")
FEDREP = CnnSettings("cnn", "fedrep", [ConvSettings(64, 5, 0), ConvSettings(64, 5, 0)], [120, 64], "logits")
SMALL_CNN = CnnSettings("cnn", "small", [ConvSettings(3, 3, 1), ConvSettings(2, 2, 0)], [4], "logits")


def resnet(stem: str = "cifar", norm: str = "batch", blocks: tuple[int, ...] = (2, 2, 2, 2), width: int = 64):
    return ResnetSettings("resnet", "resnet", list(blocks), width, stem, norm, 4)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


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
def test_image_models_have_the_published_sizes(
    spec: ImageModel, shape: tuple[int, int, int], classes: int, size: int
) -> None:
    with torch.device("meta"):
        model = build_image_model(spec, shape, classes)
        assert model(torch.zeros(2, *shape)).shape == (2, classes)
    assert count(model) == size
    assert isinstance(model.head, nn.Linear) and model.head.out_features == classes
    assert list(model.state_dict())[-1] == "head.bias"


def test_image_model_weights_come_from_the_seed() -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(build_image_model(resnet(blocks=(1,), width=4), (1, 8, 8), 3).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("output", ["logits", "softmax"])
def test_mlp_equals_its_formula(output: str) -> None:
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
def test_cnn_equals_its_layers_in_a_row(output: str) -> None:
    spec = CnnSettings("cnn", "c", SMALL_CNN.convs, SMALL_CNN.hidden, output)
    model = build_image_model(spec, (2, 9, 7), 5).double()
    layers = [part for conv in model.convs for part in (conv, nn.ReLU(), nn.MaxPool2d(2))]
    layers += [nn.Flatten(), model.layers[0], nn.ReLU(), model.head]
    layers += [nn.Softmax(1)] if output == "softmax" else []
    x = torch.randn(3, 2, 9, 7, dtype=torch.float64)
    torch.testing.assert_close(model(x), nn.Sequential(*layers)(x), rtol=1e-12, atol=0)


def block(state: dict[str, Tensor], name: str, x: Tensor, stride: int) -> Tensor:
    """One basic block with BatchNorm of the batch, straight from He et al. (2016)."""

    def conv(part: str, x: Tensor, stride: int, padding: int) -> Tensor:
        return F.conv2d(x, state[f"{name}.{part}.weight"], stride=stride, padding=padding)

    def norm(part: str, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, state[f"{name}.{part}.weight"], state[f"{name}.{part}.bias"], True)

    y = norm("norm2", conv("conv2", F.relu(norm("norm1", conv("conv1", x, stride, 1))), 1, 1))
    if f"{name}.short.0.weight" in state:
        x = norm("short.1", conv("short.0", x, stride, 0))
    return F.relu(y + x)


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_resnet_equals_he_et_als(stem: str) -> None:
    model = build_image_model(resnet(stem, blocks=(2, 1), width=3), (2, 12, 12), 4).double()
    for parameter in model.parameters():  # unlike one and zero, so that no normalisation is left out unseen
        parameter.data += 0.1 * torch.randn_like(parameter)
    state, x = model.state_dict(), torch.randn(5, 2, 12, 12, dtype=torch.float64)
    stride, padding = (2, 3) if stem == "imagenet" else (1, 1)
    y = F.conv2d(x, state["stem.weight"], stride=stride, padding=padding)
    y = F.relu(F.batch_norm(y, None, None, state["norm.weight"], state["norm.bias"], True))
    y = F.max_pool2d(y, 3, 2, 1) if stem == "imagenet" else y
    for number, step in enumerate((1, 1, 2)):
        y = block(state, f"stages.{number}", y, step)
    expected = F.adaptive_avg_pool2d(y, 1).flatten(1) @ state["head.weight"].T + state["head.bias"]
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("spec", [
    MlpSettings("mlp", "m", [3], "softmax"), CnnSettings("cnn", "c", [ConvSettings(2, 3, 1)], [3], "softmax"),
    resnet(norm="group", blocks=(1, 1), width=4), resnet(blocks=(1, 1), width=4),
], ids=["mlp", "cnn", "resnet-group", "resnet-batch"])  # fmt: skip
def test_image_model_gradients_equal_finite_differences(spec: ImageModel) -> None:
    """Of the cross-entropy as trained: with ``output=softmax`` it takes a softmax of a softmax (fedwad.md 3)."""
    torch.manual_seed(0)
    model = build_image_model(spec, (1, 4, 4), 3).double()
    x, y = torch.randn(3, 1, 4, 4, dtype=torch.float64), torch.tensor([0, 2, 1])
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    for name, parameter in model.named_parameters():
        flat, index = parameter.data.view(-1), parameter.grad.abs().argmax()
        values, width = [], 1e-6
        for move in (width, -2 * width):
            flat[index] += move
            values.append(F.cross_entropy(model(x), y).item())
        flat[index] += width
        slope = (values[0] - values[1]) / (2 * width)
        assert slope == pytest.approx(parameter.grad.view(-1)[index].item(), rel=1e-5, abs=1e-9), name


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 6), (1, 3, 28)])
def test_cnn_refuses_small_images(shape: tuple[int, int, int]) -> None:
    with refuses():
        build_image_model(FEDREP, shape, 10)


def test_resnet_trains_on_one_image_of_one_pixel() -> None:
    """A client's last batch may be one image, of which the last stage has 1x1: PyTorch's BatchNorm stops there."""
    model = build_image_model(resnet("imagenet", blocks=(1, 1), width=4), (1, 8, 8), 3)
    loss = F.cross_entropy(model(torch.randn(1, 1, 8, 8)), torch.tensor([1]))
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
