"""Data-free distillation: images that read no real image, are the same after a kill, and teach a student."""

import dataclasses
import json
import math

import pytest
import torch
import torch.nn.functional as F

from knot_runner.config.settings import build
from knot_runner.config.settings.methods.distil import GeneratorSynthesis
from knot_runner.engine.examples import normalised, stored_data
from knot_runner.engine.loop import Place
from knot_runner.engine.requests import request_key
from knot_runner.engine.seeds import generator
from knot_runner.engine.store import Store
from knot_runner.methods.distil import distil
from knot_runner.methods.distil.learner import OutputReader
from knot_runner.methods.distil.synthesis import images
from knot_runner.methods.distil.synthesis.images import GeneratedImages, generator_loss
from knot_runner.models.network import build_network
from knot_runner.util.errors import DivergedError
from tests.distil_runs import TINY_DISTIL, distil_federation, distil_job
from tests.golden.messages import refuses
from tests.run_folders import run
from tests.tiny import replaced

KINDS = ["statistics", "records", "generator"]
CPU = torch.device("cpu")
SMALL_TEACHER = (
    "method.teachers=[{kind: resnet, name: small, blocks: [1, 1], width: 4, stem: cifar, norm: batch, groups: 1}]"
)
TINY_FREE = [
    SMALL_TEACHER, "method.synthesis.images=25", "method.synthesis.batch=10", "method.synthesis.steps=4",
]  # fmt: skip


def free(kind: str) -> list[str]:
    """The method with images of a ``kind`` of synthesis."""
    return ["method=data_free", f"base/synthesis@method.synthesis={kind}"]


# --------------------------------------------------------------------------------------------------------------- images


@pytest.fixture(scope="module", params=KINDS)
def asked(request, tmp_path_factory):
    """(Store with a teacher's weights and records and no image, the request for images) of each kind."""
    out = tmp_path_factory.mktemp(request.param)
    job, store, federation = distil_federation(out / "real", *free(request.param), *TINY_FREE)
    torch.manual_seed(0)
    model = build_network(federation.clients[0].network)
    store.put("local", "made", model.state_dict(), {})
    state = {"weights/teacher": "local/made"}
    bare = Store(out / "bare")
    bare.put("local", "made", model.state_dict(), {})
    (wanted,) = distil.plan(job.method, state, federation, 1)
    if request.param == "records":
        tensors, facts = wanted.carry_out(Place(store, CPU, None), out / "work", lambda *_: None)
        bare.put("records", request_key(wanted), tensors, facts)
        state["records"] = f"records/{request_key(wanted)}"
        (wanted,) = distil.plan(job.method, state, federation, 2)
    return bare, wanted


def made(request, store, folder, report=lambda *_: None):
    return request.carry_out(Place(store, CPU, None), folder, report)


def test_images_come_from_weights_and_records_alone(asked, tmp_path):
    store, request = asked
    found, facts = made(request, store, tmp_path)
    assert not (store.root / "images").exists()
    assert found["pixels"].shape == (25, 3, 8, 8) and found["pixels"].dtype == torch.float32
    assert found["pixels"].min() >= 0 and found["pixels"].max() <= 1 and found["pixels"].std() > 0.01
    if request.synthesis["kind"] != "generator":  # from noise that goes beyond black and white
        assert found["pixels"].min() < 0.01 and found["pixels"].max() > 0.99
    assert facts["images"] == 25 and math.isfinite(facts["loss"])
    assert "images" not in str([request.weights, request.records])  # no key of stored real images
    model = build_network(request.network).eval()
    model.load_state_dict(store.get("local", "made").tensors())
    x = normalised(stored_data(found), torch.arange(25), torch.float32)
    assert (model(x=x).argmax(1) == found["labels"]).all()
    assert found["mean"].tolist() == [0.4914, 0.4822, 0.4465] and found["std"].tolist() == [0.247, 0.2435, 0.2616]


def test_images_depend_on_seed_and_party(asked, tmp_path):
    store, request = asked
    changed = {"as it is": {}, "seed": {"seed": 1}, "party": {"party": "other"}}
    found = {name: made(dataclasses.replace(request, **change), store, tmp_path / name)[0]["pixels"]
             for name, change in changed.items()}  # fmt: skip
    assert torch.equal(found["as it is"], made(request, store, tmp_path / "again")[0]["pixels"])
    assert not torch.equal(found["as it is"], found["seed"]) and not torch.equal(found["as it is"], found["party"])


class Killed(BaseException):
    """Ends the process, as far as a test can tell."""


@pytest.mark.parametrize("last", [1, 4, 5, 10])
def test_killed_after_any_step_the_images_are_the_same_bits(asked, last, tmp_path, monkeypatch):
    store, request = asked
    monkeypatch.setattr(images, "STEPS_AT_ONCE", 4)
    longer = {**request.synthesis, "steps": 4 if request.synthesis["kind"] != "generator" else 12}
    request = dataclasses.replace(request, synthesis=longer)

    def stop(done, total, text):
        assert total == 12
        if done == last:
            raise Killed

    with pytest.raises(Killed):
        made(request, store, tmp_path / "killed", stop)
    seen = []
    found, facts = made(request, store, tmp_path / "killed", lambda done, *_: seen.append(done))
    assert seen[0] == (last - 1) // 4 * 4 + 1  # what was committed is not done again
    alone, wanted = made(request, store, tmp_path / "alone")
    assert all(torch.equal(found[name], alone[name]) for name in alone)
    assert facts["loss"] == wanted["loss"]


@pytest.mark.parametrize("change", [{"steps": 60, "batch": 25, "images": 25}])
def test_images_become_what_they_are_to_be(asked, change, tmp_path):
    store, request = asked
    longer = dataclasses.replace(request, synthesis={**request.synthesis, **change})
    facts = made(longer, store, tmp_path)[1]
    short = dataclasses.replace(request, synthesis={**request.synthesis, **change, "steps": 1})
    losses = [made(short, store, tmp_path / "short")[1]["loss"], facts["loss"]]
    assert losses[1] < 0.9 * losses[0] or losses[0] < 0 and losses[1] < losses[0], losses
    if request.synthesis["kind"] == "statistics":
        weights = {"statistics": 0.0, "tv": 0.0, "l2": 0.0}
        classes = dataclasses.replace(request, synthesis={**longer.synthesis, **weights})
        x = normalised(stored_data(made(classes, store, tmp_path / "classes")[0]), torch.arange(25), torch.float32)
        model = build_network(request.network).eval()
        model.load_state_dict(store.get("local", "made").tensors())
        found = [F.cross_entropy(model(x=x), (torch.arange(25) + shift) % 10) for shift in range(10)]
        assert min(found) == found[0] < min(found[1:]) - 0.3


def test_each_image_is_to_be_of_the_class_of_its_place(asked, monkeypatch, tmp_path):
    store, request = asked
    if request.synthesis["kind"] == "generator":
        return
    request, seen = dataclasses.replace(request, synthesis={**request.synthesis, "batch": 8, "steps": 1}), []
    loss = images.OptimisedImages._loss

    def watched(self, x, labels, wanted):
        seen.extend(labels.tolist())
        return loss(self, x, labels, wanted)

    monkeypatch.setattr(images.OptimisedImages, "_loss", watched)
    made(request, store, tmp_path)
    assert seen == [i % 10 for i in range(25)]


def test_a_generators_step_is_on_normalised_images(asked):
    store, request = asked
    if request.synthesis["kind"] != "generator":
        return
    hp = build(GeneratorSynthesis, {**request.synthesis, "steps": 1}, "method.synthesis")
    model = build_network(request.network).eval()
    images = GeneratedImages(request, hp, model, CPU)
    pixels = images.module(torch.randn(10, hp.latent, generator=generator(0, "synthetic", "student", 0)))
    mean, std = (torch.tensor(values)[:, None, None] for values in (request.mean, request.std))
    said = OutputReader(model, request.network, ["features"])({"x": (pixels - mean) / std})
    loss = images.epoch(1, lambda *_: None)
    assert loss == pytest.approx(generator_loss(said, "features", hp).item(), rel=1e-5)


def test_what_was_released_is_told(asked, tmp_path):
    store, request = asked
    released = made(request, store, tmp_path)[1]["released"]
    wanted = {"generator": "nothing", "records": "all", "statistics": "statistics in the weights"}
    assert released["kind"] == wanted[request.synthesis["kind"]] and released["bytes"] == 4 * released["floats"]
    if request.synthesis["kind"] == "statistics":  # stem, two convolutions of each block, a shortcut
        assert released["floats"] == 2 * (4 + 2 * 4 + 3 * 8)
    if request.synthesis["kind"] == "generator":
        assert released["floats"] == 0


def test_an_infinite_loss_ends_it(asked, tmp_path):
    store, request = asked
    weights = {name: tensor * float("nan") if tensor.is_floating_point() else tensor
               for name, tensor in store.get("local", "made").tensors().items()}  # fmt: skip
    store.put("local", "broken", weights, {})
    with pytest.raises(DivergedError, match="synthetic images: loss is not finite in step 1"):
        made(dataclasses.replace(request, weights=("local", "broken")), store, tmp_path)


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("kind", KINDS)
def test_the_student_reads_made_images_alone(kind, tmp_path):
    job, _, federation = distil_federation(tmp_path, *free(kind), *TINY_FREE)
    state = {"weights/teacher": "local/made", "records": "records/r", "synthetic": "synthetic/s"}
    (student,) = distil.plan(job.method, state, federation, 3)
    assert student.train.examples == student.valid.examples == ("synthetic", "s")


def test_a_run_says_what_was_released(tmp_path, capsys):
    command = [*free("records"), "method.synthesis.records=top", *TINY_FREE]
    folder = run(tmp_path, *replaced(TINY_DISTIL, *command))
    result = json.loads((folder / "result.json").read_text())
    assert result["synthesis"]["released"] == {"kind": "top", "floats": 1100, "bytes": 4400}
    assert result["synthesis"]["images"] == 25 and set(result["terms"]) == {"kd"}
    assert {"records student", "synthetic student"} & set(result["seconds"]["stages"]) == {"synthetic student"}
    assert "25 images made by records; released: top, 1,100 numbers, 4,400 bytes" in capsys.readouterr().out


@pytest.mark.parametrize("overrides", [
    ["method.teachers=[]"], ["method.teachers=[cnn_32, resnet8]"], ["method.view=edges"],
    ["method.synthesis.kind=statistic"], ["method.synthesis.steps=0"], ["method.synthesis.tv=-1"],
    ["+method.synthesis.latent=9"],
])  # fmt: skip
def test_what_does_not_fit_is_said_in_one_line(overrides, tmp_path):
    with refuses():
        distil_job(tmp_path, *free("statistics"), *overrides)
