"""Small models, recipes and unequal clients on which every engine must agree."""

from dataclasses import asdict, dataclass, replace

import pytest
import torch

from knot_runner.config.settings import networks
from knot_runner.config.settings.networks import ConvSettings
from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase, Recipe
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.federated.loop import Loop
from knot_runner.engine.federated.stacked.engine import Stacked
from knot_runner.engine.objectives import CrossEntropy, Objective, cross_entropy
from knot_runner.models.network import Network

CLASSES, CPU = 5, torch.device("cpu")
STACKED = {"device": CPU, "stack": 0}
#: images a client: several batches, a ragged one, less than a batch, one image
SIZES = (23, 16, 5, 1)
GRAY, COLOR = (1, 8, 8), (3, 8, 8)


def _cnn(output):
    convs = [ConvSettings(4, 3, 1), ConvSettings(6, 3, 1)]
    return Network(networks.CnnSettings("cnn", "cnn", convs, [12], output), COLOR, CLASSES)


def _resnet(norm):
    return Network(networks.ResnetSettings("resnet", "resnet", [1, 1], 8, "cifar", norm, 4), COLOR, CLASSES)


MODELS = {
    "mlp": Network(networks.MlpSettings("mlp", "mlp", [16, 12], "logits"), GRAY, CLASSES),
    "mlp_softmax": Network(networks.MlpSettings("mlp", "mlp", [16, 12], "softmax"), GRAY, CLASSES),
    "cnn": _cnn("logits"), "cnn_softmax": _cnn("softmax"),
    "resnet_batch": _resnet("batch"), "resnet_group": _resnet("group"),
}  # fmt: skip


def _wrn(norm):
    return Network(networks.WrnSettings("wrn", "wrn", 10, 1, norm, 4), GRAY, CLASSES)


def _vgg(norm):
    return Network(networks.VggSettings("vgg", "vgg", [[4], [8, 4]], 2, norm, 4), COLOR, CLASSES)


def _mobilenet(norm):
    return Network(networks.MobilenetSettings("mobilenet", "mobilenet", 0.1, 8, norm, 4), COLOR, CLASSES)


#: small families of the distillation literature: for the recipes that concern the model itself
FAMILIES = {
    "wrn_batch": _wrn("batch"), "wrn_group": _wrn("group"), "vgg_batch": _vgg("batch"), "vgg_group": _vgg("group"),
    "mobilenet_group": _mobilenet("group"),
}  # fmt: skip

#: without a body: only for recipes that train all of it
LINEAR = Network(networks.MlpSettings("mlp", "mlp", [], "logits"), GRAY, CLASSES)

PLAIN = Recipe(phases=(Phase(2),), batch_size=8, drop_last=False, lr=0.1)


@dataclass(frozen=True)
class Case:
    """A recipe, whether every client has a control variate, and the options of the cross-entropy."""

    recipe: Recipe
    control: bool = False
    options: CrossEntropy = CrossEntropy()

    @property
    def objective(self):
        return Objective(cross_entropy, asdict(self.options))


def _case(control=False, options=None, **changes):
    return Case(replace(PLAIN, **changes), control, CrossEntropy(**(options or {})))


RECIPES = {
    "plain": _case(),
    "cold": _case(options={"temperature": 0.25}),
    "hard": _case(options={"temperature": 2.0, "hard_temperature": 0.5}),
    "hard_rate": _case(options={"temperature": 2.0, "hard_temperature": 0.5, "per_sample_rate": True}),
    "proximal": _case(proximal=1.0),
    "control": _case(control=True),
    "momentum": _case(momentum=0.9),
    "decay": _case(weight_decay=0.1),
    "decay_weights": _case(weight_decay=0.1, decay_biases=False),
    "head_body": _case(phases=(Phase(1, "head"), Phase(2, "body"))),  # without momentum, which "everything" has
    "head_all": _case(phases=(Phase(1, "head"), Phase(0, "body"), Phase(1, "all")), momentum=0.5, proximal=0.3),
    "drop_last": _case(drop_last=True),
    "augment": _case(augment="crop_flip"),
    "frozen": _case(frozen_statistics=True),
    "everything": _case(
        control=True, options={"temperature": 2.0, "hard_temperature": 0.5}, proximal=0.3, momentum=0.9,
        weight_decay=0.1, decay_biases=False, augment="crop_flip",
        phases=(Phase(1, "head"), Phase(1, "body"), Phase(1, "all")),
    ),
}  # fmt: skip


def images(shape, count=80, seed=0, kind=torch.uint8):
    """Random images; labels follow the brightest rows, so that there is something to learn."""
    draws = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, *shape), generator=draws, dtype=torch.uint8)
    labels = pixels.double().mean((1, 3)).topk(CLASSES, dim=1).indices[:, 0] % CLASSES
    pixels = pixels if kind == torch.uint8 else (pixels / 255).to(kind)
    return ImageData(pixels, labels, torch.linspace(0.4, 0.6, shape[0]), torch.linspace(0.2, 0.3, shape[0]))


def cohort(network, case, dtype=torch.float64, sizes=SIZES, seed=3, shared=True):
    """Requests of clients with ``sizes`` images, from one start or (``shared=False``) each from its own."""
    layout, draws = flat.layout_of(network), torch.Generator().manual_seed(seed)
    common, requests = flat.initial(network, seed), []
    for client, size in enumerate(sizes):
        weights, buffers = common if shared else flat.initial(network, seed + client + 1)
        rows = torch.randperm(80, generator=draws)[:size].sort().values
        tests = torch.randperm(40, generator=draws)[: 3 * client]
        control = torch.randn(layout.size, generator=draws, dtype=dtype) / 20 if case.control else None
        start = ClientModel(weights.to(dtype), buffers.to(dtype))
        requests.append(LocalTraining(client, 2, seed, start, rows, tests, case.recipe, control, case.objective))
    return requests


def made(name, network, dtype=torch.float64, workers=1, **options):
    """The engine ``name`` of ``network``, with training and test images; ``options`` of a stacked one."""
    data = images(network.inputs), images(network.inputs, 40, 1)
    if name == "loop":
        return Loop(network, *data, CPU, dtype)
    if name == "stacked":
        return Stacked(network, *data, **{**STACKED, "dtype": dtype, **options})
    return Lean([network], *data, dtype, workers, threads=1)


def equal(a, b):
    """Whether two results are the same to the last bit."""
    rest = ("client", "steps", "loss", "before", "after", "finite")
    same = torch.equal(a.weights, b.weights) and torch.equal(a.buffers, b.buffers)
    return same and all(getattr(a, name) == getattr(b, name) for name in rest)


def assert_alike(actual, wanted, within=1e-12):
    """Two cohorts' results are the same up to rounding, relative to the largest weight."""
    for one, other in zip(actual, wanted, strict=True):
        for part in ("weights", "buffers"):
            a, b = getattr(one, part), getattr(other, part)
            assert not len(b) or float((a - b).abs().max()) < within * float(b.abs().max())
        assert one.loss == pytest.approx(other.loss, rel=within)
        for name in ("client", "steps", "before", "after"):
            assert getattr(one, name) == getattr(other, name), name
