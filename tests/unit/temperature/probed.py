"""Small models, images and a whole probe of them."""

from types import SimpleNamespace

import torch

from knot_runner.config.settings import (
    CnnSettings,
    ConvSettings,
    FederatedTraining,
    MlpSettings,
    ProbeSettings,
    ResnetSettings,
)
from knot_runner.engine.examples import ImageData
from knot_runner.methods.temperature_probe import probe_arrays
from knot_runner.models.images import build_image_model
from knot_runner.models.network import Network

SHAPE, CLASSES = (2, 8, 8), 5
CNN = CnnSettings("cnn", "cnn", [ConvSettings(3, 3, 1), ConvSettings(4, 3, 0)], [6], "logits")
MODELS = {
    "mlp": MlpSettings("mlp", "mlp", [7, 6], "logits"),
    "softmax output": MlpSettings("mlp", "mlp", [7], "softmax"),
    "one layer": MlpSettings("mlp", "linear", [], "logits"),
    "cnn": CNN,
    "batchnorm": ResnetSettings("resnet", "resnet", [1, 1], 4, "cifar", "batch", 2),
    "imagenet stem": ResnetSettings("resnet", "resnet", [1], 4, "imagenet", "group", 2),
}
HP = ProbeSettings("temperature_probe", "temperature_probe", [4.0, 1.0, 0.05], 0, 30, 20, 0.05, 4.0, 10, 2)  # fmt: skip
TRAINING = FederatedTraining("t", 1, 1, 1, 8, 0.05, 0.0, 0.0, True, False, "stop", None, False, 1)


def model_of(spec, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return build_image_model(spec, SHAPE, CLASSES).to(dtype).eval().requires_grad_(False)


def images(count, dtype=torch.float64, seed=1):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *SHAPE, generator=draw, dtype=torch.float64).to(dtype)
    return x, torch.randint(CLASSES, (count,), generator=draw)


def data_of(count, seed=1):
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, *SHAPE), generator=draw, dtype=torch.uint8)
    return ImageData(pixels, torch.arange(count) % CLASSES, torch.full((2,), 0.5), torch.full((2,), 0.25))


def run(hp=HP, spec=CNN, data=None, seed=0, said=None, watched=None):
    settings = SimpleNamespace(seed=seed, training=TRAINING, task=SimpleNamespace(augment="none"))
    said, watched = [] if said is None else said, [] if watched is None else watched
    data = data or data_of(40)
    network = Network(spec, SHAPE, CLASSES)
    watch = lambda *event: watched.append(event)  # noqa: E731
    return probe_arrays(hp, settings, data, data, network, torch.device("cpu"), watch, said.append)
