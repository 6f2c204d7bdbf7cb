"""The temperature probe: gradients and distances against autograd, SGD and closed forms, and its arrays."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from knot_runner.config.settings import networks
from knot_runner.config.settings.methods.federated import FederatedTraining
from knot_runner.config.strict import build
from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import Phase
from knot_runner.models.images import build_image_model
from knot_runner.models.network import Network
from knot_runner.papers.chill import probe as probe
from knot_runner.papers.chill.settings import ProbeSettings
from tests.golden.messages import refuses
from tests.unit.methods.federated.worlds import assert_alike


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


SHAPE, CLASSES = (2, 8, 8), 5
CONVS = [networks.ConvSettings(3, 3, 1), networks.ConvSettings(4, 3, 0)]
CNN = networks.CnnSettings("cnn", "cnn", CONVS, [6], "logits")
MODELS = {
    "mlp": networks.MlpSettings("mlp", "mlp", [7, 6], "logits"),
    "softmax output": networks.MlpSettings("mlp", "mlp", [7], "softmax"),
    "one layer": networks.MlpSettings("mlp", "linear", [], "logits"),
    "cnn": CNN,
    "batchnorm": networks.ResnetSettings("resnet", "resnet", [1, 1], 4, "cifar", "batch", 2),
    "imagenet stem": networks.ResnetSettings("resnet", "resnet", [1], 4, "imagenet", "group", 2),
}
HP = ProbeSettings("temperature_probe", "temperature_probe", [4.0, 1.0, 0.05], 0, 30, 20, 0.05, 4.0, 10, 2)
TRAINING = FederatedTraining("t", 1, 1, 1, 8, 0.05, 0.0, 0.0, True, False, "stop", None, False, 1, "sgd")


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


def run(config=HP, spec=CNN, data=None, seed=0, said=None, watched=None):
    run_settings = SimpleNamespace(seed=seed, training=TRAINING, task=SimpleNamespace(augment="none"))
    said, watched = [] if said is None else said, [] if watched is None else watched
    data = data or data_of(40)
    network = Network(spec, SHAPE, CLASSES)
    progress = lambda *event: watched.append(event)  # noqa: E731
    context = SimpleNamespace(method=config, settings=run_settings, progress=progress, note=said.append)
    state, number = {"temperatures": torch.tensor(config.temperatures, dtype=torch.float64)}, 0
    while (part := probe.probe_part(number, state, context, network, data, torch.device("cpu"))) is not None:
        state, number = state | part, number + 1
    return {name: tensor for name, tensor in state.items() if not name.startswith("model.")}


def test_logit_gradients_stay_precise_near_certainty():
    logits = torch.tensor([[30.0, 0.0, 0.0]])  # 1 - p = 1.9e-13 is lost in float32
    (found,) = probe.logit_gradients(logits, torch.tensor([0]), 1.0)
    assert float(found[0]) == pytest.approx(-2 * math.exp(-30), rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_norms_match_per_image_gradients(name):
    model, (x, y), temperatures = model_of(MODELS[name]), images(6), [4.0, 1.0, 0.25]
    norms, right = probe.gradient_norms(model, x, y, temperatures)
    layer = next(m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d))
    layer.weight.requires_grad_()
    for i in range(len(x)):
        logits = model(x[i : i + 1])
        assert bool(right[i]) == (int(logits.argmax()) == int(y[i]))
        for k, temperature in enumerate(temperatures):
            loss = F.cross_entropy(logits / temperature, y[i : i + 1])
            (expected,) = torch.autograd.grad(loss, layer.weight, retain_graph=True)
            assert float(norms[k, i]) == pytest.approx(float(expected.norm()), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(("count", "done"), [(5, [0, 5]), (600, [0, 256, 512, 600])])
def test_gradient_arrays_join_and_count_batches(count, done):
    model, watched = model_of(MODELS["mlp"], torch.float32), []
    progress = lambda *event: watched.append(event)  # noqa: E731
    probed, rows = probe.Probed(model, data_of(count + 3), torch.device("cpu"), progress), torch.arange(count).flip(0)
    found = probe.gradient_arrays(HP, probed, rows)
    states = ["" for _ in done[1:]] + ["done"]
    assert watched == [("gradient norms", at, count, state) for at, state in zip(done, states, strict=True)]
    ((x, y),) = probed.batches(rows, count)
    norms, right = probe.gradient_norms(model, x, y, HP.temperatures)
    torch.testing.assert_close(found["gradients.norm"], norms)
    assert found["gradients.right"].bool().tolist() == right.tolist()


def linear(weight):
    return lambda x: x.flatten(1) @ weight.T


@pytest.mark.parametrize("halvings", [1, 4, 8, 30])
def test_boundary_distances_approach_linear_distance_from_above(halvings):
    """Two classes: the margin w x, w = w_0 - w_1, falls by epsilon |w|_1 along -sign(w), so epsilon = w x / |w|_1."""
    weight, (x, _) = torch.randn(2, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64), images(30)
    exact = (x.flatten(1) @ (weight[0] - weight[1])).abs() / (weight[0] - weight[1]).abs().sum()
    found = probe.boundary_distances(linear(weight), x, replace(HP, attack_steps=halvings))
    assert (found >= exact * (1 - 1e-12)).all()
    assert (found - exact <= torch.clamp(exact, min=HP.attack_limit / 2**12) * 2.0**-halvings + 1e-12).all()


def test_boundary_distances_handle_constant_and_saturated_models():
    """At logits 1000 apart the cross-entropy's own gradient is exactly 0 in float32; its sign is still known."""
    constant = probe.boundary_distances(lambda x: x.flatten(1)[:, :2] * 0 + torch.eye(2)[0], torch.ones(3, *SHAPE), HP)
    assert constant.isinf().all()
    weight, x = torch.tensor([[1.0], [-1.0]]).expand(2, 128), torch.full((1, *SHAPE), 4.0)
    found = probe.boundary_distances(linear(weight), x, replace(HP, attack_limit=8.0))
    assert float(found[0]) == pytest.approx(4.0, rel=2e-3)


@pytest.mark.parametrize("name", MODELS)
def test_stepped_matches_sgd_on_each_image(name):
    model, (x, y) = model_of(MODELS[name]), images(3)
    found = probe.stepped(model, x, y, 0.25, 0.1)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    model.requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(len(x)):
        model.load_state_dict(start)
        optimizer.zero_grad()
        F.cross_entropy(model(x[i : i + 1]) / 0.25, y[i : i + 1]).backward()
        optimizer.step()
        for key, value in model.named_parameters():
            torch.testing.assert_close(found[key][i], value.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["cnn", "mlp", "batchnorm"])
def test_arrays_of_a_whole_probe(name):
    watched = []
    found, again, other = (run(spec=MODELS[name], seed=seed, watched=watched) for seed in (0, 0, 1))
    assert all(torch.equal(found[key], again[key]) for key in found)
    assert not torch.equal(found["gradients.norm"], other["gradients.norm"])
    wrong = len(found["boundary.before"])
    assert {key: (tuple(value.shape), value.dtype) for key, value in found.items()} == {
        "temperatures": ((3,), torch.float64),
        "gradients.norm": ((3, 30), torch.float32),
        "gradients.right": ((30,), torch.uint8),
        "boundary.before": ((wrong,), torch.float32),
        "boundary.after": ((3, wrong), torch.float32),
        "boundary.right": ((3, wrong), torch.uint8),
        "boundary.tried": ((1,), torch.int64),
        "softmax.probabilities": ((3, CLASSES), torch.float32),
        "softmax.label": ((1,), torch.int64),
        "softmax.row": ((1,), torch.int64),
    }
    assert 5 <= wrong <= int(found["boundary.tried"]) == 20
    assert found["gradients.norm"].isfinite().all() and (found["boundary.before"] >= 0).all()
    stages = {event[0] for event in watched if event[3] == "done"}
    assert stages == {"gradient norms", "boundary distances"}


def test_boundary_after_matches_stepped_model():
    """Of a whole probe: image by image, with a module that holds the stepped weights."""
    found = run(replace(HP, boundary_images=40))
    assert int(found["boundary.tried"]) == 40
    model, data = model_of(CNN, torch.float32), data_of(40)
    flat.load_flat(model, *flat.initial(Network(CNN, SHAPE, CLASSES), 0))
    x = (data.pixels.float() / 255 - 0.5) / 0.25
    wrong = (model(x).argmax(1) != data.labels).nonzero()[:, 0]
    assert len(wrong) == len(found["boundary.before"])
    start = {key: value.clone() for key, value in model.state_dict().items()}
    for at in (0, len(wrong) - 1):
        image, label = x[wrong[at : at + 1]], data.labels[wrong[at : at + 1]]
        for k, temperature in enumerate(HP.temperatures):
            model.load_state_dict(start)
            model.requires_grad_()
            F.cross_entropy(model(image) / temperature, label).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= HP.step_lr * parameter.grad
                    parameter.grad = None
            model.requires_grad_(False)
            assert int(found["boundary.right"][k, at]) == int(model(image).argmax(1) == label)
            expected = float(probe.boundary_distances(model, image, HP))
            assert float(found["boundary.after"][k, at]) == pytest.approx(expected, rel=2e-2)


def test_softmax_row_selects_wrong_image_of_shown_class():
    found, data = run(), data_of(40)
    row = int(found["softmax.row"])
    assert int(data.labels[row]) == HP.shown_class == int(found["softmax.label"])
    shares = found["softmax.probabilities"]
    torch.testing.assert_close(shares.sum(1), torch.ones(3))
    assert (shares.argmax(1) == shares[0].argmax()).all() and int(shares[0].argmax()) != HP.shown_class
    assert (shares.max(1).values.diff() > 0).all()  # colder is surer


def test_central_recipe_holds_the_values_of_the_settings(monkeypatch):
    asked = []
    engine = SimpleNamespace(train_client=lambda request: asked.append(request) or request.start)
    monkeypatch.setattr(probe, "Loop", lambda *given: engine)
    changes = {"batch_size": 7, "drop_last": True, "lr": 0.3, "momentum": 0.9, "weight_decay": 0.01}
    training = replace(TRAINING, **changes, decay_biases=False)
    for chosen, augment in ((training, "crop_flip"), (replace(TRAINING, optimizer="adamw"), "none")):
        settings = SimpleNamespace(seed=5, training=chosen, task=SimpleNamespace(augment=augment))
        method, silent = replace(HP, warm_epochs=3), lambda *event: None
        context = SimpleNamespace(settings=settings, method=method, progress=silent)
        probe.start_probe(context, Network(CNN, SHAPE, CLASSES), data_of(40), torch.device("cpu"))
        request = asked.pop()
        assert_alike(request.recipe, chosen, 7)
        assert (request.recipe.phases, request.recipe.augment, request.seed) == ((Phase(3),), augment, 5)
        assert request.rows.tolist() == [*range(40)] and not len(request.test_rows)


def test_probe_reports_fallbacks_for_too_few_images():
    data, said = data_of(40), []
    shown = run(replace(HP, shown_class=0), data=replace(data, labels=torch.full((40,), 0)))
    decided = int(shown["softmax.probabilities"][0].argmax())
    pixels = data.pixels[int(shown["softmax.row"])].expand(40, -1, -1, -1)
    same = replace(data, pixels=pixels, labels=torch.full((40,), decided))
    found = run(replace(HP, shown_class=decided, images=50_000), data=same, said=said)
    assert said == [f"method.shown_class: all 40 images of class {decided} are correct; showing the first"]
    assert found["gradients.norm"].shape == (3, 40)
    assert int(found["softmax.row"]) == 0 and len(found["boundary.before"]) == 0
    assert found["boundary.after"].shape == (3, 0)


@pytest.mark.parametrize(("changes", "classes"), [({"shown_class": 5}, 5), ({"warm_epochs": 3}, 5), ({}, 2)])
def test_probe_rejects_missing_class_or_diverged_model(monkeypatch, changes, classes):
    monkeypatch.setattr(TRAINING, "lr", 1e20)
    with refuses():
        run(replace(HP, **changes), data=replace(data_of(40), labels=torch.arange(40) % classes))


@pytest.mark.parametrize(("key", "value"), [
    ("temperatures", []), ("temperatures", [1.0, 0.0]), ("step_lr", 0), ("images", 0),
])  # fmt: skip
def test_probe_settings_out_of_range_are_refused(key, value):
    with refuses():
        build(ProbeSettings, vars(HP) | {key: value}, "method")
