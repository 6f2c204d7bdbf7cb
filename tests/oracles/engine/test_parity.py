"""Every engine trains as the plain loop does, and the plain loop as the formulas on paper do."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from knot_runner.engine.federated import local
from knot_runner.engine.federated.cohort import Phase
from knot_runner.engine.objectives import CrossEntropy
from tests.unit.engine.federated import cases
from tests.unit.engine.federated.cases import LINEAR, MODELS, RECIPES, assert_alike, cohort, made

#: weights after the few steps of these cases in float32, from the loop's (measured: 1.2e-7)
FLOAT32_BAND = 2e-6
NAMES = ["stacked", "lean"]


@cache
def loop_result(model, recipe, dtype=torch.float64):
    requests = cohort(MODELS[model], RECIPES[recipe], dtype)
    return requests, made("loop", MODELS[model], dtype).train(requests)


#: Recipes that concern a model's last layer or its normalization; "mlp" and "cnn" have all recipes.
SELECTED = {
    "mlp_softmax": ("cold", "hard_rate", "head_body", "everything"), "cnn_softmax": ("hard_rate", "everything"),
    "resnet_batch": ("head_body", "head_all", "drop_last", "frozen", "everything"),
    "resnet_group": ("head_body", "everything"),
}  # fmt: skip
CASES = [(model, recipe) for model in MODELS for recipe in SELECTED.get(model, RECIPES)]


@pytest.mark.parametrize(("model", "recipe"), CASES)
@pytest.mark.parametrize("engine", NAMES)
def test_engines_match_loop_weights_in_float64(engine, model, recipe):
    requests, expected = loop_result(model, recipe)
    assert_alike(made(engine, MODELS[model]).train(requests), expected)


@pytest.mark.parametrize("most", [4, 20, 24])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_lean_trains_whole_batches_in_blocks_of_images(model, most, monkeypatch):
    """Batches of 8, in blocks of one and of two batches (20 holds no third) and of three."""
    monkeypatch.setattr("knot_runner.engine.federated.lean.client._IMAGES_AT_ONCE", most)
    requests, expected = loop_result(model, "control")
    assert_alike(made("lean", MODELS[model]).train(requests), expected)


def test_look_at_held_out_examples_leaves_training_as_it_is():
    (request,) = cohort(MODELS["resnet_batch"], RECIPES["plain"], sizes=(23,))
    looked = replace(request, held=4, recipe=replace(request.recipe, check=1, patience=99))
    alone, actual = made("loop", MODELS["resnet_batch"]).train([replace(request, rows=request.rows[:-4]), looked])
    assert (alone.loss, alone.steps) == (actual.loss, actual.steps) and actual.steps == 6


@pytest.mark.parametrize(
    ("model", "recipe"),
    [*((model, "everything") for model in cases.FAMILIES), ("wrn_batch", "frozen"), ("vgg_batch", "frozen")],
)
def test_small_families_train_as_in_the_loop(model, recipe):
    network = cases.FAMILIES[model]
    # 52 normalizations in a row, the last ones of two values a group, multiply the last digit's error (up to 7e-11)
    within = 1e-10 if model.startswith("mobilenet") else 1e-12
    requests = cohort(network, RECIPES[recipe], sizes=(9, 1))
    expected = made("loop", network).train(requests)
    assert all(one.steps and not torch.equal(one.weights, requests[0].start.weights) for one in expected)
    for engine in ("stacked", "lean"):
        assert_alike(made(engine, network).train(requests), expected, within)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", NAMES)
def test_float32_stays_in_the_stated_band(engine, model):
    requests, expected = loop_result(model, "everything", torch.float32)
    for actual, wanted in zip(made(engine, MODELS[model], torch.float32).train(requests), expected, strict=True):
        assert actual.weights.dtype == torch.float32
        assert float((actual.weights - wanted.weights).abs().max()) < FLOAT32_BAND


@pytest.mark.parametrize("engine", ["loop", *NAMES])
@pytest.mark.parametrize("model", ["mlp", "resnet_group"])
def test_engines_flag_weights_that_are_not_finite(engine, model):
    """Found after training, for each client by itself: the first has no number to begin with."""
    requests = cohort(MODELS[model], RECIPES["plain"], shared=False)
    requests[0].start.weights[-1] = float("nan")
    requests[2] = replace(requests[2], recipe=replace(cases.PLAIN, lr=float("inf")))
    trained = made(engine, MODELS[model]).train(requests)
    assert [each.finite for each in trained] == [False, True, False, True]
    assert [bool(each.weights.isfinite().all()) for each in trained] == [each.finite for each in trained]


def softmax(z):
    z = np.exp(z - z.max(1, keepdims=True))
    return z / z.sum(1, keepdims=True)


def by_formulas(request, data):
    """(weights [P], mean loss): SGD on mean_i s_i CE(z_i / T_i, y_i) with
    g = X^T-sums of s_i (p_i - y_i) / (T_i n) + mu (w - w0) + control + decay w;  v = m v + g;  w -= lr v."""
    recipe = request.recipe
    pixels = data.pixels.numpy()[request.rows.numpy()].astype(np.float64).reshape(len(request.rows), -1) / 255
    x = (pixels - float(data.mean)) / float(data.std)
    x = np.concatenate([x, np.ones((len(x), 1))], 1)  # the bias as a weight of a constant 1
    truth = np.eye(cases.CLASSES)[data.labels.numpy()[request.rows.numpy()]]
    inner = cases.CLASSES * (x.shape[1] - 1)

    def joined(values):
        return np.concatenate([values[:inner].reshape(cases.CLASSES, -1), values[inner:, None]], 1)

    start = joined(request.start.weights.numpy())
    control = joined(request.control.numpy()) if request.control is not None else 0.0
    decay = np.full_like(start, recipe.weight_decay)
    if not recipe.decay_biases:
        decay[:, -1] = 0.0
    options = CrossEntropy(**request.objective.settings)
    t, s = np.full(len(x), options.temperature), np.ones(len(x))
    if options.hard_temperature is not None:
        hardness = 1 - (softmax(x @ start.T) * truth).sum(1)
        t = options.temperature + (options.hard_temperature - options.temperature) * hardness
        if options.per_sample_rate:
            t, s = np.ones(len(x)), 1 / t
    w, v, losses = start.copy(), np.zeros_like(start), []
    for epoch in local.epochs(request, recipe.augment):
        order = epoch.order.numpy()
        for at in range(0, len(order), recipe.batch_size):
            part = order[at : at + recipe.batch_size]
            p = softmax(x[part] @ w.T / t[part, None])
            losses.append(np.mean(-s[part] * np.log((p * truth[part]).sum(1))))
            slope = s[part, None] * (p - truth[part]) / t[part, None] / len(part)
            gradient = slope.T @ x[part] + recipe.proximal * (w - start) + control + decay * w
            v = recipe.momentum * v + gradient
            w = w - recipe.lr * v
    return np.concatenate([w[:, :-1].ravel(), w[:, -1]]), float(np.mean(losses))


EVERYTHING = RECIPES["everything"]
ON_PAPER = {name: case for name, case in RECIPES.items() if name in (
    "plain", "cold", "hard", "hard_rate", "proximal", "control", "momentum", "decay", "decay_weights", "drop_last",
)} | {
    "all": replace(EVERYTHING, recipe=replace(EVERYTHING.recipe, phases=(Phase(3),), augment="none")),
}  # fmt: skip


@pytest.mark.parametrize("recipe", ON_PAPER)
def test_loop_trains_by_the_formulas(recipe):
    loop, requests = made("loop", LINEAR), cohort(LINEAR, ON_PAPER[recipe])
    loop.data = replace(loop.data, mean=loop.data.mean.double(), std=loop.data.std.double())
    for request, actual in zip(requests, loop.train(requests), strict=True):
        if actual.steps:
            weights, loss = by_formulas(request, loop.data)
            np.testing.assert_allclose(actual.weights.numpy(), weights, rtol=0, atol=1e-12)
            assert actual.loss == pytest.approx(loss, rel=1e-12)
        else:
            assert torch.equal(actual.weights, request.start.weights) and actual.loss == 0.0
