"""Image tasks from their presets: complete, right on the real files, and clear where a file or key is wrong."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest

from knot_runner.config.settings import ImageTaskSettings
from knot_runner.data.images import load_images
from tests.golden.messages import refuses
from tests.image_files import PRESETS, task_config

NAMES = ("femnist", "cifar10", "cifar100", "mnist", "kmnist", "fashionmnist", "usps")


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_written_down(image_task, name: str) -> None:
    config = task_config(name)
    assert set(config) == {field.name for field in dataclasses.fields(ImageTaskSettings)}
    assert config["source"] == "embedded" and config["name"] == name
    text = (PRESETS / f"{name}.yaml").read_text().splitlines()
    assert text[0].startswith(f"# knot-runner task={name}") and not text[4].endswith(",")
    assert image_task(name).hub.splits["train"] == "train"


def test_class_orders(image_task) -> None:
    """As the owners number them: CIFAR by the alphabet, LEAF digits, capitals, small letters."""
    for name in ("cifar10", "cifar100"):
        assert image_task(name).classes == sorted(image_task(name).classes)
    femnist = image_task("femnist").classes
    assert femnist == sorted(femnist) and len(femnist) == 62
    assert len(image_task("cifar100").classes) == 100


@pytest.mark.thorough
@pytest.mark.real_data
def test_femnist_digits(image_task, data_root: Path) -> None:
    task = load_images(image_task("femnist"), data_root)
    assert (len(task.train), len(task.test), len(task.user_names)) == (5936, 658, 60)
    assert task.train.pixels.dtype == np.uint8
    assert set(task.train.users) == set(task.test.users) == set(range(60))
    assert set(task.train.labels) == set(range(10)) and set(task.train.files) == set(task.test.files) == {0}
    assert task.train.pixels[:, :, 0, 0].mean() > 250  # ink is dark on white paper
    by_file = load_images(image_task("femnist", limit=600), data_root)
    assert len(by_file.train) == 600 and len(by_file.test) == round(658 * 600 / 5936)
    assert task.notes == ["femnist: the training images are of 10 of the 62 classes"]


@pytest.mark.thorough
@pytest.mark.real_data
def test_mnist(image_task, data_root: Path) -> None:
    task = load_images(image_task("mnist"), data_root)
    assert (len(task.train), len(task.test)) == (20_000, 10_000)
    known = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]  # of the official test set
    assert np.bincount(task.test.labels).tolist() == known
    assert task.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    values = task.train.pixels / 255
    assert abs(values.mean() - 0.1307) < 0.002 and abs(values.std() - 0.3081) < 0.002


@pytest.mark.thorough
@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "train", "test"), [("fashionmnist", 750, 150), ("cifar10", 10_000, 2000), ("cifar100", 4000, 1000)]
)
def test_other_real_sets(image_task, data_root: Path, name: str, train: int, test: int) -> None:
    spec = image_task(name)
    task = load_images(spec, data_root)
    assert (len(task.train), len(task.test)) == (train, test) and list(task.shape) == spec.shape
    if name != "fashionmnist":  # balanced, and near the statistics by which the images are normalised
        assert set(np.bincount(task.train.labels)) == {train // len(spec.classes)}
        np.testing.assert_allclose(task.train.pixels.mean((0, 2, 3)) / 255, spec.mean, atol=0.02)
        np.testing.assert_allclose(task.train.pixels.std((0, 2, 3)) / 255, spec.std, atol=0.02)


@pytest.mark.real_data
def test_usps(image_task, data_root: Path) -> None:
    task = load_images(image_task("usps"), data_root)
    assert (len(task.train), len(task.test)) == (1600, 400) and task.train.pixels.dtype == np.float32
    assert task.train.pixels.min() == 0 and task.train.pixels.max() == 1
    assert task.notes == ["usps: no test set of its own; 20% of the images, 400, are held out"]


def test_paths_and_keys(image_task, tmp_path: Path) -> None:
    def refused(message: str, root: Path | None = tmp_path, **changes) -> None:
        with refuses():
            load_images(image_task("mnist", **changes), root)

    refused("paths.data: is not set; task.source=local needs paths.data=DIR or the variable KNOT_DATA", None)
    refused("paths.data: .*nowhere is not a folder", tmp_path / "nowhere")
    refused("train-images-idx3-ubyte.gz: is not there")
    refused("task.local.train: names no file", local={"train": []})
    (tmp_path / "sub").mkdir()
    refused(r"sub: is not there \(a folder is\)", local={"train": ["sub", "sub"], "test": []})
    spec = dataclasses.replace(image_task("mnist"), local=None)
    with refuses():
        load_images(spec, tmp_path)


def test_checksums(image_task, write, tmp_path: Path) -> None:
    images, labels = np.zeros((20, 28, 28), np.uint8), np.arange(20, dtype=np.uint8) % 2
    paths = [write.idx(tmp_path / "x", images), write.idx(tmp_path / "y", labels)]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.name}\n" for path in paths]
    (tmp_path / "SHA256SUMS").write_text("".join(lines))
    spec = image_task("mnist", local={"train": ["x", "y"], "test": []})
    assert len(load_images(spec, tmp_path).train) == 16
    write.idx(paths[1], labels[::-1].copy())  # as long and as valid as before
    with refuses():
        load_images(spec, tmp_path)


@pytest.mark.parametrize(("entry", "file"), [("train", "train/wolf/a.png"), ("set.zip/train", "set.zip")])
def test_checksums_of_trees_and_zips(image_task, write, tmp_path: Path, entry: str, file: str) -> None:
    names = [f"train/{kind}/{letter}.png" for kind in ("ape", "wolf") for letter in "ab"]
    images = {name: write.png(np.full((4, 4), i, np.uint8)) for i, name in enumerate(names)}
    write.tree(tmp_path, images)
    write.zipped(tmp_path / "set.zip", images)
    local = {"format": "folders", "train": [entry], "test": []}
    spec = image_task("mnist", local=local, classes=["ape", "wolf"], shape=[1, 4, 4], holdout=0.5)
    assert len(load_images(spec, tmp_path).train) == 2
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {file}\n")
    with refuses():
        load_images(spec, tmp_path)


@pytest.mark.parametrize("layout", ["folders", "leaf", "idx"])
@pytest.mark.parametrize(("copied", "note"), [(10, "100%"), (6, "60%"), (5, None), (0, None)])
def test_test_images_in_train_are_reported(image_task, write, tmp_path, layout: str, copied: int, note) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 4), dtype=np.uint8)
    parts = {"train": pixels[:10], "test": np.concatenate([pixels[:copied], pixels[10 : 20 - copied]])}
    entries = {"train": ["train"], "test": ["test"]}
    for name, part in parts.items():
        if layout == "folders":
            write.tree(tmp_path / name, {f"{'ab'[i % 2]}/{i}.png": write.png(image) for i, image in enumerate(part)})
        elif layout == "leaf":
            write.leaf(tmp_path / name, {"f1": ((part.reshape(10, 16) / 255).tolist(), [i % 2 for i in range(10)])})
        else:
            entries[name] = [f"{name}-images", f"{name}-labels"]
            write.idx(tmp_path / f"{name}-images", part)
            write.idx(tmp_path / f"{name}-labels", np.arange(10, dtype=np.uint8) % 2)
    spec = image_task("mnist", local={"format": layout} | entries, classes=["a", "b"], shape=[1, 4, 4])
    line = f"mnist: {note} of the test images stand in train too; its score is memory"
    assert load_images(spec, tmp_path).notes == ([line] if note else [])
