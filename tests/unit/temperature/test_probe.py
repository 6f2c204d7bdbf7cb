"""The whole probe: arrays, seeds, warm start, what is said and refused."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from knot_runner.config.settings import ProbeSettings, build
from knot_runner.engine.federated import flat
from knot_runner.methods.temperature_probe import boundary_distances
from knot_runner.models.network import Network
from tests.golden.messages import refuses
from tests.unit.temperature.probed import CLASSES, CNN, HP, MODELS, SHAPE, TRAINING, data_of, model_of, run


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


def test_distances_after_are_those_of_the_stepped_model():
    """Of a whole probe: image by image, with a module that holds the stepped weights."""
    found = run(replace(HP, boundary_images=40))
    assert int(found["boundary.tried"]) == 40
    model, data = model_of(CNN, torch.float32), data_of(40)
    flat.load_flat(model, flat.layout_of(Network(CNN, SHAPE, CLASSES)), *flat.initial(Network(CNN, SHAPE, CLASSES), 0))
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
            expected = float(boundary_distances(model, image, HP))
            assert float(found["boundary.after"][k, at]) == pytest.approx(expected, rel=2e-2)


def test_the_image_shown_is_the_first_wrong_one_of_its_class():
    found, data = run(), data_of(40)
    row = int(found["softmax.row"])
    assert int(data.labels[row]) == HP.shown_class == int(found["softmax.label"])
    shares = found["softmax.probabilities"]
    torch.testing.assert_close(shares.sum(1), torch.ones(3))
    assert (shares.argmax(1) == shares[0].argmax()).all() and int(shares[0].argmax()) != HP.shown_class
    assert (shares.max(1).values.diff() > 0).all()  # colder is surer


@pytest.mark.thorough
def test_central_training_makes_the_model_better():
    data = data_of(40)
    data.pixels[:] = (data.labels * 50)[:, None, None, None].to(torch.uint8)
    fresh, warm = (run(replace(HP, images=40, warm_epochs=epochs), data=data) for epochs in (0, 60))
    assert warm["gradients.right"].sum() >= fresh["gradients.right"].sum() + 10


def test_probe_says_what_it_takes_instead_of_too_few_images():
    data, said = data_of(40), []
    shown = run(replace(HP, shown_class=0), data=replace(data, labels=torch.full((40,), 0)))
    decided = int(shown["softmax.probabilities"][0].argmax())
    pixels = data.pixels[int(shown["softmax.row"])].expand(40, -1, -1, -1)
    same = replace(data, pixels=pixels, labels=torch.full((40,), decided))
    found = run(replace(HP, shown_class=decided, images=50_000), data=same, said=said)
    assert said == [
        "method.images: 50,000 wanted, all 40 training images taken",
        f"method.shown_class: all 40 images of class {decided} are right; the first is shown",
    ]
    assert int(found["softmax.row"]) == 0 and len(found["boundary.before"]) == 0
    assert found["boundary.after"].shape == (3, 0)


@pytest.mark.parametrize(("changes", "classes"), [({"shown_class": 5}, 5), ({"warm_epochs": 3}, 5), ({}, 2)])
def test_probe_of_a_missing_class_or_a_diverged_model_is_refused(monkeypatch, changes, classes):
    monkeypatch.setattr(TRAINING, "lr", 1e20)
    with refuses():
        run(replace(HP, **changes), data=replace(data_of(40), labels=torch.arange(40) % classes))


@pytest.mark.parametrize(("key", "value"), [
    ("temperatures", []), ("temperatures", [1.0, 0.0]), ("step_lr", 0), ("images", 0),
])  # fmt: skip
def test_probe_settings_out_of_range_are_refused(key, value):
    with refuses():
        build(ProbeSettings, vars(HP) | {key: value}, "method")
