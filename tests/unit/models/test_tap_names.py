"""Taps that are not there, those that there are, and pairs of taps that are compared."""

from __future__ import annotations

import pytest
import torch

from knot_runner.config.settings import ModelSettings, ResnetSettings
from knot_runner.models.network import Network
from knot_runner.models.taps import check_taps, default_taps, read_taps, tap_names
from tests.golden.messages import refuses
from tests.unit.models.tapped import CLASSES, NETWORKS, SHAPE, batch_of, hooks_of, made
from tests.unit.models.test_bert import SPEC

UNKNOWN = [
    ("resnet", "blok2"), ("resnet", "steem"), ("resnet", "stages.9"), ("resnet", "stages.0.conv3"), ("resnet", "zz.y"),
    ("resnet", ""), ("mlp", "block1"), ("cnn", "block4"), ("bert", "layer3"), ("own", "bodi"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tap"), UNKNOWN)
def test_check_taps_and_read_taps_refuse_unknown_taps(name: str, tap: str) -> None:
    network = NETWORKS[name]
    if name == "bert":
        network = Network(ModelSettings("bert", "bert_tiny", *list(vars(SPEC).values())[2:]), 500, CLASSES)
    for attempt in (
        lambda: check_taps(network, ["features", tap], "method.terms.hint.taps"),
        lambda: read_taps(made(name), network, [tap], "method.terms.hint.taps"),
    ):
        with refuses():
            attempt()


@pytest.mark.parametrize("name", NETWORKS)
def test_check_taps_draws_no_random_number(name: str) -> None:
    before = torch.get_rng_state()
    check_taps(NETWORKS[name], tap_names(NETWORKS[name]), "taps")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("tap", ["never", "shapes"])  # is not called; gives a dict
def test_read_taps_refuses_a_module_without_an_output(tap: str) -> None:
    model = made("own")
    with refuses():
        read_taps(model, NETWORKS["own"], [tap], "terms.hint.taps")(**batch_of("own"))
    assert hooks_of(model) == 0


FEATURES = [("features", "features")]
PAIRS = [
    ("none", "resnet", "vgg", []),
    ("features", "resnet", "mlp", FEATURES),
    ("middle", "resnet", "resnet", [("block2", "block2")]),
    ("middle", "cnn_hidden", "vgg", [("block1", "block3")]),
    ("last", "cnn_hidden", "vgg", [("block2", "block5")]),
    ("maps", "cnn_hidden", "resnet", [("block1", "block2"), ("block2", "block3")]),
    ("maps", "vgg", "wrn", [("block3", "block1"), ("block4", "block2"), ("block5", "block3")]),
    ("maps", "cnn", "cnn", [("block1", "block1"), ("block2", "block2"), ("block3", "block3")]),
    # without maps on one side or on both
    ("middle", "mlp", "mlp", [("layer2", "layer2")]),
    ("middle", "bert", "bert", [("layer1", "layer1")]),
    ("middle", "cnn", "mlp", [("features", "layer2")]),
    ("middle", "linear", "own", FEATURES),
    ("last", "mlp", "mlp", FEATURES),
    ("last", "cnn", "mlp", FEATURES),
    ("last", "bert", "bert", FEATURES),
    ("maps", "mlp", "cnn", []),
    ("maps", "cnn", "own", []),
]


@pytest.mark.parametrize(("kind", "student", "teacher", "pairs"), PAIRS)
def test_default_taps_are_pairs_of_like_stages(kind, student, teacher, pairs) -> None:
    assert default_taps(kind, NETWORKS[student], NETWORKS[teacher]) == pairs


def test_default_taps_take_the_second_of_four_stages() -> None:
    """As RepDistiller's hint layer 2, counted from the stem."""
    four = Network(ResnetSettings("resnet", "r", [2, 2, 2, 2], 8, "cifar", "batch", 2), SHAPE, CLASSES)
    assert default_taps("middle", four, NETWORKS["vgg"]) == [("block2", "block3")]
    assert default_taps("maps", four, NETWORKS["wrn"])[0] == ("block2", "block1")
