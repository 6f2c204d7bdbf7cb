"""What an image task says it read is what was opened, in every layout; several loads at once do not mix."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from knot_runner.config.settings import ImageSetsSettings, build
from knot_runner.data.images import load_images
from knot_runner.data.images.sets import load_image_sets
from knot_runner.provenance.fingerprints import Opened
from tests.image_files import task_config
from tests.unit.data import opens

GREY = np.arange(20, dtype=np.uint8).repeat(28 * 28).reshape(20, 28, 28)
LABELS = np.arange(20, dtype=np.uint8) % 2
COLOUR = np.zeros((10, 3, 32, 32), np.uint8)


def two_classes(**local: Any) -> dict[str, Any]:
    return {"classes": ["ape", "wolf"], "shape": [1, 4, 4], "holdout": 0.5, "local": {"format": "folders"} | local}


def made(kind: str, write: SimpleNamespace, root: Path) -> tuple[str, dict[str, Any]]:
    """Files of ``kind`` below ``root``: the name of a task and the changes that let it read them."""
    batch = write.binary(COLOUR, np.arange(10, dtype=np.uint8))
    batches = {f"cifar-10-batches-bin/data_batch_{i}.bin": batch for i in range(1, 6)}
    batches["cifar-10-batches-bin/test_batch.bin"] = batch
    pngs = {f"train/{c}/{x}.png": write.png(np.zeros((4, 4), np.uint8)) for c in ("ape", "wolf") for x in "ab"}
    if kind == "idx":
        write.idx(root / "x.gz", GREY)
        write.idx(root / "y", LABELS)
        return "mnist", {"local": {"train": ["x.gz", "y"], "test": []}}
    if kind == "usps":
        write.usps(root / "zip.train", LABELS.tolist(), np.zeros((20, 256)))
        return "usps", {"local": {"train": ["zip.train"], "test": []}}
    if kind == "cifar folder":
        write.tree(root, batches)
        return "cifar10", {"local": {"format": "cifar", "train": ["cifar-10-batches-bin"], "test": []}}
    if kind == "cifar tar":
        write.tar(root / "c.tar.gz", batches)
        return "cifar10", {"local": {"format": "cifar", "train": ["c.tar.gz"], "test": ["c.tar.gz"]}}
    if kind == "cifar python":
        batch = write.python2(COLOUR.reshape(10, -1), list(range(10)))
        names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        write.tree(root, {f"cifar-10-batches-py/{name}": batch for name in names})
        both = {"train": ["cifar-10-batches-py"], "test": ["cifar-10-batches-py"]}
        return "cifar10", {"local": {"format": "cifar", **both}}
    if kind == "leaf":
        for part in ("train", "test"):
            write.leaf(root / f"{part}/one.json", {"w": ([[0.0] * 784] * 4, [0, 1, 2, 3])})
        return "femnist", {"local": {"train": ["train"], "test": ["test/one.json"]}}
    if kind == "zip":
        write.zipped(root / "set.zip", pngs)
        return "mnist", two_classes(train=["set.zip/train"], test=[])
    write.tree(root, pngs | {"train/.DS_Store": b"x", "train/ape/.hidden": b"x"})
    return "mnist", two_classes(train=["train"], test=[])


WANTED = {
    "idx": {"x.gz", "y"},
    "usps": {"zip.train"},
    "cifar folder": {f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)},
    "cifar tar": {"c.tar.gz"},
    "cifar python": {f"cifar-10-batches-py/{n}" for n in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")},
    "leaf": {"train/one.json", "test/one.json"},
    "zip": {"set.zip"},
    "tree": {f"train/{c}/{x}.png" for c in ("ape", "wolf") for x in "ab"},
}


@pytest.mark.parametrize("kind", WANTED)
def test_all_layouts(kind: str, image_task, write, tmp_path: Path) -> None:
    name, changes = made(kind, write, tmp_path)
    with opens.opened_below(tmp_path) as seen:
        task = load_images(image_task(name, **changes), tmp_path)
    assert seen == WANTED[kind]
    files = task.files
    assert {path for path in opens.paths(files, tmp_path) if "/." not in path} == seen
    if kind != "tree":  # whose folder holds hidden files, which do not count
        opens.check(files, tmp_path)


@pytest.mark.parametrize("kind", WANTED)
def test_a_relative_folder_reads_what_an_absolute_one_does(kind: str, image_task, write, tmp_path, monkeypatch) -> None:
    (tmp_path / "data").mkdir()
    name, changes = made(kind, write, tmp_path / "data")
    settings = image_task(name, **changes)
    monkeypatch.chdir(tmp_path)
    relative, absolute = (load_images(settings, root) for root in (Path("data"), tmp_path / "data"))
    assert relative.files and content(relative.files) == content(absolute.files)
    assert (relative.digest, relative.file_names) == (absolute.digest, absolute.file_names)
    assert relative.notes == absolute.notes


def content(files: list[Opened]) -> list[tuple[str, int, str | None, str]]:
    """What was read. Inode and ctime are on record only of files that are not brand-new (``opened.TICK``)."""
    return [(one.path, one.size, one.sha256, one.pattern) for one in files]


def test_a_folder_is_one_entry(image_task, write, tmp_path: Path) -> None:
    name, changes = made("tree", write, tmp_path)
    files = load_images(image_task(name, **changes), tmp_path).files
    assert [(one.path, one.pattern) for one in files] == [("train", "*/*")]
    assert files[0].size == sum((tmp_path / path).stat().st_size for path in WANTED["tree"])


def test_sets_say_what_all_read_and_what_is_not_there(write, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for part in ("train", "t10k"):
        write.idx(tmp_path / f"mnist/{part}-images-idx3-ubyte.gz", GREY)
        write.idx(tmp_path / f"mnist/{part}-labels-idx1-ubyte.gz", LABELS)
    (tmp_path / "usps").mkdir()
    write.usps(tmp_path / "usps/zip.test.gz", LABELS.tolist(), np.zeros((20, 256)))
    config = {
        "name": "image_sets", "kind": "image_sets", "source": "local", "missing": ["kmnist"], "shape": [1, 28, 28],
        "mean": [0.1], "std": [0.3], "sets": {name: task_config(name) for name in ("mnist", "kmnist", "usps")},
    }  # fmt: skip
    with opens.opened_below(tmp_path) as seen:
        task, _ = load_image_sets(build(ImageSetsSettings, config, "task"), tmp_path)
    assert opens.paths(task.files, tmp_path) == seen and len(seen) == 5
    gone = [one.path for one in task.files if one.sha256 is None]
    assert gone and all("kmnist" in path for path in gone)


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["mnist", "usps"])
def test_real_images(name: str, data_root: Path, image_task) -> None:
    with opens.opened_below(data_root) as seen:
        task = load_images(image_task(name), data_root)
    assert seen - {"SHA256SUMS"} == opens.paths(task.files, data_root)
    opens.check(task.files, data_root)
