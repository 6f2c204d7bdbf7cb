"""Held-out images and limits; the digits that come with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

from knot_runner.data.images import Images, load_images
from knot_runner.data.images.digits import read_digits, scale
from knot_runner.data.splits import hold_out, limited
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses


def numbered(labels: list[int], users: list[int] | None = None) -> Images:
    """Images whose only pixel is their number, so that each can be followed."""
    pixels = np.arange(len(labels), dtype=np.float32).reshape(-1, 1, 1, 1)
    known = None if users is None else np.array(users)
    return Images(pixels, np.array(labels, dtype=np.int64), known, known)


def numbers(images: Images) -> list[int]:
    return images.pixels.ravel().astype(int).tolist()


@settings(max_examples=60, deadline=None)
@given(users=st.lists(st.integers(0, 5), min_size=2, max_size=60), share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_hold_out_leaves_every_writer_on_both_sides(users: list[int], share: float, seed: int) -> None:
    counts = np.bincount(users)
    images = numbered([0] * len(users), users)
    if counts.max() < 2:
        with pytest.raises(UserError, match="no writer has two images"):
            hold_out(images, share, seed)
        return
    train, test = hold_out(images, share, seed)
    assert sorted(numbers(train) + numbers(test)) == list(range(len(users)))
    assert numbers(train) == sorted(numbers(train)) and numbers(test) == sorted(numbers(test))
    assert (test.users == np.array(users)[numbers(test)]).all() and (test.files == test.users).all()
    for user, count in enumerate(counts):
        held = int((test.users == user).sum())
        assert held == (0 if count < 2 else min(max(round(count * share), 1), count - 1))


def test_hold_out_draws_by_the_seed() -> None:
    images = numbered([0] * 40, [0] * 20 + [1] * 20)
    drawn = [tuple(numbers(hold_out(images, 0.25, seed)[1])) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_hold_out_keeps_label_shares_without_writers() -> None:
    train, test = hold_out(numbered([0] * 80 + [1] * 20), 0.25, 3)
    assert np.bincount(test.labels).tolist() == [20, 5] and np.bincount(train.labels).tolist() == [60, 15]
    with refuses():
        hold_out(numbered([0]), 0.5, 3)


def test_limited_keeps_shares_and_writers() -> None:
    train, test = numbered([0] * 60 + [1] * 40, [i % 7 for i in range(100)]), numbered([0] * 12 + [1] * 8)
    small, tested = limited(train, test, 50, 1)
    assert np.bincount(small.labels).tolist() == [30, 20] and np.bincount(tested.labels).tolist() == [6, 4]
    assert small.users.tolist() == [i % 7 for i in numbers(small)] and numbers(small) == sorted(numbers(small))
    assert limited(train, test, 100, 1) == (train, test)
    assert len(limited(train, numbered([0]), 10, 1)[1]) == 1
    assert numbers(limited(train, test, 50, 2)[0]) != numbers(small)


@pytest.mark.parametrize(("height", "width"), [(28, 28), (32, 32), (16, 16), (8, 8), (9, 13)])
def test_scale_is_bilinear(height: int, width: int) -> None:
    """As Pillow enlarges."""
    images = load_digits().images[:5]
    for image, made in zip(images, scale(images, height, width), strict=True):
        known = Image.fromarray(image.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
        np.testing.assert_allclose(made, np.asarray(known), atol=1e-5)


def test_digits_are_those_of_scikit_learn() -> None:
    ours, theirs = read_digits([1, 8, 8]), load_digits()
    np.testing.assert_array_equal(ours.pixels[:, 0], np.rint(theirs.images * (255 / 16)))
    np.testing.assert_array_equal(ours.labels, theirs.target)


def test_scale_to_one_pixel_and_from_one() -> None:
    assert scale(np.arange(16.0).reshape(1, 4, 4), 1, 1).tolist() == [[[7.5]]]
    assert scale(np.array([[[3.0]]]), 2, 3).tolist() == [[[3.0] * 3] * 2]


@pytest.mark.parametrize("name", ["femnist", "cifar100", "usps"])
def test_load_images_takes_embedded_digits(image_task, name: str) -> None:
    spec = image_task(name, source="embedded")
    task = load_images(spec, None)
    assert task.classes == [str(i) for i in range(10)] and task.coordinates is None and task.train.users is None
    assert list(task.shape) == spec.shape and task.train.pixels.dtype == np.uint8
    assert len(task.train) + len(task.test) == 1797 and len(task.test) == int(np.ceil(1797 * spec.holdout))
    np.testing.assert_allclose(np.bincount(task.test.labels), np.bincount(load_digits().target) * spec.holdout, atol=1)
    assert (task.train.pixels == task.train.pixels[:, :1]).all() and task.train.pixels.max() > 240
    assert "stand in (task.source=embedded)" in task.notes[0] and f", {len(task.test)}, are held out" in task.notes[1]


def test_points_of_the_first_ten_classes(image_task) -> None:
    points = [[float(i), 0.0] for i in range(62)]
    assert load_images(image_task("femnist", source="embedded", coordinates=points), None).coordinates == points[:10]
    few = image_task("mnist", source="embedded", classes=["a", "b"], coordinates=[[0.0], [1.0]])
    assert load_images(few, None).coordinates is None
