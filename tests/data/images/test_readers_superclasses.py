"""CIFAR-100's superclasses from the coarse labels of its files, and beside those of the YAML."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.data.images.test_readers_cifar import PIXELS, binary_files
from tests.golden.messages import refuses

#: Ten classes in three superclasses, as coarse labels say it.
FINE, COARSE = np.arange(10), np.array([4, 4, 0, 0, 0, 9, 9, 4, 0, 9])


def hundred(write, tmp_path: Path, kind: str, coarse: np.ndarray = COARSE, fine: np.ndarray = FINE) -> str:
    """CIFAR-100's release of ten images; the same for train and test."""
    if kind == "binary":
        data, names = write.binary(PIXELS[: len(fine)], coarse, fine), ("train.bin", "test.bin")
    else:
        pixels = PIXELS[: len(fine)].reshape(len(fine), -1)
        batch = {b"data": pixels, b"coarse_labels": coarse.tolist(), b"fine_labels": fine.tolist()}
        data, names = pickle.dumps(batch, 4), ("train", "test")
    write.tree(tmp_path / "c", dict.fromkeys(names, data))
    return "c"


def ten(load_cifar, entry: str, superclasses: dict | None, **changes):
    classes = [f"class {number}" for number in range(10)]
    changes = {"geometry": "superclasses", "superclasses": superclasses, "classes": classes, **changes}
    return load_cifar(entry, "cifar100", **changes)


def distances(task) -> np.ndarray:
    points = np.array(task.coordinates)
    return np.linalg.norm(points[:, None] - points[None], axis=2)


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_superclasses_of_the_coarse_labels(write, load_cifar, tmp_path: Path, kind: str) -> None:
    task = ten(load_cifar, hundred(write, tmp_path, kind), None)
    wanted = np.where(COARSE[:, None] == COARSE[None], 1.0, 2.0) * (1 - np.eye(10))
    np.testing.assert_allclose(distances(task), wanted, atol=1e-12)
    assert "cifar100: superclasses are those of the files' coarse labels" in task.notes


def grouped(coarse: np.ndarray) -> dict[str, list[str]]:
    return {f"group {one}": [f"class {k}" for k in np.flatnonzero(coarse == one)] for one in sorted(set(coarse))}


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_superclasses_of_the_yaml_are_compared_with_the_files(write, load_cifar, tmp_path: Path, kind: str) -> None:
    entry = hundred(write, tmp_path, kind)
    same = ten(load_cifar, entry, grouped(COARSE))
    assert any("the files' coarse labels, as task.superclasses has them" in note for note in same.notes)
    changed = COARSE.copy()
    changed[5] = 0
    other = ten(load_cifar, entry, grouped(changed))
    assert any("those of task.superclasses, though the files' coarse labels put 'class 2'" in n for n in other.notes)
    assert distances(other)[5, 0] == pytest.approx(2) and distances(other)[5, 2] == pytest.approx(1)


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_a_class_in_two_superclasses_is_refused(write, load_cifar, tmp_path: Path, kind: str) -> None:
    fine = FINE.copy()
    fine[9] = 0  # of coarse 9, and image 0 is of 4
    entry = hundred(write, tmp_path, kind, fine=fine)
    with refuses():
        ten(load_cifar, entry, grouped(COARSE))
    assert len(ten(load_cifar, entry, None, geometry="onehot").train) == 10  # which does not read them


def test_what_says_no_superclass_is_named(write, load_cifar, image_task, tmp_path: Path) -> None:
    entry = hundred(write, tmp_path, "binary", COARSE[:9], FINE[:9])
    with refuses():
        ten(load_cifar, entry, None)
    write.tree(tmp_path, binary_files(write))
    with refuses():
        ten(load_cifar, "cifar-10-batches-bin", None)
    with refuses():
        image_task("cifar100", geometry="superclasses", superclasses=None)


def test_coarse_labels_that_are_no_numbers_are_refused(write, load_cifar, tmp_path: Path) -> None:
    batch = {b"data": PIXELS.reshape(10, -1), b"coarse_labels": [1] * 9, b"fine_labels": FINE.tolist()}
    write.tree(tmp_path / "c", dict.fromkeys(("train", "test"), pickle.dumps(batch, 4)))
    with refuses():
        ten(load_cifar, "c", None)
