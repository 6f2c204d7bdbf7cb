"""Distillation between two views of the same images."""

import dataclasses

import numpy as np
import pytest
import torch

from knot_runner.data.images.views import edges, gray, half_size, task_in_view, viewed_images
from knot_runner.data.tasks import Images
from knot_runner.engine.examples import normalized, stored_data
from knot_runner.engine.loop import Resources
from knot_runner.engine.requests import request_key
from knot_runner.methods.distill import distill, learner
from knot_runner.methods.distill.students import Students
from knot_runner.methods.party import StageState
from knot_runner.models.network import build_network
from knot_runner.models.taps import read_taps
from tests.distill_runs import TINY_DISTILL, distill_federation, distill_job
from tests.golden.messages import refuses
from tests.runs import run
from tests.tiny import replaced

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
