"""Distillation with views of images and with synthesized images: inputs, resumption and refusals."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from knot_runner.data.images.views import edges, gray, half_size, task_in_view, viewed_images
from knot_runner.data.tasks import Images
from knot_runner.engine.examples import normalized, stored_data
from knot_runner.engine.loop import Resources
from knot_runner.engine.requests import request_key
from knot_runner.engine.seeds import generator
from knot_runner.engine.store import Store
from knot_runner.methods.distill import distill, learner
from knot_runner.methods.distill.students import Students
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

VIEWS = {"gray": [1, 8, 8], "edges": [1, 8, 8], "half": [3, 4, 4]}
PIXELS = np.random.default_rng(0).random((5, 3, 6, 4)).astype(np.float32)


def test_gray_weights_channels_and_half_size_averages_pixels():
    primaries = np.eye(3, dtype=np.float32)[:, :, None, None]
    np.testing.assert_allclose(gray(primaries).ravel(), [0.299, 0.587, 0.114], rtol=1e-6)
    assert gray(PIXELS).shape == (5, 1, 6, 4)
    assert (gray(PIXELS[:, :1]) == PIXELS[:, :1]).all()
    assert half_size(PIXELS).shape == (5, 3, 3, 2)
    assert half_size(PIXELS)[4, 1, 2, 1] == pytest.approx(PIXELS[4, 1, 4:6, 2:4].mean())


def sobel(image):
    """Return the length of the gradient at each pixel of an image [H, W]."""
    across = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    padded, found = np.pad(image, 1, mode="edge"), np.zeros(image.shape)
    for row, column in np.ndindex(image.shape):
        around = padded[row : row + 3, column : column + 3]
        found[row, column] = np.hypot((across * around).sum(), (across.T * around).sum()) / (4 * 2**0.5)
    return found


def test_edges_are_sobels():
    plain = gray(PIXELS)[:, 0].astype(np.float64)
    np.testing.assert_allclose(edges(PIXELS)[:, 0], [sobel(image) for image in plain], atol=1e-6)
    step = np.zeros((1, 1, 4, 4), np.float32)
    step[..., 2:] = 1
    assert edges(step)[0, 0, 1].tolist() == pytest.approx([0, 0.5**0.5, 0.5**0.5, 0])
    assert edges(np.full((1, 3, 4, 4), 0.7, np.float32)).max() == 0


@pytest.mark.parametrize("view", VIEWS)
def test_viewed_images_scales_integers_and_keeps_labels(view):
    whole = Images((PIXELS * 255).round().astype(np.uint8), np.arange(5), np.arange(5) + 7)
    shown, other = viewed_images(whole, view), viewed_images(Images(PIXELS, np.arange(5)), view)
    assert shown.pixels.dtype == np.float32 and shown.labels is whole.labels and shown.users is whole.users
    np.testing.assert_allclose(shown.pixels, other.pixels, atol=0.003)
    assert viewed_images(whole, "none") is whole


def test_task_in_view_uses_view_mean_and_deviation(tmp_path):
    task = distill_job(tmp_path, "method=kd").settings.task
    shown = viewed_images(Images(PIXELS, np.arange(5)), "half")
    own = task_in_view(task, shown)
    assert own.shape == [3, 3, 2]
    np.testing.assert_allclose(own.mean, shown.pixels.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(own.std, shown.pixels.std((0, 2, 3)), rtol=1e-5)
    assert task_in_view(task, Images(np.ones((2, 1, 3, 3), np.float32), np.arange(2))).std == [1.0]


@pytest.fixture(scope="module", params=VIEWS)
def planned(request, tmp_path_factory):
    """The view, job, store, federation and student's request of a tiny cross-modal distillation."""
    out = tmp_path_factory.mktemp("view")
    job, store, federation = distill_federation(out, "method=cross_modal", f"method.view={request.param}")
    network, teacher = federation.clients[0].network, ("local", "made")
    torch.manual_seed(0)
    store.put(*teacher, build_network(network).state_dict(), {})
    state = StageState({"teacher": "/".join(teacher)})
    (asked,) = distill.plan(job.method, state, federation, 1)
    return request.param, job, store, federation, asked


def images_of(store, ref):
    data = stored_data(store.get(*ref).tensors())
    return normalized(data, torch.arange(len(data.labels)), torch.float32), data.labels


def test_student_sees_view_and_teacher_sees_images(planned):
    view, _, store, federation, asked = planned
    assert list(asked.network.inputs) == VIEWS[view] and federation.clients[0].network.inputs == (3, 8, 8)
    for split in ("train", "valid", "test"):
        pixels, _ = images_of(store, federation.server.examples[split])
        assert list(pixels.shape[1:]) == VIEWS[view]
    train, _ = images_of(store, asked.train.examples)
    assert abs(float(train.mean())) < 1e-3 and abs(float(train.std()) - 1) < 1e-2
    assert images_of(store, federation.server.originals["test"])[0].shape[1:] == (3, 8, 8)
    assert images_of(store, federation.clients[0].train)[0].shape[1:] == (3, 8, 8)


@pytest.mark.parametrize("most_bytes", [learner.MOST_BYTES, 0])
def test_teacher_and_student_see_the_same_image(planned, most_bytes, monkeypatch):
    view, _, store, federation, asked = planned
    monkeypatch.setattr(learner, "MOST_BYTES", most_bytes)
    students = Students(asked, Resources(store, torch.device("cpu"), None), lambda *_: None)
    originals, labels = images_of(store, federation.server.originals["train"])
    raw = store.get(*federation.server.originals["train"]).tensors()["pixels"].numpy()
    shown = viewed_images(Images(raw, labels.numpy()), view).pixels
    assert (store.get(*asked.train.examples).tensors()["pixels"].numpy() == shown).all()
    model = build_network(federation.clients[0].network).eval()
    model.load_state_dict(store.get("local", "made").tensors())
    tap = "block2"  # the middle one of cnn_32
    said, taps = read_taps(model, federation.clients[0].network, [tap])(x=originals)
    positions = torch.randperm(len(originals), generator=torch.Generator().manual_seed(1))[:20]
    (found,) = students.frozen(positions, {"x": students.train.images[positions]})
    torch.testing.assert_close(found.logits, said[positions], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.taps[tap], taps[tap][positions], rtol=1e-5, atol=1e-6)
    assert (labels == store.get(*asked.train.examples).tensors()["labels"]).all()


def test_student_alone_matches_taught_start_and_batches(planned, tmp_path):
    view, _, store, _, taught = planned
    job, other, federation = distill_federation(tmp_path, "method=student_alone", f"method.view={view}")
    (alone,) = distill.plan(job.method, StageState(), federation, 0)
    assert (alone.train, alone.valid, alone.originals) == (taught.train, taught.valid, None)
    assert federation.server.originals  # named, as there, though nobody reads them
    cpu = torch.device("cpu")
    ours = Students(alone, Resources(other, cpu, None), lambda *_: None)
    theirs = Students(taught, Resources(store, cpu, None), lambda *_: None)
    for a, b in zip(ours.students[0].parameters(), theirs.students[0].parameters(), strict=True):
        assert torch.equal(a, b)
    epochs = (one.train.epoch(32, torch.Generator().manual_seed(3), False, "none") for one in (ours, theirs))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(*epochs, strict=True))


def test_request_key_includes_originals_of_views(planned, tmp_path):
    *_, asked = planned
    assert request_key(asked) != request_key(dataclasses.replace(asked, originals=None))
    job, _, federation = distill_federation(tmp_path, "method=kd")
    (plain,) = distill.plan(job.method, StageState({"teacher": "local/made"}), federation, 1)
    assert plain.originals is None and federation.server.originals == {}


def test_born_again_networks_all_see_view(tmp_path):
    job, _, federation = distill_federation(tmp_path, "method=born_again", "method.view=edges")
    state = StageState({"generation 1": "distill/made"})
    (second,) = distill.plan(job.method, state, federation, 1)
    ((network, _),) = second.teachers
    assert federation.server.originals and second.originals is None and network.inputs == (1, 8, 8)


def test_teacher_is_measured_on_the_originals(tmp_path):
    command = ["method=cross_modal", "method.view=half", "training.distill.epochs=1"]
    result, plain = (run(tmp_path, *replaced(TINY_DISTILL, *words)).result for words in (command, ["method=kd"]))
    assert result["baselines"]["teacher"] == plain["baselines"]["teacher"]
    assert len(list((tmp_path / "artifacts" / "local").iterdir())) == 1  # one teacher for both
    assert set(result["terms"]) == {"ce", "kd", "hint"}


@pytest.mark.parametrize("overrides", [
    ["task.augment=crop_flip"], ["method.view=gray", "task.shape=[1,8,8]", "task.mean=[0]", "task.std=[1]"],
    ["method.view=half", "task.shape=[3,9,8]"], ["method.view=sepia"],
    ["method.view=edges", "task.shape=[2,8,8]", "task.mean=[0,0]", "task.std=[1,1]"],
])  # fmt: skip
def test_views_that_do_not_fit_are_refused(overrides, tmp_path):
    with refuses():
        distill_job(tmp_path, "method=cross_modal", *overrides)


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
