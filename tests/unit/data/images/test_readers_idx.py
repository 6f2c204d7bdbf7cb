"""idx files and USPS text."""

import gzip
import struct

import numpy as np
import pytest

from knot_runner.data.images import load_images
from tests import image_files
from tests.golden.messages import refuses
from tests.image_files import image_settings

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 10
HEAD, NONE = struct.pack(">4I", 0x803, 12, 28, 28), struct.pack(">4I", 0x803, 2**31, 2**31, 2**31)


@pytest.fixture
def load(tmp_path):
    def read(train, test=None, name="mnist", **changes):
        return load_images(image_settings(name, local={"train": train, "test": test or []}, **changes), tmp_path)

    return read


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_read_idx_joins_pairs_of_files(load, tmp_path, suffix):
    names = [f"{part}-{kind}{suffix}" for part in ("a", "b", "c") for kind in ("images", "labels")]
    for i, part in enumerate((slice(0, 5), slice(5, 9), slice(9, 12))):
        image_files.idx(tmp_path / names[2 * i], PIXELS[part])
        image_files.idx(tmp_path / names[2 * i + 1], LABELS[part])
    task = load(names[:4], names[4:])
    np.testing.assert_array_equal(task.train.pixels[:, 0], PIXELS[:9])
    np.testing.assert_array_equal(task.test.labels, LABELS[9:])
    assert task.train.users is None and task.train.pixels.dtype == np.uint8
    assert all("the training images cover" in note for note in task.notes)


@pytest.mark.parametrize(("images", "labels", "entries", "changes"), [
    (PIXELS, LABELS[:-1], "xy", {}), (PIXELS, PIXELS, "xy", {}), (PIXELS, LABELS + np.uint8(2), "xy", {}),
    (PIXELS, LABELS, "xy", {"shape": [1, 16, 16]}), (NONE, LABELS, "xy", {}),
    (HEAD + PIXELS.tobytes() + b"1", LABELS, "xy", {}), (b"", LABELS, "xy", {}), (PIXELS, LABELS, "xyx", {}),
    (PIXELS[:0], LABELS[:0], "xy", {}), (gzip.compress(HEAD + bytes(50_000_000)), LABELS, "xy", {}),
], ids=["fewer labels", "no labels", "label 11", "shape", "huge", "longer", "empty", "odd", "none", "gz"])  # fmt: skip
def test_read_idx_refuses(load, tmp_path, images, labels, entries, changes):
    for name, content in (("x", images), ("y", labels)):
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        else:
            image_files.idx(tmp_path / name, content)
    with refuses():
        load(list(entries), **changes)


@pytest.mark.parametrize("name", ["zip.train", "zip.train.gz"])
def test_read_usps_scales_gray_levels(load, tmp_path, name):
    gray = np.linspace(-1, 1, 256)[None].repeat(6, 0)
    image_files.usps(tmp_path / name, [6, 5, 4, 7, 3, 6], gray)
    (tmp_path / "zip.test").write_text("9.0000 " + "-1.0000 " * 256 + "\n")
    task = load([name], ["zip.test"], "usps")
    assert task.train.labels.tolist() == [6, 5, 4, 7, 3, 6] and task.test.labels.tolist() == [9]
    assert task.train.pixels.dtype == np.float32
    np.testing.assert_allclose(task.train.pixels.reshape(6, -1), (gray + 1) / 2, atol=6e-4)
    assert task.train.pixels.min() == 0 and task.train.pixels.max() == 1 and task.shape == (1, 16, 16)


@pytest.mark.parametrize("line", [
    "1 " + "0 " * 255, "1 " + "0 " * 257, "1 " + "0 " * 255 + "x", "1 " + "0 " * 255 + "nan", "1 " + "0 " * 255 + "1.5",
    "1.5 " + "0 " * 256, "inf " + "0 " * 256, "1e300 " + "0 " * 256, "10 " + "0 " * 256,
])  # fmt: skip
def test_read_usps_refuses_lines(load, tmp_path, line):
    (tmp_path / "zip").write_text("1 " + "0 " * 256 + "\n" + line + "\n")
    with refuses():
        load(["zip"], name="usps")
