"""Image tasks from their presets: complete, right on the real files, and clear where a file or key is wrong."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from knot_runner import compose
from knot_runner.data.images import load_images
from knot_runner.data.images.load import class_points, one_hot, read_digits, scale, superclass_points
from tests import image_files
from tests.golden.messages import refuses
from tests.image_files import image_settings
from tests.runs import run
from tests.tiny import TINY_IMAGES

TREE = {f"train/{kind}/{letter}.png": image_files.png(np.full((4, 4), i, np.uint8))
        for i, (kind, letter) in enumerate([("ape", "a"), ("ape", "b"), ("wolf", "a"), ("wolf", "b")])}  # fmt: skip


@pytest.mark.parametrize(("name", "count"), [("cifar10", 10), ("cifar100", 100), ("femnist", 62)])
def test_presets_order_classes_as_their_owners_do(name, count):
    """CIFAR by the alphabet; LEAF digits, capitals, small letters."""
    classes = image_settings(name).classes
    assert classes == sorted(classes) and len(classes) == count


@pytest.mark.real_data
@pytest.mark.parametrize(("name", "train", "test"), [
    ("femnist", 5936, 658), ("mnist", 20_000, 10_000), ("fashionmnist", 750, 150), ("cifar10", 10_000, 2000),
    ("cifar100", 4000, 1000), ("usps", 1600, 400),
])  # fmt: skip
def test_real_images_are_read(data_root, name, train, test):
    settings = image_settings(name)
    task = load_images(settings, data_root)
    assert (len(task.train), len(task.test)) == (train, test) and list(task.shape) == settings.shape
    assert task.train.pixels.dtype == (np.float32 if name == "usps" else np.uint8)
    if name in ("cifar10", "cifar100"):
        assert set(np.bincount(task.train.labels)) == {train // len(settings.classes)}
    if name in ("mnist", "cifar10", "cifar100"):  # near the statistics by which the images are normalized
        np.testing.assert_allclose(task.train.pixels.mean((0, 2, 3)) / 255, settings.mean, atol=0.02)
        np.testing.assert_allclose(task.train.pixels.std((0, 2, 3)) / 255, settings.std, atol=0.02)
    if name == "mnist":
        assert np.bincount(task.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
        assert task.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    if name == "femnist":
        assert set(task.train.users) == set(task.test.users) == set(range(60)) and len(task.user_names) == 60
        assert set(task.train.labels) == set(range(10)) and set(task.train.files) == set(task.test.files) == {0}
        assert task.train.pixels[:, :, 0, 0].mean() > 250  # ink is dark on white paper
        assert task.notes == ["femnist: the training images cover 10 of the 62 classes"]
    if name == "usps":
        assert task.train.pixels.min() == 0 and task.train.pixels.max() == 1
        assert task.notes == ["usps: no test set, so 20% of the images (400 in total) are held out"]


@pytest.mark.parametrize(("root", "changes"), [
    (None, {}), ("nowhere", {}), ("", {}), ("", {"local": {"train": []}}),
    ("", {"local": {"train": ["sub", "sub"], "test": []}}), ("", None),
])  # fmt: skip
def test_load_images_refuses_folders_and_keys(tmp_path, root, changes):
    (tmp_path / "sub").mkdir()
    settings = image_settings(**changes or {})
    if changes is None:
        settings = dataclasses.replace(settings, local=None)
    with refuses():
        load_images(settings, None if root is None else tmp_path / root)


def test_load_images_records_folders_independent_of_root(tmp_path, monkeypatch):
    image_files.tree(tmp_path / "data", TREE)
    monkeypatch.chdir(tmp_path)
    local = {"format": "folders", "train": ["train"], "test": []}
    settings = image_settings(local=local, classes=["ape", "wolf"], shape=[1, 4, 4], holdout=0.5)
    relative, absolute = (load_images(settings, root) for root in (Path("data"), tmp_path / "data"))
    (file,) = absolute.files
    assert (file.path, file.pattern, file.size) == ("train", "*/*", sum(map(len, TREE.values())))
    (same,) = relative.files
    assert (same.path, same.size, same.sha256, same.pattern) == (file.path, file.size, file.sha256, file.pattern)
    assert (relative.digest, relative.notes) == (absolute.digest, absolute.notes)


@pytest.mark.parametrize(("copied", "note"), [(10, "100%"), (6, "60%"), (5, None), (0, None)])
def test_load_images_reports_test_images_in_train(tmp_path, copied, note):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 4), dtype=np.uint8)
    parts = {"x": pixels[:10], "z": np.concatenate([pixels[:copied], pixels[10 : 20 - copied]])}
    image_files.idx(tmp_path / "y", np.arange(10, dtype=np.uint8) % 2)
    image_files.idx(tmp_path / "w", np.arange(10, dtype=np.uint8) % 2)
    for name, part in parts.items():
        image_files.idx(tmp_path / name, part)
    settings = image_settings(local={"train": ["x", "y"], "test": ["z", "w"]}, classes=["a", "b"], shape=[1, 4, 4])
    line = f"mnist: {note} of the test images are also in the training set, so test scores are too optimistic"
    assert load_images(settings, tmp_path).notes == ([line] if note else [])


def distances(points):
    points = np.array(points)
    return np.linalg.norm(points[:, None] - points, axis=-1)


def test_points_of_classes_lie_as_far_apart_as_said():
    np.testing.assert_allclose(distances(one_hot(3)), np.sqrt(2) * (1 - np.eye(3)), atol=1e-12)
    actual = distances(superclass_points(["a", "b", "c", "d"], {"late": ["b", "d", "c"], "first": ["a"]}))
    np.testing.assert_allclose(actual, [[0, 2, 2, 2], [2, 0, 1, 1], [2, 1, 0, 1], [2, 1, 1, 0]], atol=1e-12)


@pytest.mark.parametrize(("geometry", "wanted"), [("given", None), ("onehot", 10), ("superclasses", 12)])
def test_class_points_follow_the_geometry(geometry, wanted):
    (job,) = compose(["task=cifar10", f"task.geometry={geometry}"])
    points = class_points(job.settings.task)
    assert (points and len(points[0])) == wanted


def test_geometry_adds_semantic_distance_to_federated_run(tmp_path, fedavg_run):
    apart = run(tmp_path, *TINY_IMAGES, "method=fedavg", "training.lr=0.1", "task.geometry=superclasses").result
    plain = fedavg_run.result
    assert "sd" not in plain["metrics"] and 0 < apart["metrics"]["sd"]["ALL"] < 1.01  # digits are all one superclass
    assert plain["metrics"]["accuracy"] == apart["metrics"]["accuracy"] and plain["run_id"] != apart["run_id"]


@pytest.mark.parametrize(("height", "width"), [(28, 28), (32, 32), (16, 16), (8, 8), (9, 13)])
def test_scale_is_bilinear(height, width):
    images = load_digits().images[:5]
    for image, made in zip(images, scale(images, height, width), strict=True):
        known = Image.fromarray(image.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
        np.testing.assert_allclose(made, np.asarray(known), atol=1e-5)


def test_digits_are_those_of_scikit_learn():
    ours, theirs = read_digits([1, 8, 8]), load_digits()
    np.testing.assert_array_equal(ours.pixels[:, 0], np.rint(theirs.images * (255 / 16)))
    np.testing.assert_array_equal(ours.labels, theirs.target)
    assert scale(np.arange(16.0).reshape(1, 4, 4), 1, 1).tolist() == [[[7.5]]]
    assert scale(np.array([[[3.0]]]), 2, 3).tolist() == [[[3.0] * 3] * 2]


@pytest.mark.parametrize("name", ["femnist", "cifar100", "usps"])
def test_load_images_takes_embedded_digits(image_task, name):
    spec = image_task(name, source="embedded")
    task = load_images(spec, None)
    assert task.classes == [str(i) for i in range(10)] and task.coordinates is None and task.train.users is None
    assert list(task.shape) == spec.shape and task.train.pixels.dtype == np.uint8
    assert len(task.train) + len(task.test) == 1797 and len(task.test) == int(np.ceil(1797 * spec.holdout))
    np.testing.assert_allclose(np.bincount(task.test.labels), np.bincount(load_digits().target) * spec.holdout, atol=1)
    assert (task.train.pixels == task.train.pixels[:, :1]).all() and task.train.pixels.max() > 240
    assert (
        "instead (task.source=embedded)" in task.notes[0]
        and f"({len(task.test)} in total) are held out" in task.notes[1]
    )


def test_points_of_the_first_ten_classes(image_task):
    points = [[float(i), 0.0] for i in range(62)]
    assert load_images(image_task("femnist", source="embedded", coordinates=points), None).coordinates == points[:10]
    few = image_task("mnist", source="embedded", classes=["a", "b"], coordinates=[[0.0], [1.0]])
    assert load_images(few, None).coordinates is None
