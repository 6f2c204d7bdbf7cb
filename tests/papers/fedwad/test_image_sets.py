"""Several data sets as one task: rows, classes, scaling, stand-ins, and files that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knot_runner.config.strict import build
from knot_runner.data.images.load import read_digits
from knot_runner.papers.fedwad.image_sets import STAND_INS, load_image_sets
from knot_runner.papers.fedwad.settings import ImageSetsSettings
from tests.data_checks import opened_files, recorded_files
from tests.golden.messages import refuses
from tests.image_files import task_config

NAMES = ("mnist", "kmnist", "usps", "fashionmnist")


def settings(names: tuple[str, ...] = NAMES, **changes: Any) -> ImageSetsSettings:
    config = {
        "name": "image_sets", "kind": "image_sets", "source": "local", "missing": "stop", "shape": [1, 28, 28],
        "mean": [0.1307], "std": [0.3081], "sets": {name: task_config(name) for name in names},
    }  # fmt: skip
    return build(ImageSetsSettings, config | changes, "task")


@pytest.fixture
def two(write, tmp_path: Path) -> Path:
    """Twenty images of MNIST's kind and twenty of USPS's, two classes each, each image of one gray level."""
    labels = np.arange(20, dtype=np.uint8) % 2
    for name in ("mnist", "usps"):
        (tmp_path / name).mkdir()
    gray = np.repeat(np.arange(20, dtype=np.uint8), 28 * 28).reshape(20, 28, 28)
    for part in ("train", "t10k"):
        write.idx(tmp_path / f"mnist/{part}-images-idx3-ubyte.gz", gray)
        write.idx(tmp_path / f"mnist/{part}-labels-idx1-ubyte.gz", labels)
    write.usps(tmp_path / "usps/zip.test.gz", labels.tolist(), np.repeat(np.linspace(-1, 1, 20)[:, None], 256, 1))
    return tmp_path


def test_image_sets_keep_rows_and_classes_apart(two: Path) -> None:
    task, partition = load_image_sets(settings(("mnist", "usps")), two)
    assert partition.names == ["mnist", "usps"] and partition.groups is None
    assert [rows.tolist() for rows in partition.train] == [list(range(20)), list(range(20, 36))]  # 20% of USPS held out
    assert len(task.classes) == 20 and task.classes[0] == "mnist: 0" and task.classes[13] == "usps: 3"
    assert set(task.train.labels[:20]) == {0, 1} and set(task.train.labels[20:]) == {10, 11}
    assert task.shape == (1, 28, 28) and len(task.test) == 0 and task.mean == [0.1307]
    assert task.train.pixels.dtype == np.float32
    np.testing.assert_allclose(task.train.pixels[:20, 0, 3, 5], np.arange(20) / 255, rtol=1e-6)
    assert np.ptp(task.train.pixels[20:], axis=(1, 2, 3)).max() < 1e-6  # enlarging a flat image leaves it flat
    assert "usps: no test set, so 20% of the images (4 in total) are held out" in partition.notes


def test_image_sets_refuse_or_omit_missing_files(two: Path) -> None:
    refused = [settings(), settings(missing=["kmnist"]), settings(missing="skip"),  # none is optional
               settings(("mnist", "kmnist"), missing=["kmnist"])]  # fmt: skip
    for wrong in refused:
        with refuses():
            load_image_sets(wrong, two)
    with refuses():
        load_image_sets(settings(missing="skip"), None)
    for missing in ({"missing": ["kmnist", "fashionmnist"]}, {"missing": "skip", "optional": list(NAMES)}):
        _, partition = load_image_sets(settings(**missing), two)
        assert partition.names == ["mnist", "usps"]
    assert (
        "kmnist: left out, since these files are missing: kmnist/train-images-idx3-ubyte.gz, and 3 more"
        in partition.notes
    )


def test_image_sets_record_read_and_absent_files(two: Path) -> None:
    made = settings(("mnist", "kmnist", "usps"), missing=["kmnist"])
    with opened_files() as opened:
        task, _ = load_image_sets(made, two)
    assert recorded_files(task.files, two) == opened and len(opened) == 5
    absent = [one.path for one in task.files if one.sha256 is None]
    assert absent and all("kmnist" in path for path in absent)


def test_image_sets_refuse_half_a_set(two: Path) -> None:
    (two / "mnist/t10k-images-idx3-ubyte.gz").unlink()
    for missing in ("stop", ["mnist"]):
        with refuses():
            load_image_sets(settings(("mnist", "usps"), missing=missing), two)


def test_image_sets_find_folders_in_zips(two: Path, write) -> None:
    images = {f"train/{kind}/{i}.png": write.png(np.full((28, 28), i, np.uint8)) for kind in "ab" for i in range(10)}
    write.zipped(two / "own.zip", images)
    own = task_config("mnist") | {"name": "own", "classes": ["a", "b"]}
    own["local"] = {"format": "folders", "train": ["own.zip/train"], "test": []}
    sets = {"mnist": task_config("mnist"), "own": own}
    _, partition = load_image_sets(settings(sets=sets), two)
    assert partition.names == ["mnist", "own"]


def test_embedded_image_sets_share_no_image() -> None:
    task, partition = load_image_sets(settings(source="embedded", shape=[1, 8, 8]), None)
    assert partition.names == list(STAND_INS) and task.source == "embedded"
    assert "scikit-learn" in partition.notes[0] and "kmnist" in partition.notes[0]
    digits = read_digits([1, 8, 8])
    plain, _, turned, inverted = (task.train.pixels[rows] for rows in partition.train)
    np.testing.assert_array_equal(plain, digits.pixels[0::4])
    np.testing.assert_array_equal(np.rot90(turned, -1, axes=(2, 3)), digits.pixels[2::4])
    np.testing.assert_array_equal(inverted.astype(int) + digits.pixels[3::4], 255)
    assert sum(map(len, partition.train)) == len(digits) == len(task.train)


BOTH = {"mnist": task_config("mnist"), "cifar10": task_config("cifar10")}
LIMITED = {**BOTH, "mnist": task_config("mnist") | {"max_examples": 3}}


@pytest.mark.parametrize("changes", [
    {"sets": {"mnist": BOTH["mnist"]}}, {"shape": [28, 28]}, {"mean": [0.1, 0.2]}, {"std": [0.0]}, {"missing": "ask"},
    {"missing": ["mist"]}, {"sets": BOTH}, {"sets": LIMITED},
], ids=["one", "shape", "mean", "std", "ask", "mist", "cifar10", "limit"])  # fmt: skip
def test_image_sets_refuse_settings(changes) -> None:
    with refuses():
        settings(**changes)


@pytest.mark.real_data
def test_image_sets_of_real_data(data_root: Path) -> None:
    task, partition = load_image_sets(settings(missing=["kmnist"]), data_root)
    assert partition.names == ["mnist", "usps", "fashionmnist"]
    assert [len(rows) for rows in partition.train] == [20_000, 1600, 750] and task.shape == (1, 28, 28)
