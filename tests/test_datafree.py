"""Data-free distillation: losses against typed references, records' moments, and images that read no real image."""

import dataclasses
import functools
import json
import math
import signal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from knot_runner.cli.main import main
from knot_runner.config.settings.synthesis import GeneratorSynthesis
from knot_runner.engine.commit import Checkpoint
from knot_runner.engine.diverged import DivergedError
from knot_runner.engine.examples import ImageData, ImageExamples, normalised, stored_data
from knot_runner.engine.loop import Place
from knot_runner.engine.requests import request_key
from knot_runner.engine.store import Store
from knot_runner.estimate.stage_times import plan_and_time
from knot_runner.estimate.stages import Planner, PlanStore
from knot_runner.methods.distil import distil
from knot_runner.methods.distil.synthesis import optimised, records, steps
from knot_runner.methods.distil.synthesis.generated import ImageGenerator
from knot_runner.methods.distil.synthesis.losses import (
    activation_difference,
    generator_loss,
    image_prior,
    statistics_losses,
    total_variation,
)
from knot_runner.methods.distil.synthesis.requests import steps_of
from knot_runner.methods.distil.term import NetworkOutputs
from knot_runner.models.network import build_network
from knot_runner.models.norms import BatchNorm
from knot_runner.util.errors import UserError
from tests.distil_runs import TINY_DISTIL, distil_federation, distil_job
from tests.forked import Forked, there
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


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --------------------------------------------------------------------------------------------------------------- losses


def test_the_prior_by_loops():
    x = normal(2, 3, 4, 5)
    down = [(x[b, c, i + 1, j] - x[b, c, i, j]) ** 2
            for b in range(2) for c in range(3) for i in range(3) for j in range(5)]  # fmt: skip
    beside = [(x[b, c, i, j + 1] - x[b, c, i, j]) ** 2
              for b in range(2) for c in range(3) for i in range(4) for j in range(4)]  # fmt: skip
    variation = sum(down) / len(down) + sum(beside) / len(beside)
    torch.testing.assert_close(total_variation(x), variation)
    squares = sum(value**2 for value in x.flatten()) / x.numel()
    torch.testing.assert_close(image_prior(x, 0.3, 0.7), 0.3 * variation + 0.7 * squares)


def norm_with(channels, seed):
    norm = BatchNorm(channels).double()
    norm.running_mean.copy_(normal(channels, seed=seed))
    norm.running_var.copy_(normal(channels, seed=seed + 1).square() + 0.5)
    return norm


def typed_statistics(values, norm):
    """Sum over channels of the squared differences of mean and biased variance, by loops."""
    total = 0.0
    for channel in range(values.shape[1]):
        pixels = [float(value) for value in values[:, channel].flatten()]
        mean = sum(pixels) / len(pixels)
        variance = sum((pixel - mean) ** 2 for pixel in pixels) / len(pixels)
        total += (mean - float(norm.running_mean[channel])) ** 2 + (variance - float(norm.running_var[channel])) ** 2
    return total


def test_statistics_and_their_gradient_by_loops_and_differences():
    torch.manual_seed(0)
    first, conv, second = norm_with(2, 1), nn.Conv2d(2, 3, 3).double(), norm_with(3, 5)
    model = nn.Sequential(first, conv, nn.ReLU(), second).eval()

    def typed(x):
        middle = torch.relu(conv(first(x)))
        return typed_statistics(x, first) + typed_statistics(middle, second)

    def ours(x):
        with statistics_losses(model) as found:
            model(x)
        assert len(found) == 2
        return torch.stack(found).sum()

    x = normal(3, 2, 4, 4, seed=9).requires_grad_()
    loss = ours(x)
    (gradient,) = torch.autograd.grad(loss, x)
    with torch.no_grad():
        assert float(loss) == pytest.approx(typed(x), rel=1e-12)
        for place in [(0, 0, 0, 0), (1, 1, 2, 3), (2, 0, 3, 1)]:
            step = torch.zeros_like(x)
            step[place] = 1e-5
            slope = (typed(x + step) - typed(x - step)) / 2e-5
            assert float(gradient[place]) == pytest.approx(slope, rel=1e-6, abs=1e-9)
    with statistics_losses(model) as found:
        pass
    model(x)
    assert found == []  # nothing is read outside the block


WEIGHTS = GeneratorSynthesis("generator", 1, 1, 1, 0.1, 1, 1, one_hot=0.5, activation=0.25, entropy=3.0)


def test_the_generators_loss_by_loops():
    logits, features = normal(4, 3), normal(4, 5, seed=1)
    softmax = [[math.exp(v) / sum(math.exp(u) for u in row) for v in row] for row in logits.tolist()]
    certain = -sum(math.log(max(row)) for row in softmax) / 4
    active = sum(abs(v) for v in features.flatten().tolist()) / 20
    mean = [sum(column) / 4 for column in zip(*softmax, strict=True)]
    entropy = -sum(p * math.log(p) for p in mean)
    found = generator_loss(NetworkOutputs(logits, {"features": features}), "features", WEIGHTS)
    assert float(found) == pytest.approx(0.5 * certain - 0.25 * active - 3.0 * entropy, rel=1e-12)
    one_hot = torch.tensor([[800.0, -800.0], [800.0, -800.0]], requires_grad=True)
    loss = generator_loss(NetworkOutputs(one_hot, {"features": one_hot}), "features", WEIGHTS)
    loss.backward()
    assert torch.isfinite(one_hot.grad).all()  # a class that never comes


def test_activations_are_compared_in_units_of_their_variance():
    taps, wanted = {"a": normal(2, 3, 2), "b": normal(2, 4, seed=1)}, {"a": normal(2, 6, seed=2), "b": normal(2, 4)}
    parts = [((taps[n].reshape(2, -1) - wanted[n]) ** 2).sum() / wanted[n].numel() / s for n, s in (("a", 4), ("b", 9))]
    torch.testing.assert_close(activation_difference(taps, wanted, {"a": 4.0, "b": 9.0}), parts[0] + parts[1])


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 7, 5)])
def test_a_generator_makes_pixels_of_the_shape(shape):
    torch.manual_seed(0)
    made = ImageGenerator(6, 5, shape)(torch.randn(4, 6) * 5)
    assert made.shape == (4, *shape) and made.min() > 0 and made.max() < 1


# -------------------------------------------------------------------------------------------------------------- records


class Same:
    """A network whose logits are the first two pixels, and whose one tap all four."""

    def __call__(self, inputs):
        flat = inputs["x"].flatten(1)
        return NetworkOutputs(flat[:, :2], {"pixels": flat})


def mixed_images(count=400):
    """Two classes of images of four correlated pixels, and a class without any; not in order of their classes."""
    mixing = normal(4, 4, seed=3)
    pixels = normal(count, 4) @ mixing
    labels = torch.arange(count) % 2
    pixels[labels == 1] = pixels[labels == 1] * 0.5 + 3
    data = ImageData(pixels.float()[:, None, None], labels, torch.zeros(1), torch.ones(1))
    return ImageExamples(data, torch.arange(count), torch.float32)


def moments(examples, label):
    """Mean and biased covariance of a class's pixels."""
    own = examples.data.pixels[examples.labels == label].flatten(1).double().numpy()
    return own.mean(0), np.cov(own.T, bias=True)


@pytest.mark.parametrize("kind", ["top", "all", "spectral"])
def test_records_hold_the_moments_of_every_class(kind):
    examples = mixed_images()
    found = records.released_records(Same(), examples, 3, kind, 3)
    for label in (0, 1):
        mean, covariance = moments(examples, label)
        np.testing.assert_allclose(found["pixels.mean"][label], mean, atol=1e-5)
        np.testing.assert_allclose(found["logits.mean"][label], mean[:2], atol=1e-5)
        if kind == "spectral":
            axes = found["pixels.axes"][label].double()
            values, vectors = np.linalg.eigh(covariance)
            np.testing.assert_allclose(axes.norm(dim=1) ** 2, values[::-1][:3], rtol=1e-5)
            along = axes[0].numpy() @ vectors[:, -1] / np.linalg.norm(axes[0].numpy())
            assert abs(along) == pytest.approx(1, abs=1e-5)
            assert found["logits.axes"].shape == (3, 3, 2) and not found["logits.axes"][:, 2].any()
            assert (axes.gather(1, axes.abs().argmax(1, keepdim=True)) > 0).all()
        else:
            np.testing.assert_allclose(found["logits.covariance"][label], covariance[:2, :2], atol=1e-5)
            np.testing.assert_allclose(found["pixels.variance"][label], covariance.diagonal(), atol=1e-5)
    assert all(not tensor[2].any() and tensor.dtype == torch.float32 for tensor in found.values())


@pytest.mark.parametrize("kind", ["all", "spectral"])
def test_samples_have_the_moments_that_were_released(kind):
    examples = mixed_images()
    found = records.released_records(Same(), examples, 3, kind, 4)
    labels = torch.ones(40_000, dtype=torch.int64)
    sampled = records.sampled_activations(found, labels, torch.Generator().manual_seed(0))
    mean, covariance = moments(examples, 1)
    for name, size in (("logits", 2), ("pixels", 4)):
        wanted = covariance[:size, :size]
        if kind == "all" and name == "pixels":
            wanted = np.diag(wanted.diagonal())
        np.testing.assert_allclose(sampled[name].mean(0), mean[:size], atol=0.05)
        np.testing.assert_allclose(np.cov(sampled[name].T, bias=True), wanted, atol=0.1)
    scales = records.scales_of(found)
    both = [np.mean([moments(examples, label)[1].diagonal()[:size].mean() for label in (0, 1)]) for size in (2, 4)]
    assert [scales["logits"], scales["pixels"]] == pytest.approx([both[0] * 2 / 3, both[1] * 2 / 3], rel=1e-4)


def test_samples_are_of_the_classes_asked_for_and_need_no_variance():
    found = {"logits.mean": torch.eye(3) * 7, "logits.covariance": torch.zeros(3, 3, 3)}
    sampled = records.sampled_activations(found, torch.tensor([2, 0, 2]), torch.Generator())
    assert sampled["logits"].argmax(1).tolist() == [2, 0, 2] and sampled["logits"].max() == 7
    assert records.scales_of(found) == {"logits": 1.0}


def test_records_are_of_the_first_images_of_each_class(monkeypatch):
    examples = mixed_images()
    monkeypatch.setattr(records, "MOST_IMAGES", 30)
    found = records.released_records(Same(), examples, 3, "all", 0)
    some = examples.data.pixels[examples.labels == 1][:10].flatten(1)
    torch.testing.assert_close(found["pixels.mean"][1], some.mean(0))


# --------------------------------------------------------------------------------------------------------------- images


@pytest.fixture(scope="module", params=KINDS)
def asked(request, tmp_path_factory):
    """(Store with a teacher's weights and records and no image, the request for images) of each kind."""
    out = tmp_path_factory.mktemp(request.param)
    job, store, federation = distil_federation(out / "real", f"method=data_free_{request.param}", *TINY_FREE)
    torch.manual_seed(0)
    model = build_network(federation.networks["teacher"])
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


@pytest.mark.parametrize("last", [1, 2, 4, 5, 8, 10])
def test_killed_after_any_step_the_images_are_the_same_bits(asked, last, tmp_path, monkeypatch):
    store, request = asked
    monkeypatch.setattr(steps, "COMMIT_EVERY", 2)
    longer = {**request.synthesis, "steps": 4 if request.synthesis["kind"] != "generator" else 12}
    request = dataclasses.replace(request, synthesis=longer)
    assert steps_of(longer) == 12

    def stop(done, total, text):
        if done == last:
            raise Killed

    with pytest.raises(Killed):
        made(request, store, tmp_path / "killed", stop)
    seen = []
    found, facts = made(request, store, tmp_path / "killed", lambda done, *_: seen.append(done))
    assert seen[0] == (last - 1) // 2 * 2 + 1  # what was committed is not done again
    alone, wanted = made(request, store, tmp_path / "alone")
    assert all(torch.equal(found[name], alone[name]) for name in alone)
    assert facts["loss"] == wanted["loss"]
    assert [row["step"] for row in Checkpoint(tmp_path / "killed").log()] == [2, 4, 6, 8, 10, 12]


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
    seen = []
    begin = optimised.OptimisedImages._begin

    def watched(self, batch, x=None):
        begin(self, batch, x)
        seen.extend(self.labels.tolist())

    monkeypatch.setattr(optimised.OptimisedImages, "_begin", watched)
    made(request, store, tmp_path)
    assert seen == [i % 10 for i in range(25)]


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
    with pytest.raises(DivergedError, match="synthetic student: loss is not finite in step 1"):
        made(dataclasses.replace(request, weights=("local", "broken")), store, tmp_path)


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("kind", KINDS)
def test_the_student_reads_made_images_alone(kind, tmp_path):
    job, _, federation = distil_federation(tmp_path, f"method=data_free_{kind}", *TINY_FREE)
    state = {"weights/teacher": "local/made", "records": "records/r", "synthetic": "synthetic/s"}
    (student,) = distil.plan(job.method, state, federation, 3)
    assert student.train.examples == student.valid.examples == ("synthetic", "s")


def test_a_run_says_what_was_released_and_check_plans_it(tmp_path, capsys):
    command = ["method=data_free_records", "method.synthesis.records=top", *TINY_FREE]
    job = distil_job(tmp_path, *command)
    planner = functools.partial(Planner, PlanStore(tmp_path / "plan", behind=Store(tmp_path / "artefacts")))
    wanted = ["local models", "sets of records", "sets of images made from teachers", "students"]

    def planned():
        return [(piece.stage, piece.there) for piece in planner().plan(job)[0][2:-1]]

    assert planned() == [(stage, False) for stage in wanted]
    folder = run(tmp_path, *replaced(TINY_DISTIL, *command))
    assert planned() == [(stage, True) for stage in wanted]
    result = json.loads((folder / "result.json").read_text())
    assert result["synthesis"]["released"] == {"kind": "top", "floats": 1100, "bytes": 4400}
    assert result["synthesis"]["images"] == 25 and set(result["terms"]) == {"kd"}
    assert {"records student", "synthetic student"} & set(result["seconds"]["stages"]) == {"synthetic student"}
    assert "25 images made by records; released: top, 1,100 numbers, 4,400 bytes" in capsys.readouterr().out


def test_check_times_images_by_the_step(tmp_path):
    job = distil_job(tmp_path / "out", "method=data_free_generator", *TINY_FREE, "training.local.epochs=1")
    told = []
    plan_and_time(lambda *what: told.append(what), tmp_path, [job], set(), math.inf)
    ((_, pieces),) = [what for what in told if what[0] == "pieces"]
    costs = {what[1]: what[2] for what in told if what[0] == "cost"}
    (piece,) = [piece for piece in pieces if piece.stage == "sets of images made from teachers"]
    assert piece.units == 4 and costs[piece.kind].unit > 0
    assert piece.kind == "images by generator of small, batch 10"


def test_kill_9_and_the_same_command_again(tmp_path):
    command = ["method=data_free_generator", *TINY_FREE, "method.synthesis.steps=250"]
    command = replaced(TINY_DISTIL, *replaced(command[:-1], command[-1]))
    (folder,) = [run(tmp_path / "alone", *command)]
    until = functools.partial(there, tmp_path / "killed", "artefacts/synthetic/*/commit.json")
    killed = Forked(*command, f"paths.out={tmp_path / 'killed'}", until=until)
    assert killed.wait() == -signal.SIGKILL, killed.said
    again = run(tmp_path / "killed", *command)
    for name in ("predictions.safetensors", "model.safetensors"):
        assert (folder / name).read_bytes() == (again / name).read_bytes()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["method.teachers=[]"], "method.synthesis: images are made from one teacher, and method.teachers names 0"),
        (["method.teachers=[cnn_32, resnet8]"], "and method.teachers names 2"),
        (["method.view=edges"], "method.view=edges: method.synthesis makes what the teacher reads; none is right"),
        (["method.synthesis.kind=statistic"], "no synthesis 'statistic' (did you mean 'statistics'?)"),
        (["method.synthesis.steps=0"], "method.synthesis.steps: 0 is not at least 1"),
        (["method.synthesis.tv=-1"], "method.synthesis.tv: -1.0 is negative"),
        (["+method.synthesis.latent=9"], "method.synthesis.latent: there is no such setting"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(overrides, said, tmp_path):
    with pytest.raises(UserError) as problem:
        distil_job(tmp_path, "method=data_free_statistics", *overrides)
    assert said in str(problem.value) and "\n" not in str(problem.value)


def test_statistics_need_batch_normalisation_and_texts_have_no_pixels(tmp_path, capsys):
    command = replaced(TINY_DISTIL, "method=data_free_statistics", "method.teachers=[cnn_32]", f"paths.out={tmp_path}")
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "method.synthesis.kind=statistics: are of batch normalisation, and cnn_32 has none; resnet8" in said
    assert main(["task=sa", "method=data_free_records", f"paths.out={tmp_path}"]) == 2
    assert "method.synthesis: makes images, and task=sa has texts; null is right" in capsys.readouterr().err


def test_kd_on_made_images_lowers_the_students_distance_from_its_teacher(tmp_path):
    folder = run(tmp_path, *replaced(TINY_DISTIL, "method=data_free_generator", *TINY_FREE, "training.distil.epochs=8"))
    rows = [json.loads(line) for line in next((tmp_path / "artefacts" / "distil").glob("*/rounds.jsonl")).open()]
    assert rows[-1]["loss"] < rows[0]["loss"] and folder.exists()
