"""bfloat16 on a CPU: near the plain loop in float64, equal to products of rounded numbers, refused without AMX."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from knot_runner.cli.main import main
from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.federated import choose
from knot_runner.engine.federated.cohort import ClientModel, Inference
from knot_runner.engine.federated.lean import half
from knot_runner.engine.federated.lean.engine import Lean
from knot_runner.engine.federated.lean.half import HalfConvs, HalfDense
from knot_runner.engine.federated.loop import Loop
from tests.engine.federated.cases import GREY, LINEAR, MODELS, RECIPES, cohort, images, lean_engine
from tests.golden.messages import refuses
from tests.tiny import TINY_IMAGES

pytestmark = pytest.mark.machine

CPU = torch.device("cpu")
HALF = partial(Lean, make_client=half.make_half_client)


def rounded(tensor):
    """To bfloat16, in float64."""
    return tensor.bfloat16().double()


def near(found, wanted, part=0.02):
    """Within ``part`` of its norm: bfloat16 has 8 bits."""
    return float((found.double() - wanted).norm()) <= part * float(wanted.norm())


def requests_of(model, recipe, lr=0.01):
    """Of two clients in float64, and the same in float32."""
    doubles = cohort(MODELS[model], RECIPES[recipe], torch.float64, sizes=(23, 16))
    doubles = [replace(one, recipe=replace(one.recipe, lr=lr)) for one in doubles]
    singles = []
    for one in doubles:
        start = ClientModel(one.start.weights.float(), one.start.buffers.float())
        singles.append(replace(one, start=start, control=None if one.control is None else one.control.float()))
    return doubles, singles


def loop_of(model, dtype):
    network = MODELS[model]
    return Loop(network, images(network.inputs), images(network.inputs, 40, 1), CPU, dtype)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", ["mlp", "cnn", "mlp_softmax"])
def test_updates_are_near_those_of_the_loop(model, recipe):
    doubles, singles = requests_of(model, recipe)
    exact, engine = loop_of(model, torch.float64).train(doubles), lean_engine(model, 1, kind=HALF)
    plain = lean_engine(model, 1).train(singles)
    for request, found, wanted, single in zip(doubles, engine.train(singles), exact, plain, strict=True):
        start = request.start.weights
        assert found.weights.dtype == torch.float32 and found.steps == wanted.steps and found.finite
        assert near(found.weights.double() - start, wanted.weights - start, 0.12)
        assert found.loss == pytest.approx(wanted.loss, rel=0.02)
        assert not torch.equal(found.weights, single.weights)


@pytest.mark.parametrize("model", ["resnet_batch", "resnet_group"])
def test_other_models_train_under_autocast(model):
    _, singles = requests_of(model, "momentum")
    engine = lean_engine(model, 1, kind=HALF)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = loop_of(model, torch.float32).train(singles)
    for found, one, plain in zip(engine.train(singles), wanted, lean_engine(model, 1).train(singles), strict=True):
        assert torch.equal(found.weights, one.weights) and found.loss == one.loss
        assert not torch.equal(found.weights, plain.weights)


def test_requests_that_read_inputs_train_under_autocast():
    _, (request, _) = requests_of("mlp", "plain")
    asked = replace(request, recipe=replace(request.recipe, optimiser="adamw"))
    (found,) = lean_engine("mlp", 1, kind=HALF).train([asked])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (wanted,) = loop_of("mlp", torch.float32).train([asked])
    assert torch.equal(found.weights, wanted.weights)
    assert not torch.equal(found.weights, loop_of("mlp", torch.float32).train([asked])[0].weights)


def test_dense_layers_multiply_rounded_numbers():
    torch.manual_seed(1)
    layers = [(torch.randn(6, 9) / 3, torch.randn(6)), (torch.randn(5, 6) / 2, torch.randn(5)),
              (torch.randn(4, 5), torch.randn(4))]  # fmt: skip
    x, slope = torch.randn(7, 9).bfloat16(), torch.randn(7, 4)
    targets = [(torch.zeros_like(weight), torch.zeros_like(bias)) for weight, bias in layers]
    dense = HalfDense(layers)
    dense.set_targets(targets, "all")
    logits = dense.forward(x, 0.5)
    below = dense.backward(slope, True)
    dense.accumulate(-2.0)
    (w1, b1), (w2, b2), (w3, b3) = [(rounded(weight), rounded(bias)) for weight, bias in layers]
    first = rounded(F.relu(x.double() @ w1.T + b1))
    second = rounded(F.relu(first @ w2.T + b2))
    head, last = layers[-1][0].double(), layers[-1][1].double()
    torch.testing.assert_close(logits.double(), 0.5 * (second @ head.T + last), rtol=1e-2, atol=1e-2)
    g2 = rounded(slope.double() @ head) * (second > 0)
    g1 = rounded(g2 @ w2) * (first > 0)
    assert logits.dtype == torch.float32 and below.dtype == torch.bfloat16
    assert near(below, g1 @ w1)
    wanted = [
        (g1.T @ x.double(), g1.sum(0)),
        (g2.T @ first, g2.sum(0)),
        (slope.double().T @ second, slope.sum(0).double()),
    ]
    for target, gradients in zip(targets, wanted, strict=True):
        for found, gradient in zip(target, gradients, strict=True):
            assert near(found, -2 * gradient)


@pytest.mark.parametrize(("trains", "learning"), [("head", [False, True]), ("body", [True, False])])
def test_a_part_of_the_dense_layers_learns_alone(trains, learning):
    layers = [(torch.randn(6, 9), torch.randn(6)), (torch.randn(4, 6), torch.randn(4))]
    targets = [(torch.zeros_like(weight), torch.zeros_like(bias)) for weight, bias in layers]
    dense = HalfDense(layers)
    dense.set_targets(targets, trains)
    dense.forward(torch.randn(5, 9).bfloat16())
    assert dense.backward(torch.randn(5, 4), False) is None
    dense.accumulate(1.0)
    assert [bool(weight.any()) and bool(bias.any()) for weight, bias in targets] == learning


def test_convolutions_multiply_rounded_numbers():
    torch.manual_seed(0)
    layers = [(torch.randn(4, 2, 3, 3) / 4, torch.randn(4)), (torch.randn(3, 4, 2, 2) / 4, torch.randn(3))]
    pictures = torch.randn(5, 2, 12, 12).bfloat16()
    weights = [(rounded(weight).requires_grad_(), rounded(bias).requires_grad_()) for weight, bias in layers]
    x = pictures.double()
    for weight, bias in weights:
        x = F.relu(F.max_pool2d(F.conv2d(x, weight, bias, padding=1), 2))
    slope = torch.randn(5, x[0].numel()).bfloat16()
    (x.flatten(1) * slope.double()).sum().backward()
    targets = [(torch.zeros_like(weight), torch.zeros_like(bias)) for weight, bias in layers]
    with torch.no_grad():
        stem = HalfConvs(layers, [1, 1], pictures)
        stem.set_targets(targets)
        (batch,) = stem.batches(torch.arange(5), None, None, 5)
        assert near(stem.forward(batch), x.flatten(1).detach())
        stem.backward(slope)
        stem.accumulate(-0.5)
    for target, wanted in zip(targets, weights, strict=True):
        for found, parameter in zip(target, wanted, strict=True):
            assert found.dtype == torch.float32 and near(found, -0.5 * parameter.grad, 0.04)


def test_many_examples_add_up_beyond_the_bits_of_bfloat16():
    """A bias's gradient over 4,096 examples of 1 each is 4,096; bfloat16 would stay at 256."""
    layers = [(torch.ones(2, 3), torch.ones(2)), (torch.ones(1, 2), torch.ones(1))]
    targets = [(torch.zeros_like(weight), torch.zeros_like(bias)) for weight, bias in layers]
    dense = HalfDense(layers)
    dense.set_targets(targets, "all")
    dense.forward(torch.ones(4096, 3).bfloat16())
    dense.backward(torch.ones(4096, 1), False)
    dense.accumulate(1.0)
    assert targets[0][1].tolist() == [4096.0] * 2 and targets[0][0].flatten().tolist() == [4096.0] * 6


def test_tests_and_inference_are_in_float32():
    engine, plain = lean_engine("cnn", 1, kind=HALF), lean_engine("cnn", 1)
    (request,) = cohort(MODELS["cnn"], RECIPES["plain"], torch.float32, sizes=(9,))
    asked = Inference(request.start, torch.arange(40), "test")
    assert torch.equal(engine.logits([asked])[0], plain.logits([asked])[0])


def test_any_number_of_workers_has_the_same_bits():
    requests = cohort(MODELS["cnn"], RECIPES["momentum"], torch.float32)
    engine = lean_engine("cnn", 2, kind=HALF)
    try:
        found = engine.train(requests)
    finally:
        engine.close()
    for one, other in zip(found, lean_engine("cnn", 1, kind=HALF).train(requests), strict=True):
        assert torch.equal(one.weights, other.weights) and one.loss == other.loss


def chosen(monkeypatch, amx, **changes):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    options = {"threads": 1, "workers": 1, "engine": "auto", "precision": "bf16", **changes}
    return choose.make_engine(HardwareSettings("cpu", "cpu", **options), LINEAR, images(GREY), images(GREY, 40, 1))


def test_a_cpu_with_amx_has_it(monkeypatch):
    engine = chosen(monkeypatch, True)
    assert engine.name == "lean" and type(engine._clients[0]) is half.HalfBackward
    assert type(chosen(monkeypatch, True, precision="float32")._clients[0]) is not half.HalfBackward


@pytest.mark.parametrize(("amx", "engine"), [(False, "lean"), (True, "loop"), (True, "native")])
def test_others_are_refused(amx, engine, monkeypatch):
    with refuses():
        chosen(monkeypatch, amx, engine=engine)


def test_a_run_in_bfloat16(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    found = {}
    for precision in ("bf16", "float32"):
        out = tmp_path / precision
        assert main([*TINY_IMAGES, "training.lr=0.1", f"hardware.precision={precision}", f"paths.out={out}"]) == 0
        (path,) = out.glob("*/*/*/result.json")
        found[precision] = json.loads(path.read_text())
    half_run, single = found["bf16"], found["float32"]
    assert half_run["precision"] == "bf16" and half_run["engine"] == "lean"
    assert half_run["metrics"]["loss"]["ALL"] != single["metrics"]["loss"]["ALL"]
    assert half_run["metrics"]["loss"]["ALL"] == pytest.approx(single["metrics"]["loss"]["ALL"], rel=0.05)
