"""What images made from a teacher are to be like: losses against typed references, and records' moments."""

import numpy as np
import pytest
import torch
from torch import nn

from knot_runner.config.settings.methods.distill import GeneratorSynthesis
from knot_runner.engine.examples import ImageData, ImageExamples
from knot_runner.methods.distill.synthesis import images, records
from knot_runner.models.layers import BatchNorm
from knot_runner.models.taps import NetworkOutputs


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_image_prior_by_loops():
    x = normal(2, 3, 4, 5)
    places = list(np.ndindex(2, 3, 4, 5))
    down = [(x[b, c, i + 1, j] - x[b, c, i, j]) ** 2 for b, c, i, j in places if i < 3]
    beside = [(x[b, c, i, j + 1] - x[b, c, i, j]) ** 2 for b, c, i, j in places if j < 4]
    variation = sum(down) / len(down) + sum(beside) / len(beside)
    torch.testing.assert_close(images.image_prior(x, 1.0, 0.0), variation)
    squares = sum(value**2 for value in x.flatten()) / x.numel()
    torch.testing.assert_close(images.image_prior(x, 0.3, 0.7), 0.3 * variation + 0.7 * squares)


def norm_with(channels, seed):
    norm = BatchNorm(channels).double()
    norm.running_mean.copy_(normal(channels, seed=seed))
    norm.running_var.copy_(normal(channels, seed=seed + 1).square() + 0.5)
    return norm


def typed_statistics(values, norm):
    """Sum over channels of the squared differences of mean and biased variance."""
    channels = values.transpose(0, 1).flatten(1)
    variance = (channels**2).mean(1) - channels.mean(1) ** 2
    return ((channels.mean(1) - norm.running_mean) ** 2 + (variance - norm.running_var) ** 2).sum()


def test_statistics_losses_and_their_gradient_by_hand():
    torch.manual_seed(0)
    first, conv, second = norm_with(2, 1), nn.Conv2d(2, 3, 3).double(), norm_with(3, 5)
    model, x = nn.Sequential(first, conv, nn.ReLU(), second).eval(), normal(3, 2, 4, 4, seed=9).requires_grad_()
    with images.statistics_losses(model) as actual:
        model(x)
    ours = torch.stack(actual).sum()
    typed = typed_statistics(x, first) + typed_statistics(torch.relu(conv(first(x))), second)
    for mine, theirs in ((ours, typed), (torch.autograd.grad(ours, x)[0], torch.autograd.grad(typed, x)[0])):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    model(x)
    assert len(actual) == 2  # nothing is read outside the block


WEIGHTS = GeneratorSynthesis("generator", 1, 1, 1, 0.1, 1, 1, one_hot=0.5, activation=0.25, entropy=3.0)


def test_generator_loss_by_hand():
    logits, features = normal(4, 3), normal(4, 5, seed=1)
    softmax = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    certain, active, mean = -np.log(softmax.max(1)).mean(), np.abs(features.numpy()).mean(), softmax.mean(0)
    entropy = -(mean * np.log(mean)).sum()
    actual = images.generator_loss(NetworkOutputs(logits, {"features": features}), "features", WEIGHTS)
    assert float(actual) == pytest.approx(0.5 * certain - 0.25 * active - 3.0 * entropy, rel=1e-12)
    one_hot = torch.tensor([[800.0, -800.0], [800.0, -800.0]], requires_grad=True)
    loss = images.generator_loss(NetworkOutputs(one_hot, {"features": one_hot}), "features", WEIGHTS)
    loss.backward()
    assert torch.isfinite(one_hot.grad).all()  # a class that never comes


def test_activation_difference_scales_by_variance():
    taps, wanted = {"a": normal(2, 3, 2), "b": normal(2, 4, seed=1)}, {"a": normal(2, 6, seed=2), "b": normal(2, 4)}
    parts = [((taps[n].reshape(2, -1) - wanted[n]) ** 2).sum() / wanted[n].numel() / s for n, s in (("a", 4), ("b", 9))]
    torch.testing.assert_close(images.activation_difference(taps, wanted, {"a": 4.0, "b": 9.0}), parts[0] + parts[1])


def same(x):
    """A network whose logits are the first two pixels, and whose one tap all four."""
    flat = x.flatten(1)
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
    actual = records.released_records(same, examples, 3, kind, 3)
    for label in (0, 1):
        mean, covariance = moments(examples, label)
        np.testing.assert_allclose(actual["pixels.mean"][label], mean, atol=1e-5)
        np.testing.assert_allclose(actual["logits.mean"][label], mean[:2], atol=1e-5)
        if kind == "spectral":
            axes = actual["pixels.axes"][label].double()
            values, vectors = np.linalg.eigh(covariance)
            np.testing.assert_allclose(axes.norm(dim=1) ** 2, values[::-1][:3], rtol=1e-5)
            along = axes[0].numpy() @ vectors[:, -1] / np.linalg.norm(axes[0].numpy())
            assert abs(along) == pytest.approx(1, abs=1e-5)
            assert actual["logits.axes"].shape == (3, 3, 2) and not actual["logits.axes"][:, 2].any()
            assert (axes.gather(1, axes.abs().argmax(1, keepdim=True)) > 0).all()
        else:
            np.testing.assert_allclose(actual["logits.covariance"][label], covariance[:2, :2], atol=1e-5)
            np.testing.assert_allclose(actual["pixels.variance"][label], covariance.diagonal(), atol=1e-5)
    assert all(not tensor[2].any() and tensor.dtype == torch.float32 for tensor in actual.values())


@pytest.mark.parametrize("kind", ["all", "spectral"])
def test_samples_have_the_moments_that_were_released(kind):
    examples = mixed_images()
    actual = records.released_records(same, examples, 3, kind, 4)
    labels = torch.ones(40_000, dtype=torch.int64)
    sampled = records.sampled_activations(actual, labels, torch.Generator().manual_seed(0))
    mean, covariance = moments(examples, 1)
    for name, size in (("logits", 2), ("pixels", 4)):
        wanted = covariance[:size, :size]
        if kind == "all" and name == "pixels":
            wanted = np.diag(wanted.diagonal())
        np.testing.assert_allclose(sampled[name].mean(0), mean[:size], atol=0.05)
        np.testing.assert_allclose(np.cov(sampled[name].T, bias=True), wanted, atol=0.1)
    scales = records.scales_of(actual)
    both = [np.mean([moments(examples, label)[1].diagonal()[:size].mean() for label in (0, 1)]) for size in (2, 4)]
    assert [scales["logits"], scales["pixels"]] == pytest.approx([both[0] * 2 / 3, both[1] * 2 / 3], rel=1e-4)
    constant = {"logits.mean": torch.eye(3) * 7, "logits.covariance": torch.zeros(3, 3, 3)}
    sampled = records.sampled_activations(constant, torch.tensor([2, 0, 2]), torch.Generator())
    assert sampled["logits"].argmax(1).tolist() == [2, 0, 2] and sampled["logits"].max() == 7
    assert records.scales_of(constant) == {"logits": 1.0}


@pytest.mark.parametrize(("most", "each"), [(30, 10), (2, 1)])
def test_released_records_use_first_images_per_class(monkeypatch, most, each):
    examples = mixed_images()
    monkeypatch.setattr(records, "MOST_IMAGES", most)
    actual = records.released_records(same, examples, 3, "all", 0)
    some = examples.data.pixels[examples.labels == 1][:each].flatten(1)
    torch.testing.assert_close(actual["pixels.mean"][1], some.mean(0))
