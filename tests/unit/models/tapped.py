"""Small networks of every kind whose taps are read, and a batch for each."""

import torch
from torch import Tensor, nn

from knot_runner.config.settings.networks import (
    CnnSettings,
    ConvSettings,
    CustomSettings,
    MlpSettings,
    ResnetSettings,
    VggSettings,
    WrnSettings,
)
from knot_runner.models.network import Network, build_network
from tests.unit.models.test_bert import SPEC

SHAPE, CLASSES = (2, 12, 12), 5
CONVS = [ConvSettings(3, 3, 1), ConvSettings(4, 3, 1), ConvSettings(5, 3, 1)]
NETWORKS = {
    "mlp": Network(MlpSettings("mlp", "small_mlp", [7, 6, 5], "logits"), SHAPE, CLASSES),
    "linear": Network(MlpSettings("mlp", "linear", [], "logits"), SHAPE, CLASSES),
    "cnn": Network(CnnSettings("cnn", "small_cnn", CONVS, [], "logits"), SHAPE, CLASSES),
    "cnn_hidden": Network(CnnSettings("cnn", "small_cnn", CONVS[:2], [8, 7], "logits"), SHAPE, CLASSES),
    "resnet": Network(ResnetSettings("resnet", "small_resnet", [2, 1, 2], 4, "cifar", "batch", 2), SHAPE, CLASSES),
    "wrn": Network(WrnSettings("wrn", "small_wrn", 16, 1, "group", 4), SHAPE, CLASSES),
    "vgg": Network(VggSettings("vgg", "small_vgg", [[3], [4, 4], [5], [6], [7]], 2, "batch", 1), SHAPE, CLASSES),
    "bert": Network(SPEC, 500, CLASSES),
    "own": Network(CustomSettings("custom", "own", f"{__name__}:Own", "out"), SHAPE, CLASSES),
}


class Own(nn.Module):
    """A model of one's own: a recurrent layer, a module that is called twice and one that is never called."""

    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(shape[0], 3, 3), nn.ReLU())
        self.rows = nn.GRU(3 * 10, 4, batch_first=True)
        self.twice = nn.Linear(4, 4)
        self.never = nn.Linear(1, 1)
        self.shapes = Shapes()
        self.out = nn.Linear(4, classes)

    def forward(self, x):
        read, _ = self.rows(self.body(x).transpose(1, 2).flatten(2))
        self.shapes(x)
        return self.out(self.twice(self.twice(read[:, -1])))


class Shapes(nn.Module):
    def forward(self, x):
        return {"shape": x.shape}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build_network(NETWORKS[name]).double().eval()


def batch_of(name: str) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(1)
    if name == "bert":
        mask = torch.arange(9)[None, :] < torch.tensor([9, 6, 2])[:, None]
        ids = torch.randint(5, 500, (3, 9), generator=draws) * mask
        return {"ids": ids, "mask": mask, "types": torch.zeros_like(ids)}
    return {"x": torch.randn(4, *SHAPE, generator=draws, dtype=torch.float64)}


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
