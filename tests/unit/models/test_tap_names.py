"""Taps that are not there, those that there are, and pairs of taps that are compared."""

from __future__ import annotations

import pytest
import torch

from knot_runner.config.settings import (
    ModelSettings,
    ResnetSettings,
)
from knot_runner.models.network import Network
from knot_runner.models.taps import check_taps, default_taps, read_taps, tap_names
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.unit.models.tapped import CLASSES, NETWORKS, SHAPE, batch_of, hooks_of, made
from tests.unit.models.test_bert import SPEC

UNKNOWN = [
    ("resnet", "blok2"),
    ("resnet", "steem"),
    ("resnet", "stages.9"),
    ("resnet", "stages.0.conv3"),
    ("resnet", "zz.y"),
    ("resnet", ""),
    ("mlp", "block1"),
    ("cnn", "block4"),
    ("bert", "layer3"),
    ("own", "bodi"),
]


@pytest.mark.parametrize(("name", "tap"), UNKNOWN)
def test_an_unknown_tap_is_refused_by_key_and_model(name: str, tap: str) -> None:
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
def test_taps_that_there_are_pass_the_check_without_a_random_draw(name: str) -> None:
    before = torch.get_rng_state()
    check_taps(NETWORKS[name], tap_names(NETWORKS[name]), "taps")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("tap", "said"),
    [
        ("never", "terms.hint.taps: 'never' of own is not called as a module; another tap would fit"),
        ("shapes", "terms.hint.taps: 'shapes' of own gives dict, no tensor; another tap would fit"),
    ],
)
def test_a_module_without_an_output_to_read_is_refused(tap: str, said: str) -> None:
    model = made("own")
    with pytest.raises(UserError) as refused:
        read_taps(model, NETWORKS["own"], [tap], "terms.hint.taps")(**batch_of("own"))
    assert str(refused.value) == said and hooks_of(model) == 0


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
def test_taps_that_are_compared_unless_others_are_named(kind, student, teacher, pairs) -> None:
    assert default_taps(kind, NETWORKS[student], NETWORKS[teacher]) == pairs


def test_the_middle_of_four_stages_is_the_second() -> None:
    """As RepDistiller's hint layer 2, counted from the stem."""
    four = Network(ResnetSettings("resnet", "r", [2, 2, 2, 2], 8, "cifar", "batch", 2), SHAPE, CLASSES)
    assert default_taps("middle", four, NETWORKS["vgg"]) == [("block2", "block3")]
    assert default_taps("maps", four, NETWORKS["wrn"])[0] == ("block2", "block1")
