"""idx files and USPS text."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from knot_runner.data.images import ImageTask, load_images
from tests.golden.messages import refuses

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 10


@pytest.fixture
def load(image_task, tmp_path: Path):
    def read(train: list[str], test: list[str] | None = None, name: str = "mnist", **changes) -> ImageTask:
        return load_images(image_task(name, local={"train": train, "test": test or []}, **changes), tmp_path)

    return read


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_pairs(write, load, tmp_path: Path, suffix: str) -> None:
    names = [f"{part}-{kind}{suffix}" for part in ("a", "b", "c") for kind in ("images", "labels")]
    for i, part in enumerate((slice(0, 5), slice(5, 9), slice(9, 12))):
        write.idx(tmp_path / names[2 * i], PIXELS[part])
        write.idx(tmp_path / names[2 * i + 1], LABELS[part])
    task = load(names[:4], names[4:])
    np.testing.assert_array_equal(task.train.pixels[:, 0], PIXELS[:9])
    np.testing.assert_array_equal(task.test.labels, LABELS[9:])
    assert task.train.users is None and task.train.pixels.dtype == np.uint8
    assert all("the training images are of" in note for note in task.notes)


def test_wrong_files(write, load, tmp_path: Path) -> None:
    def refused(**changes) -> None:
        with refuses():
            load(["x", "y"], **changes)

    write.idx(tmp_path / "x", PIXELS)
    write.idx(tmp_path / "y", LABELS[:-1])
    refused()
    write.idx(tmp_path / "y", PIXELS)
    refused()
    write.idx(tmp_path / "y", LABELS + np.uint8(2))
    refused()
    write.idx(tmp_path / "y", LABELS)
    refused(shape=[1, 16, 16])
    (tmp_path / "x").write_bytes(struct.pack(">4I", 0x803, 2**31, 2**31, 2**31))
    refused()
    (tmp_path / "x").write_bytes(struct.pack(">4I", 0x803, 12, 28, 28) + PIXELS.tobytes() + b"1")
    refused()
    (tmp_path / "x").write_bytes(b"")
    refused()
    (tmp_path / "x").unlink()
    refused()
    with refuses():
        load(["x", "y", "x"])
    for name, empty in (("x", PIXELS[:0]), ("y", LABELS[:0])):
        write.idx(tmp_path / name, empty)
    refused()


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_a_cut_is_never_read(write, load, tmp_path: Path, suffix: str) -> None:
    paths = [write.idx(tmp_path / f"x{suffix}", PIXELS), write.idx(tmp_path / f"y{suffix}", LABELS)]
    for path in paths:
        whole = path.read_bytes()
        for stop in np.unique(np.linspace(0, len(whole) - 1, 20).astype(int)):
            path.write_bytes(whole[:stop])
            with refuses():
                load([p.name for p in paths])
        path.write_bytes(whole)


GREY = np.linspace(-1, 1, 256)[None].repeat(6, 0)


@pytest.mark.parametrize("name", ["zip.train", "zip.train.gz"])
def test_usps(write, load, tmp_path: Path, name: str) -> None:
    write.usps(tmp_path / name, [6, 5, 4, 7, 3, 6], GREY)
    write.usps(tmp_path / "zip.test", [9], GREY[:1])
    task = load([name], ["zip.test"], "usps")
    assert task.train.labels.tolist() == [6, 5, 4, 7, 3, 6] and task.train.pixels.dtype == np.float32
    np.testing.assert_allclose(task.train.pixels.reshape(6, -1), (GREY + 1) / 2, atol=6e-4)
    assert task.train.pixels.min() == 0 and task.train.pixels.max() == 1 and task.shape == (1, 16, 16)


def test_official_labels_have_decimals(load, tmp_path: Path) -> None:
    (tmp_path / "zip.train").write_text(("6.0000 " + "-1.0000 " * 256 + "\n") * 5)
    assert set(load(["zip.train"], name="usps").train.labels.tolist()) == {6}


@pytest.mark.parametrize("line", [
    "1 " + "0 " * 255, "1 " + "0 " * 257, "1 " + "0 " * 255 + "x", "1 " + "0 " * 255 + "nan", "1 " + "0 " * 255 + "1.5",
    "1.5 " + "0 " * 256, "inf " + "0 " * 256, "1e300 " + "0 " * 256, "10 " + "0 " * 256,
])  # fmt: skip
def test_wrong_usps_lines(load, tmp_path: Path, line: str) -> None:
    (tmp_path / "zip").write_text("1 " + "0 " * 256 + "\n" + line + "\n")
    with refuses():
        load(["zip"], name="usps")


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [True, False])
def test_a_cut_usps_file_is_never_read_as_whole(write, load, tmp_path: Path, packed: bool) -> None:
    path = write.usps(tmp_path / ("zip.gz" if packed else "zip"), [1, 2, 3, 4, 5, 6], GREY)
    whole = path.read_bytes()
    ends = {i + 1 for i, byte in enumerate(whole) if byte == 10}
    for stop in set(np.linspace(0, len(whole) - 1, 20).astype(int)) - (set() if packed else ends):
        path.write_bytes(whole[:stop])
        with refuses():
            load([path.name], name="usps")


def test_a_bomb_is_not_unfolded(load, tmp_path: Path) -> None:
    body = struct.pack(">4I", 0x803, 1, 28, 28) + bytes(50_000_000)
    (tmp_path / "x").write_bytes(gzip.compress(body))
    (tmp_path / "y").touch()
    with refuses():
        load(["x", "y"])
