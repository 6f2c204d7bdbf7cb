"""FLOPs of one example, against formulas of layers and torch's own counter."""

import pytest
import torch
from torch import nn

from knot_runner import compose
from knot_runner.config.settings.networks import CustomSettings, MlpSettings
from knot_runner.engine.flops import example_flops
from knot_runner.models.network import Network


def network(*words, inputs=None, classes=10):
    (job,) = compose(list(words))
    settings = job.settings
    return Network(settings.model, inputs or tuple(settings.task.shape), classes)


def test_example_flops_counts_perceptron_matrix_products():
    actual = example_flops(Network(MlpSettings("mlp", "t", [7, 5], "logits"), (2, 3, 4), 6))
    assert (actual.forward, actual.head) == (2 * (24 * 7 + 7 * 5 + 5 * 6), 2 * 5 * 6)


def test_convolutions_by_their_outputs():
    """Of one's own: 3 channels of 8 x 8, 4 filters of 3 x 3, then a pooled linear head; depthwise by groups."""
    before = torch.default_generator.get_state()
    actual = example_flops(Network(own("Convolutions"), (3, 8, 8), 5))
    assert torch.equal(torch.default_generator.get_state(), before)  # no random number is drawn
    assert example_flops(Network(own("Halves"), (1, 4, 4), 10)) is None  # no matrix product
    assert actual.forward == 2 * (3 * 4 * 9 * 64 + 4 * 9 * 64 + 4 * 5)
    assert actual.head == 2 * 4 * 5


class Convolutions(nn.Module):
    """Looks at values on its way, and has a tensor that is neither parameter nor buffer."""

    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1, groups=4),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.out, self.half = nn.Linear(4, classes), torch.tensor(0.5)

    def forward(self, x):
        assert len(x) > 1 and x.sum().item() == 0
        return self.out(self.body(x) * self.half)


class Halves(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.out = nn.PReLU(classes)

    def forward(self, x):
        return self.out(x.mean((2, 3)).repeat(1, 10) / 2)


def own(name):
    return CustomSettings(kind="custom", name=name, target=f"{__name__}:{name}", head="out", options={})


@pytest.mark.parametrize("head", ["published", "plain"])
@pytest.mark.parametrize("length", [13, 26])
def test_texts_by_their_tokens(head, length):
    """An encoder's layer: four projections, two products of attention, two of the wide layer; then the head at [CLS],
    to which the published one attends once more."""
    own = network(
        "task=erc", "method=fedavg", "training=small", "partition=natural", f"model.head={head}", *SMALL, inputs=90
    )
    hidden, wide, layers, in_head = 16, 24, 2, 2048
    layer = 4 * length * hidden**2 + 2 * length**2 * hidden + 2 * length * hidden * wide
    last = hidden**2
    if head == "published":
        last = 2 * hidden**2 + 2 * length * hidden**2 + 2 * length * hidden + 2 * hidden * in_head
    actual = example_flops(own, length)
    assert actual.forward == 2 * (layers * layer + last + hidden * 10) and actual.head == 2 * hidden * 10


SMALL = ["model.hidden=16", "model.intermediate=24", "model.layers=2", "model.heads=2"]
