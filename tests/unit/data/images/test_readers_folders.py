"""Class folders of images, in trees and zips, and zips that would do harm."""

import stat
import struct
import zipfile
import zlib

import numpy as np
import pytest

from knot_runner.data.images import folders, load_images
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses

RANDOM = np.random.default_rng(0)
COLOR = RANDOM.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
CLASSES = ["wolf", "ape", "cow"]


@pytest.fixture
def files(write):
    """Two images of each class, the classes' order not the alphabet's."""
    return {f"train/{CLASSES[i // 2]}/{'ab'[i % 2]}.png": write.png(COLOR[i]) for i in range(6)}


@pytest.fixture
def load(image_task, tmp_path):
    def read(entry, **changes):
        local = {"format": "folders", "train": [entry], "test": []}
        changes = {"classes": CLASSES, "shape": [3, 4, 5], "holdout": 0.5} | changes
        return load_images(image_task("cifar10", local=local, **changes), tmp_path)

    return read


@pytest.mark.parametrize("entry", ["train", "set.zip/train", "deep/Set.zip/some/train", "flat.zip"])
def test_read_folders_reads_trees_and_zips(write, load, tmp_path, files, entry):
    (tmp_path / "deep").mkdir()
    write.tree(tmp_path, files | {"train/.DS_Store": b"x", "train/ape/.hidden": b"x", "train/ape/Thumbs.db": b"x"})
    others = dict.fromkeys(["train/ape/desktop.ini", "test/zebra/1.png", "readme.txt", "train/", "train/wolf/"], b"")
    write.zipped(tmp_path / "set.zip", files | others)
    write.zipped(tmp_path / "deep" / "Set.zip", {f"some/{name}": data for name, data in files.items()})
    write.zipped(tmp_path / "flat.zip", {name.removeprefix("train/"): data for name, data in files.items()})
    task = load(entry)
    pixels = np.concatenate([task.train.pixels, task.test.pixels])
    labels = np.concatenate([task.train.labels, task.test.labels])
    actual, order = (np.argsort(one.sum((1, 2, 3), dtype=int)) for one in (pixels, COLOR))
    np.testing.assert_array_equal(pixels[actual], COLOR.transpose(0, 3, 1, 2)[order])
    assert labels[actual].tolist() == [i // 2 for i in order]
    write.zipped(tmp_path / "reversed.zip", dict(reversed(files.items())))
    assert load("reversed.zip/train").digest == load("set.zip/train").digest


@pytest.mark.parametrize(("entry", "changes"), [
    ("absent", {}), ("train", {"classes": ["wolf", "apes"]}), ("train", {"classes": [*CLASSES, "yak"]}),
    ("train", {"shape": [2, 4, 5], "mean": [0, 0], "std": [1, 1]}),
])  # fmt: skip
def test_read_folders_refuses_trees(write, load, tmp_path, files, entry, changes):
    write.tree(tmp_path, files)
    with refuses():
        load(entry, **changes)


@pytest.mark.parametrize("name", ["text.txt", "z.png", "z.jpg", "x.png", "w.png"])
def test_read_folders_refuses_files(write, load, tmp_path, files, name):
    contents = {
        "text.txt": b"x", "z.png": files["train/wolf/a.png"][:60], "z.jpg": b"GIF89a",
        "x.png": write.png(COLOR[0, :, :, 0].astype(np.uint16)), "w.png": huge_png(),
    }  # fmt: skip
    write.tree(tmp_path, files | {f"train/cow/{name}": contents[name]})
    with pytest.raises(
        UserError, match=f"{name}: (.*not an image file|.*not a readable PNG or JPEG image|.*'I;16' is not)"
    ):
        load("train")


def huge_png():
    """A PNG that claims 30,000 x 30,000 pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


FILE, LINK, DEVICE = stat.S_IFREG, stat.S_IFLNK, stat.S_IFCHR


@pytest.mark.parametrize(("name", "kind", "data"), [
    ("../evil.png", FILE, b"x"), ("train/ape/../../../evil.png", FILE, b"x"), ("/tmp/evil.png", FILE, b"x"),
    ("..\\evil.png", FILE, b"x"), ("C:/evil.png", FILE, b"x"), ("train/ape/link.png", LINK, b"/etc/passwd"),
    ("dev", DEVICE, b""), ("train/ape/bomb.png", FILE, bytes(1_000_000)),
    ("train/ape/big.png", FILE, bytes(20_000_001)), ("train/ape/setup.sh", FILE, b"x"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_read_folders_refuses_zip_attacks(load, tmp_path, files, name, kind, data):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for good, content in files.items():
            archive.writestr(good, content)
        info = zipfile.ZipInfo(name)
        info.external_attr, info.compress_type = (kind | 0o755) << 16, zipfile.ZIP_DEFLATED
        archive.writestr(info, data)
    before = sorted(tmp_path.parent.rglob("*"))
    with refuses():
        load("x.zip/train")
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_zip_names_are_checked(write, load, tmp_path, files, monkeypatch):
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        for _ in range(2):
            archive.writestr("train/ape/a.png", files["train/ape/a.png"])
    with refuses():
        load("twice.zip/train")
    write.zipped(tmp_path / "many.zip", files)
    for limit, most in (("MAX_MEMBERS", 5), ("MAX_LIST", 300)):
        monkeypatch.setattr(folders, limit, most)
        with refuses():
            load("many.zip/train")


def test_read_folders_refuses_understated_member_sizes(write, load, tmp_path, files):
    path = write.zipped(tmp_path / "x.zip", files | {"train/cow/z.png": write.png(COLOR[0])})
    content = bytearray(path.read_bytes())
    at = content.rindex(b"train/cow/z.png") - 46 + 24  # its size in the central directory
    content[at : at + 4] = struct.pack("<I", 10)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.zip"):
        load("x.zip/train")


def test_read_folders_notices_flipped_bits(write, load, tmp_path, files):
    """Anywhere before the archive's list of names, which has no checksum of its own (a SHA256SUMS is one)."""
    path = write.zipped(tmp_path / "x.zip", files)
    whole, right = path.read_bytes(), load("x.zip/train").digest
    for at in RANDOM.integers(0, whole.index(b"PK\x01\x02") * 8, 40):
        changed = bytearray(whole)
        changed[at // 8] ^= 1 << at % 8
        path.write_bytes(changed)
        try:
            assert load("x.zip/train").digest == right
        except UserError as problem:
            assert "\n" not in str(problem)
