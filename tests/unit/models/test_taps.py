"""Taps are what passes made by hand give; which there are, and which pairs are compared."""

import pytest
import torch
import torch.nn.functional as F

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.networks import ResnetSettings
from knot_runner.models.network import Network
from knot_runner.models.taps import check_taps, default_taps, feature_reader, read_taps, tap_names
from tests.golden.messages import refuses
from tests.unit.models.tapped import CLASSES, NETWORKS, SHAPE, batch_of, hooks_of, made
from tests.unit.models.test_bert import SPEC


def by_hand(name, model, batch):
    """The named taps but the last, module by module."""
    if name == "bert":
        ids, mask, types = batch.values()
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return [states[:, 0] for states in model.bert(**given, output_hidden_states=True).hidden_states[1:]]
    x, actual = batch["x"], []
    if name in ("mlp", "linear"):
        x = x.flatten(1)
        for layer in model.layers:
            actual.append(x := F.relu(layer(x)))
    elif name.startswith("cnn"):
        for conv in model.convs:
            actual.append(x := F.max_pool2d(F.relu(conv(x)), 2))
    elif name == "resnet":
        x = F.relu(model.norm(model.stem(x)))
        for first, last in ((0, 2), (2, 3), (3, 5)):
            actual.append(x := model.stages[first:last](x))
    elif name == "wrn":
        x = model.stem(x)
        for first in (0, 2, 4):
            actual.append(x := model.stages[first : first + 2](x))
    elif name == "vgg":
        for number, stage in enumerate(model.stages):
            actual.append(x := stage(x))
            x = F.max_pool2d(x, 2) if number < 2 else x
    return actual


NAMES = {
    "mlp": ["layer1", "layer2", "layer3"], "linear": [], "cnn": ["block1", "block2", "block3"],
    "cnn_hidden": ["block1", "block2"], "resnet": ["block1", "block2", "block3"],
    "wrn": ["block1", "block2", "block3"], "vgg": [f"block{k}" for k in range(1, 6)], "bert": ["layer1", "layer2"],
    "own": [],
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_read_taps_equals_passes_by_hand(name):
    network, model, batch = NETWORKS[name], made(name), batch_of(name)
    assert tap_names(network) == [*NAMES[name], "features"]
    before = torch.get_rng_state()
    check_taps(network, tap_names(network), "taps")
    assert torch.equal(torch.get_rng_state(), before)  # no random number is drawn
    logits, taps = read_taps(model, network, tap_names(network))(**batch)
    assert list(taps) == tap_names(network)
    assert torch.equal(logits, model(**batch))
    for tap, expected in zip(NAMES[name], by_hand(name, model, batch), strict=True):
        assert torch.equal(taps[tap], expected), tap
    head = model.get_submodule(network.head.removesuffix("."))
    assert torch.equal(head(taps["features"]), logits)
    assert torch.equal(taps["features"], feature_reader(model, network)(**batch))
    assert taps["features"].dim() == 2
    maps = [name for name in tap_names(network) if name.startswith("block")]
    assert maps == [tap for tap in NAMES[name] if tap.startswith("block")]
    assert all((taps[tap].dim() == 4) == (tap in maps) for tap in taps)
    if name in ("resnet", "vgg"):  # whose head reads the pooled last map
        assert torch.equal(taps[maps[-1]].mean((2, 3)), taps["features"])


@pytest.mark.parametrize("name", NETWORKS)
def test_tap_gradients_reach_only_layers_before_tap(name):
    network, model = NETWORKS[name], made(name)
    for tap in tap_names(network):
        model.zero_grad()
        _, taps = read_taps(model, network, [tap])(**batch_of(name))
        assert list(taps) == [tap]
        if name == "linear":  # whose features are the pixels
            continue
        taps[tap].square().sum().backward()
        reached = {part for part, parameter in model.named_parameters() if parameter.grad is not None}
        assert reached and not any(part.startswith(network.head) for part in reached)
        if tap == "features":
            others = {part for part, _ in model.named_parameters() if not part.startswith((network.head, "never"))}
            assert reached == others


@pytest.mark.parametrize("name", NETWORKS)
def test_read_taps_keeps_the_gradients_of_logits(name):
    network, model, batch = NETWORKS[name], made(name), batch_of(name)
    gradients = []
    for logits in (model(**batch), read_taps(model, network, tap_names(network))(**batch)[0]):
        model.zero_grad()
        logits.square().sum().backward()
        gradients.append({part: p.grad.clone() for part, p in model.named_parameters() if p.grad is not None})
    assert gradients[0] and gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[1][part], gradient) for part, gradient in gradients[0].items())


@pytest.mark.parametrize("name", NETWORKS)
def test_read_taps_leaves_no_hook(name):
    network, model = NETWORKS[name], made(name)
    model(**batch_of(name))  # transformers' models have hooks of their own from their first pass on
    before = hooks_of(model)
    read = read_taps(model, network, tap_names(network))
    assert hooks_of(model) == before
    read(**batch_of(name))
    assert hooks_of(model) == before
    head = model.get_submodule(network.head.removesuffix("."))
    with head.register_forward_hook(lambda *_: 1 / 0), pytest.raises(ZeroDivisionError):
        read(**batch_of(name))
    assert hooks_of(model) == before


def test_read_taps_keeps_order_and_no_values():
    network, model = NETWORKS["resnet"], made("resnet")
    read = read_taps(model, network, ["features", "block1", "stem"])
    with torch.no_grad():
        _, taps = read(**batch_of("resnet"))
    assert list(taps) == ["features", "block1", "stem"]
    assert not any(tap.requires_grad for tap in taps.values())
    first = taps["stem"]
    assert not torch.equal(read(x=batch_of("resnet")["x"] + 1)[1]["stem"], first)  # nothing is kept


def test_read_taps_takes_module_paths():
    batch, model = batch_of("vgg"), made("vgg")
    _, taps = read_taps(model, NETWORKS["vgg"], ["stages.0.0", "stages.1"])(**batch)
    assert torch.equal(taps["stages.0.0"], model.stages[0][0](batch["x"]))
    assert torch.equal(taps["stages.1"], model.stages[1](F.max_pool2d(model.stages[0](batch["x"]), 2)))
    _, taps = read_taps(made("bert"), NETWORKS["bert"], ["bert.encoder.layer.1", "layer2"])(**batch_of("bert"))
    assert taps["bert.encoder.layer.1"].shape == (3, 9, 32)
    assert torch.equal(taps["bert.encoder.layer.1"][:, 0], taps["layer2"])


def test_read_taps_reads_custom_module_paths():
    model, batch = made("own"), batch_of("own")
    before = hooks_of(model)
    _, taps = read_taps(model, NETWORKS["own"], ["body.0", "rows", "twice", "features"])(**batch)
    assert torch.equal(taps["body.0"], model.body[0](batch["x"]))
    assert taps["rows"].shape == (4, 10, 4)  # the first of what it returns
    once = model.twice(taps["rows"][:, -1])
    assert torch.equal(taps["twice"], model.twice(once))  # the last output
    assert torch.equal(taps["features"], taps["twice"])
    for tap in ("never", "shapes"):  # is not called; gives a dict
        with refuses():
            read_taps(model, NETWORKS["own"], [tap], "terms.hint.taps")(**batch)
    assert hooks_of(model) == before


UNKNOWN = [
    ("resnet", "blok2"), ("resnet", "steem"), ("resnet", "stages.9"), ("resnet", "stages.0.conv3"), ("resnet", "zz.y"),
    ("resnet", ""), ("mlp", "block1"), ("cnn", "block4"), ("bert", "layer3"), ("own", "bodi"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tap"), UNKNOWN)
def test_check_taps_and_read_taps_refuse_unknown_taps(name, tap):
    network = NETWORKS[name]
    if name == "bert":
        network = Network(ModelSettings("bert", "bert_tiny", *list(vars(SPEC).values())[2:]), 500, CLASSES)
    for attempt in (
        lambda: check_taps(network, ["features", tap], "method.terms.hint.taps"),
        lambda: read_taps(made(name), network, [tap], "method.terms.hint.taps"),
    ):
        with refuses():
            attempt()


FEATURES = [("features", "features")]
FOUR = Network(ResnetSettings("resnet", "r", [2, 2, 2, 2], 8, "cifar", "batch", 2), SHAPE, CLASSES)
PAIRS = [
    # of four stages the second, as RepDistiller's hint layer 2, counted from the stem
    ("middle", "four", "vgg", [("block2", "block3")]),
    ("maps", "four", "wrn", [("block2", "block1"), ("block3", "block2"), ("block4", "block3")]),
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
def test_default_taps_are_pairs_of_like_stages(kind, student, teacher, pairs):
    networks = NETWORKS | {"four": FOUR}
    assert default_taps(kind, networks[student], networks[teacher]) == pairs
