"""Images as points: normalized pixels against a loop, codes of autoencoders, the artifact that runs share."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from knot_runner.config.settings.methods.transport import EncoderSettings
from knot_runner.data.images import Images, ImageTask
from knot_runner.engine.store import Store
from knot_runner.pipelines.features import encoding
from tests.golden.messages import refuses


def images(count: int, seed: int, kind: str = "uint8", shape: tuple = (2, 6, 5)) -> Images:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    return Images(pixels if kind == "uint8" else (pixels / 255).astype(np.float32), rng.integers(0, 3, count))


def task_of(train: Images, test: Images) -> ImageTask:
    return ImageTask("t", ["a", "b", "c"], None, train, test, [0.2, 0.4], [0.5, 0.25], "embedded")


def context(out, seed: int = 0):
    """What of an context encoders need; ``said`` collects the progress."""
    said = []
    settings = SimpleNamespace(seed=seed, hardware=SimpleNamespace(threads=1), paths=SimpleNamespace(out=str(out)))
    store = Store(out / "artifacts")
    return SimpleNamespace(
        settings=settings, progress=lambda *step: said.append(step), said=said, store=store, note=said.append
    )


def spec(**changes) -> EncoderSettings:
    known = {"name": "e", "kind": "dense", "sizes": [8, 3], "epochs": 2, "batch_size": 7, "lr": 0.01}
    return EncoderSettings(**known | changes)


def encoded(context, spec, task, rows=None):
    space = encoding.space(context, spec, task, rows)
    return space.points(task.train), space.points(task.test)


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_encoded_without_an_encoder_is_normalized_pixels(tmp_path, kind):
    task = task_of(images(4, 0, kind), images(3, 1, kind))
    train, test = encoded(context(tmp_path), None, task)
    assert train.shape == (4, 60) and test.shape == (3, 60) and train.dtype == np.float64
    for i in range(4):
        flat = []
        for channel in range(2):
            for value in task.train.pixels[i, channel].ravel():
                pixel = float(value) / (255 if kind == "uint8" else 1)
                flat.append((pixel - task.mean[channel]) / task.std[channel])
        np.testing.assert_allclose(train[i], flat, rtol=1e-12, atol=1e-12)


def test_space_decodes_points(tmp_path):
    task = task_of(images(4, 0), images(3, 1))
    space = encoding.space(context(tmp_path), None, task)
    np.testing.assert_allclose(space.images(space.points(task.train)), task.train.pixels / 255, atol=1e-6)
    outside = np.full((1, 60), 100.0)
    assert (space.images(outside) == 1).all() and (space.images(-outside) == 0).all()


def test_untrained_encoder_is_the_seeds(tmp_path):
    task = task_of(images(9, 0), images(3, 1))
    train, again, other = (encoded(context(tmp_path, seed), spec(epochs=0), task)[0] for seed in (0, 0, 1))
    assert train.shape == (9, 3) and (train == again).all() and (train != other).any()
    assert not list(tmp_path.iterdir())


def test_trained_encoder_is_shared(tmp_path):
    task, rows = task_of(images(40, 0), images(3, 1)), np.arange(30)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = context(tmp_path)
    points = encoded(first, spec(), task, rows)
    assert torch.equal(torch.rand(1), expected)
    second = context(tmp_path)
    same = encoded(second, spec(), task, rows)
    assert all((a == b).all() for a, b in zip(points, same, strict=True))
    assert [step[:3] for step in first.said] == [("encoder", 1, 2), ("encoder", 2, 2)] and not second.said
    fresh = encoded(context(tmp_path / "elsewhere"), spec(), task, rows)
    assert all((a == b).all() for a, b in zip(points, fresh, strict=True))
    encoded(second, spec(), task)  # of other rows, so another encoder
    assert len(second.said) == 2 and len(list((tmp_path / "artifacts" / "encoder").glob("*/info.json"))) == 2


def test_codes_do_not_depend_on_the_batch(tmp_path, monkeypatch):
    task = task_of(images(40, 0), images(3, 1))
    space = encoding.space(context(tmp_path), spec(epochs=0), task)
    whole = space.points(task.train)
    monkeypatch.setattr(encoding, "IMAGES_AT_ONCE", 7)
    np.testing.assert_allclose(space.points(task.train), whole, rtol=1e-5, atol=1e-6)


def test_encoder_names_a_diverging_rate(tmp_path):
    task = task_of(images(40, 0), images(3, 1))
    with refuses():
        encoded(context(tmp_path), spec(lr=1e30), task)
    assert not list(tmp_path.rglob("info.json"))


def test_space_refuses_equal_images(tmp_path):
    one = images(1, 0)
    same = Images(np.repeat(one.pixels, 5, axis=0), np.arange(5) % 3)
    with refuses():
        encoding.space(context(tmp_path), None, task_of(same, images(2, 1)))
    same.pixels[4, 1, 5, 4] ^= 1  # one gray level of one pixel
    assert encoding.space(context(tmp_path), None, task_of(same, images(2, 1))).shape == (2, 6, 5)
