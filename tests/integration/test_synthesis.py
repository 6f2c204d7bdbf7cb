"""Data-free distillation: inputs, resumption and refusals of synthesized images."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from knot_runner.engine.examples import normalized, stored_data
from knot_runner.engine.loop import Resources
from knot_runner.engine.requests import request_key
from knot_runner.engine.seeds import generator
from knot_runner.engine.store import Store
from knot_runner.methods.distill import distill
from knot_runner.methods.distill.synthesis import images
from knot_runner.methods.distill.synthesis.images import GeneratedImages, generator_loss
from knot_runner.methods.party import StageState
from knot_runner.models.network import build_network
from knot_runner.models.taps import read_taps
from knot_runner.util.errors import DivergedError
from tests.distill_runs import TINY_DISTILL, distill_federation, distill_job
from tests.golden.messages import refuses
from tests.runs import run
from tests.tiny import replaced
from tests.unit.methods.distill_requests import Killed

KINDS = ["statistics", "records", "generator"]
CPU = torch.device("cpu")
SMALL_TEACHER = (
    "method.teachers=[{kind: resnet, name: small, blocks: [1, 1], width: 4, stem: cifar, norm: batch, groups: 1}]"
)
TINY_FREE = [
    SMALL_TEACHER, "method.synthesis.images=25", "method.synthesis.batch_size=10", "method.synthesis.steps=4",
]  # fmt: skip


def free(kind: str) -> list[str]:
    """Return the overrides of data-free distillation with a ``kind`` of synthesis."""
    return ["method=data_free", f"base/synthesis@method.synthesis={kind}"]


@pytest.fixture(scope="module", params=KINDS)
def asked(request, tmp_path_factory):
    """A store with a teacher's weights and records but no image, and the request for images of each kind."""
    out = tmp_path_factory.mktemp(request.param)
    job, store, federation = distill_federation(out / "real", *free(request.param), *TINY_FREE)
    torch.manual_seed(0)
    model = build_network(federation.clients[0].network)
    store.put("local", "made", model.state_dict(), {})
    state = StageState({"teacher": "local/made"})
    bare = Store(out / "bare")
    bare.put("local", "made", model.state_dict(), {})
    (wanted,) = distill.plan(job.method, state, federation, 1)
    if request.param == "records":
        tensors, facts = wanted.run(Resources(store, CPU, None), out / "work", lambda *_: None)
        bare.put("records", request_key(wanted), tensors, facts)
        state.records = f"records/{request_key(wanted)}"
        (wanted,) = distill.plan(job.method, state, federation, 2)
    return bare, wanted


def made(request, store, folder, report=lambda *_: None):
    return request.run(Resources(store, CPU, None), folder, report)


def labeled_by(request, store):
    """Return the teacher, and a function that normalizes synthesized images for it."""
    model = build_network(request.network).eval()
    model.load_state_dict(store.get("local", "made").tensors())
    return model, lambda found: normalized(stored_data(found), torch.arange(25), torch.float32)


RELEASED = {"generator": "nothing", "records": "all", "statistics": "statistics in the weights"}


def test_images_come_from_weights_and_records_alone(asked, tmp_path):
    store, request = asked
    kind = request.synthesis.kind
    found, facts = made(request, store, tmp_path)
    assert not (store.root / "images").exists()
    assert "images" not in str([request.weights, request.records])  # no key of stored real images
    pixels = found["pixels"]
    assert pixels.shape == (25, 3, 8, 8) and pixels.dtype == torch.float32
    assert pixels.min() >= 0 and pixels.max() <= 1 and pixels.std() > 0.01
    if kind != "generator":  # from noise that goes beyond black and white
        assert pixels.min() < 0.01 and pixels.max() > 0.99
    assert facts["images"] == 25 and math.isfinite(facts["loss"])
    model, read = labeled_by(request, store)
    assert (model(x=read(found)).argmax(1) == found["labels"]).all()
    assert found["mean"].tolist() == [0.4914, 0.4822, 0.4465] and found["std"].tolist() == [0.247, 0.2435, 0.2616]
    released = facts["released"]
    assert released["kind"] == RELEASED[kind] and released["bytes"] == 4 * released["floats"]
    # of statistics: stem, two convolutions of each block, a shortcut
    assert kind == "records" or released["floats"] == {"statistics": 2 * (4 + 2 * 4 + 3 * 8), "generator": 0}[kind]


def test_images_depend_on_seed_and_party(asked, tmp_path):
    store, request = asked
    changes = [{}, {}, {"seed": 1}, {"party": "other"}]
    one, again, *others = (
        made(dataclasses.replace(request, **change), store, tmp_path / str(number))[0]["pixels"]
        for number, change in enumerate(changes)
    )
    assert torch.equal(one, again) and not any(torch.equal(one, other) for other in others)


def changed(request, **changes):
    return dataclasses.replace(request, synthesis=dataclasses.replace(request.synthesis, **changes))


@pytest.mark.parametrize("last", [4, 5])
def test_synthesis_resumes_bitwise_after_kill(asked, last, tmp_path, monkeypatch):
    store, request = asked
    monkeypatch.setattr(images, "STEPS_AT_ONCE", 4)
    request = changed(request, steps=4 if request.synthesis.kind != "generator" else 12)

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


def test_images_become_what_they_are_to_be(asked, tmp_path):
    store, request = asked
    changes = {"batch_size": 25, "images": 25, "steps": 1}, {"batch_size": 25, "images": 25, "steps": 60}
    first, last = (
        made(changed(request, **change), store, tmp_path / str(number))[1] for number, change in enumerate(changes)
    )
    assert last["loss"] < (0.9 if first["loss"] > 0 else 1.0) * first["loss"]
    if request.synthesis.kind == "statistics":
        weights = {"statistics": 0.0, "tv": 0.0, "l2": 0.0, **changes[1]}
        classes = changed(request, **weights)
        model, read = labeled_by(request, store)
        x = read(made(classes, store, tmp_path / "classes")[0])
        found = [F.cross_entropy(model(x=x), (torch.arange(25) + shift) % 10) for shift in range(10)]
        assert min(found) == found[0] < min(found[1:]) - 0.3


@pytest.mark.parametrize("asked", ["statistics", "records"], indirect=True)
def test_optimized_images_cycle_through_classes(asked, monkeypatch, tmp_path):
    store, request = asked
    request, seen = changed(request, batch_size=8, steps=1), []
    loss = images.OptimizedImages._loss
    monkeypatch.setattr(
        images.OptimizedImages, "_loss", lambda self, x, labels, *more: seen.extend(labels.tolist()) or loss(
            self, x, labels, *more
        )
    )  # fmt: skip
    made(request, store, tmp_path)
    assert seen == [i % 10 for i in range(25)]


@pytest.mark.parametrize("asked", ["generator"], indirect=True)
def test_generator_steps_are_on_normalized_images(asked):
    _, request = asked
    config = dataclasses.replace(request.synthesis, steps=1)
    model = build_network(request.network).eval()
    images = GeneratedImages(request, config, model, CPU, lambda *_: None)
    pixels = images.module(torch.randn(10, config.latent, generator=generator(0, "synthetic", "student", 0)))
    mean, std = (torch.tensor(values)[:, None, None] for values in (request.mean, request.std))
    said = read_taps(model, request.network, ["features"])(x=(pixels - mean) / std)
    loss = images.epoch(1)
    assert loss == pytest.approx(generator_loss(said, "features", config).item(), rel=1e-5)


def test_infinite_loss_ends_synthesis(asked, tmp_path):
    store, request = asked
    weights = {name: tensor * float("nan") if tensor.is_floating_point() else tensor
               for name, tensor in store.get("local", "made").tensors().items()}  # fmt: skip
    store.put("local", "broken", weights, {})
    with pytest.raises(DivergedError, match="synthetic images: loss is not finite in step 1"):
        made(dataclasses.replace(request, weights=("local", "broken")), store, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_student_reads_made_images_alone(kind, tmp_path):
    job, _, federation = distill_federation(tmp_path, *free(kind), *TINY_FREE)
    state = StageState({"teacher": "local/made"}, records="records/r", synthetic="synthetic/s")
    (student,) = distill.plan(job.method, state, federation, 3)
    assert student.train.examples == student.valid.examples == ("synthetic", "s")


def test_run_records_what_was_released(tmp_path):
    command = [*free("records"), "method.synthesis.records=top", "training.distill.select=best", *TINY_FREE]
    result = run(tmp_path, *replaced(TINY_DISTILL, *command)).result
    assert result["synthesis"]["released"] == {"kind": "top", "floats": 1100, "bytes": 4400}
    assert result["synthesis"]["images"] == 25 and set(result["terms"]) == {"kd"}
    assert result["selected_on"] == "generated"


@pytest.mark.parametrize("overrides", [
    ["method.teachers=[]"], ["method.teachers=[cnn_32, resnet8]"], ["method.view=edges"],
    ["method.synthesis.kind=statistic"], ["method.synthesis.steps=0"], ["method.synthesis.tv=-1"],
    ["+method.synthesis.latent=9"],
])  # fmt: skip
def test_synthesis_that_does_not_fit_is_refused(overrides, tmp_path):
    with refuses():
        distill_job(tmp_path, *free("statistics"), *overrides)
