"""Image tasks from their presets: complete, right on the real files, and clear where a file or key is wrong."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knot_runner.config.settings import ImageTaskSettings
from knot_runner.data.images import load_images
from tests import image_files
from tests.golden.messages import refuses
from tests.image_files import PRESETS, image_settings, task_config

NAMES = ("femnist", "cifar10", "cifar100", "mnist", "kmnist", "fashionmnist", "usps")
TREE = {f"train/{kind}/{letter}.png": image_files.png(np.full((4, 4), i, np.uint8))
        for i, (kind, letter) in enumerate([("ape", "a"), ("ape", "b"), ("wolf", "a"), ("wolf", "b")])}  # fmt: skip


def tree_task(entry: str = "train") -> ImageTaskSettings:
    local = {"format": "folders", "train": [entry], "test": []}
    return image_settings(local=local, classes=["ape", "wolf"], shape=[1, 4, 4], holdout=0.5)


@pytest.mark.parametrize("name", NAMES)
def test_preset_has_every_key_and_the_owners_order_of_classes(name: str) -> None:
    config = task_config(name)
    assert set(config) == {field.name for field in dataclasses.fields(ImageTaskSettings)}
    assert config["source"] == "embedded" and config["name"] == name
    text = (PRESETS / f"{name}.yaml").read_text().splitlines()
    assert text[0].startswith(f"# knot-runner task={name}") and not text[4].endswith(",")
    assert config["hub"]["splits"]["train"] == "train"
    if name in ("cifar10", "cifar100", "femnist"):  # CIFAR by the alphabet; LEAF digits, capitals, small letters
        count = {"cifar10": 10, "cifar100": 100, "femnist": 62}[name]
        assert config["classes"] == sorted(config["classes"]) and len(config["classes"]) == count


@pytest.mark.thorough
@pytest.mark.real_data
@pytest.mark.parametrize(("name", "train", "test"), [
    ("femnist", 5936, 658), ("mnist", 20_000, 10_000), ("fashionmnist", 750, 150), ("cifar10", 10_000, 2000),
    ("cifar100", 4000, 1000), ("usps", 1600, 400),
])  # fmt: skip
def test_real_images_are_read(data_root: Path, name: str, train: int, test: int) -> None:
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
        small = load_images(image_settings("femnist", limit=600), data_root)
        assert len(small.train) == 600 and len(small.test) == round(658 * 600 / 5936)
        assert task.notes == ["femnist: the training images are of 10 of the 62 classes"]
    if name == "usps":
        assert task.train.pixels.min() == 0 and task.train.pixels.max() == 1
        assert task.notes == ["usps: no test set of its own; 20% of the images, 400, are held out"]


@pytest.mark.parametrize(("root", "changes"), [
    (None, {}), ("nowhere", {}), ("", {}), ("", {"local": {"train": []}}),
    ("", {"local": {"train": ["sub", "sub"], "test": []}}), ("", None),
])  # fmt: skip
def test_load_images_refuses_folders_and_keys(tmp_path: Path, root: str | None, changes: dict[str, Any] | None) -> None:
    (tmp_path / "sub").mkdir()
    settings = image_settings(**changes or {})
    if changes is None:
        settings = dataclasses.replace(settings, local=None)
    with refuses():
        load_images(settings, None if root is None else tmp_path / root)


def test_load_images_reads_what_fits_the_checksums(tmp_path: Path) -> None:
    images, labels = np.zeros((20, 28, 28), np.uint8), np.arange(20, dtype=np.uint8) % 2
    paths = [image_files.idx(tmp_path / "x", images), image_files.idx(tmp_path / "y", labels)]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.name}\n" for path in paths]
    (tmp_path / "SHA256SUMS").write_text("".join(lines))
    settings = image_settings(local={"train": ["x", "y"], "test": []})
    assert len(load_images(settings, tmp_path).train) == 16
    image_files.idx(paths[1], labels[::-1].copy())  # as long and as valid as before
    with refuses():
        load_images(settings, tmp_path)


def test_load_images_records_a_folder_as_one_entry_wherever_it_is_seen_from(tmp_path: Path, monkeypatch) -> None:
    image_files.tree(tmp_path / "data", TREE)
    monkeypatch.chdir(tmp_path)
    relative, absolute = (load_images(tree_task(), root) for root in (Path("data"), tmp_path / "data"))
    (file,) = absolute.files
    assert (file.path, file.pattern, file.size) == ("train", "*/*", sum(map(len, TREE.values())))
    (same,) = relative.files
    assert (same.path, same.size, same.sha256, same.pattern) == (file.path, file.size, file.sha256, file.pattern)
    assert (relative.digest, relative.notes) == (absolute.digest, absolute.notes)


@pytest.mark.parametrize("layout", ["folders", "leaf", "idx"])
@pytest.mark.parametrize(("copied", "note"), [(10, "100%"), (6, "60%"), (5, None), (0, None)])
def test_load_images_reports_test_images_that_are_in_train(tmp_path: Path, layout: str, copied: int, note) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 4), dtype=np.uint8)
    parts = {"train": pixels[:10], "test": np.concatenate([pixels[:copied], pixels[10 : 20 - copied]])}
    entries = {"train": ["train"], "test": ["test"]}
    for name, part in parts.items():
        if layout == "folders":
            files = {f"{'ab'[i % 2]}/{i}.png": image_files.png(image) for i, image in enumerate(part)}
            image_files.tree(tmp_path / name, files)
        elif layout == "leaf":
            writers = {"f1": ((part.reshape(10, 16) / 255).tolist(), [i % 2 for i in range(10)])}
            image_files.leaf(tmp_path / name, writers)
        else:
            entries[name] = [f"{name}-images", f"{name}-labels"]
            image_files.idx(tmp_path / f"{name}-images", part)
            image_files.idx(tmp_path / f"{name}-labels", np.arange(10, dtype=np.uint8) % 2)
    settings = image_settings(local={"format": layout} | entries, classes=["a", "b"], shape=[1, 4, 4])
    line = f"mnist: {note} of the test images stand in train too; its score is memory"
    assert load_images(settings, tmp_path).notes == ([line] if note else [])
