"""The digits that come with scikit-learn: scaled as Pillow does, and as an image task."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from knot_runner.data.images import load_images
from knot_runner.data.images.digits import read_digits, scale


@pytest.mark.parametrize(("height", "width"), [(28, 28), (32, 32), (16, 16), (8, 8), (9, 13)])
def test_scale_is_bilinear(height: int, width: int) -> None:
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
    assert "instead (task.source=embedded)" in task.notes[0] and f", {len(task.test)}, are held out" in task.notes[1]


def test_points_of_the_first_ten_classes(image_task) -> None:
    points = [[float(i), 0.0] for i in range(62)]
    assert load_images(image_task("femnist", source="embedded", coordinates=points), None).coordinates == points[:10]
    few = image_task("mnist", source="embedded", classes=["a", "b"], coordinates=[[0.0], [1.0]])
    assert load_images(few, None).coordinates is None
