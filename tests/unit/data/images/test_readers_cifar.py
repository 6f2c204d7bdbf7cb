"""CIFAR batches: binary and python, folder and tar, and archives that would do harm."""

import gzip
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from knot_runner.data.images import checks
from tests.golden.messages import refuses

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (10, 3, 32, 32), dtype=np.uint8)
LABELS = RANDOM.integers(0, 10, 10)
TEN = [f"data_batch_{i}" for i in range(1, 6)]


def binary_files(write):
    """The five train batches (two images each) and the test batch of CIFAR-10's binary release."""
    parts = [write.binary(PIXELS[at : at + 2], LABELS[at : at + 2]) for at in (0, 2, 4, 6, 8, 0)]
    return {f"cifar-10-batches-bin/{name}.bin": part for name, part in zip([*TEN, "test_batch"], parts, strict=True)}


def python_files(write):
    flat, labels = PIXELS.reshape(10, -1), LABELS.tolist()
    parts = [write.python2(flat[at : at + 2], labels[at : at + 2]) for at in (0, 2, 4, 6, 8, 0)]
    return {f"cifar-10-batches-py/{name}": part for name, part in zip([*TEN, "test_batch"], parts, strict=True)}


@pytest.mark.parametrize("kind", ["binary", "python"])
@pytest.mark.parametrize("packed", [True, False])
def test_read_cifar_reads_cifar10(write, load_cifar, tmp_path, kind, packed):
    files = binary_files(write) if kind == "binary" else python_files(write)
    write.tar(tmp_path / "release.tar.gz", files | {"cifar-10-batches-py/readme.html": b"x"})
    write.tree(tmp_path, files)
    task = load_cifar("release.tar.gz" if packed else next(iter(files)).partition("/")[0])
    np.testing.assert_array_equal(task.train.pixels, PIXELS)
    np.testing.assert_array_equal(task.train.labels, LABELS)
    np.testing.assert_array_equal(task.test.pixels, PIXELS[:2])
    assert task.notes[:2] == [
        "cifar10: 10 train images, but the official release has 50000",
        "cifar10: 2 test images, but the official release has 10000",
    ]


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_read_cifar_reads_fine_labels_of_cifar100(write, load_cifar, tmp_path, kind):
    fine, coarse = np.arange(90, 100), np.arange(10)
    if kind == "binary":
        data, names = write.binary(PIXELS, coarse, fine), ("train.bin", "test.bin")
    else:
        batch = {b"data": PIXELS.reshape(10, -1), b"coarse_labels": coarse.tolist(), b"fine_labels": fine.tolist()}
        data, names = pickle.dumps(batch, 4), ("train", "test")
    write.tree(tmp_path / "c", dict.fromkeys(names, data))
    task = load_cifar("c", "cifar100")
    assert task.train.labels.tolist() == fine.tolist()
    np.testing.assert_array_equal(task.train.pixels, PIXELS)


def test_read_cifar_prefers_binary_batches(write, load_cifar, tmp_path):
    files = binary_files(write) | dict.fromkeys(python_files(write), b"cos\nsystem\n.")
    write.tree(tmp_path / "both", {name.rpartition("/")[2]: data for name, data in files.items()})
    np.testing.assert_array_equal(load_cifar("both").train.labels, LABELS)


def test_read_cifar_refuses_gadgets(write, load_cifar, tmp_path):
    class Gadget:
        def __reduce__(self):
            return os.system, (f"touch '{tmp_path / 'ran'}'",)

    files = python_files(write) | {"cifar-10-batches-py/data_batch_3": pickle.dumps(Gadget(), 2)}
    for entry in (write.tree(tmp_path, files) / "cifar-10-batches-py", write.tar(tmp_path / "x.tar.gz", files)):
        with refuses():
            load_cifar(entry.name)
    assert not (tmp_path / "ran").exists()


TWO = PIXELS[:2].reshape(2, -1)
BATCHES = {
    "a list": [1], "no data": {"labels": [1, 2]}, "narrow data": {"data": TWO[:, :5].copy(), "labels": [1, 2]},
    "no labels": {"data": TWO}, "a label short": {"data": TWO, "labels": [1]},
    "a text label": {"data": TWO, "labels": [1, "C"]}, "a label too high": {"data": TWO, "labels": [1, 10]},
    "a negative label": {"data": TWO, "labels": [-1, 1]}, "floats": {"data": TWO / 255, "labels": [1, 2]},
    "Fortran order": {"data": np.asfortranarray(TWO), "labels": [1, 2]},
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_read_cifar_refuses_python_batches(write, load_cifar, tmp_path, name):
    batch = pickle.dumps(BATCHES[name], 4)
    write.tree(tmp_path, python_files(write) | {"cifar-10-batches-py/data_batch_2": batch})
    with refuses():
        load_cifar("cifar-10-batches-py")


def test_read_cifar_refuses_binary_files_and_entries(write, load_cifar, tmp_path):
    file = write.tree(tmp_path, binary_files(write)) / "cifar-10-batches-bin" / "data_batch_4.bin"
    whole = file.read_bytes()
    for content in (whole[:-1], b"", b"\x0a" + whole[1:]):
        file.write_bytes(content)
        with refuses():
            load_cifar("cifar-10-batches-bin")
    file.write_bytes(whole)
    with refuses():
        load_cifar("cifar-10-batches-bin", shape=[1, 32, 32], mean=[0.5], std=[0.5])
    file.unlink()
    (tmp_path / "empty").mkdir()
    write.tar(tmp_path / "other.tar.gz", {"photos/a.png": b"x"})
    files = binary_files(write)
    files.pop("cifar-10-batches-bin/data_batch_5.bin")
    write.tar(tmp_path / "less.tar.gz", files)
    for entry in ("cifar-10-batches-bin", "empty", "absent", "other.tar.gz", "less.tar.gz"):
        with refuses():
            load_cifar(entry)


def member(name, kind=tarfile.REGTYPE, link="", size=0):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def members(files):
    return {member(name, size=len(content)): content for name, content in files.items()}


def write_tar(target, contents):
    where = {"name": target} if isinstance(target, Path) else {"fileobj": target}
    with tarfile.open(**where, mode="w") as tar:
        for info, content in contents.items():
            tar.addfile(info, io.BytesIO(content))


ATTACKS = {
    "climbs out": member("../evil"),
    "climbs out further in": member("cifar-10-batches-bin/../../evil"),
    "absolute": member("/tmp/evil"),
    "backslashes": member("..\\evil"),
    "symbolic link": member("cifar-10-batches-bin/data_batch_1.bin", tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": member("cifar-10-batches-bin/link", tarfile.LNKTYPE, "cifar-10-batches-bin/data_batch_1.bin"),
    "device": member("null", tarfile.CHRTYPE),
    "fifo": member("pipe", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_read_cifar_refuses_tar_attacks(write, load_cifar, tmp_path, name):
    write_tar(tmp_path / "x.tar", {ATTACKS[name]: b""} | members(binary_files(write)))
    before = sorted(tmp_path.parent.rglob("*"))
    with refuses():
        load_cifar("x.tar")
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_read_cifar_refuses_tar_bombs(write, load_cifar, tmp_path, monkeypatch):
    name = "cifar-10-batches-bin/data_batch_1.bin"
    block = member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=5_000_000).tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "name.tar.gz").write_bytes(gzip.compress(block + bytes(5_000_000)))  # a name of 5 MB
    write.tar(tmp_path / "bomb.tar.gz", {"cifar-10-batches-bin/other": bytes(5_000_000), name: b"x"})
    write.tar(tmp_path / "many.tar.gz", {f"cifar-10-batches-bin/{i}": b"" for i in range(1001)})
    write.tar(tmp_path / "large.tar.gz", {name: bytes(20_000)})
    write_tar(tmp_path / "twice.tar", {member(name, size=3): b"abc", member(name, size=3): b"abc"})
    monkeypatch.setattr(checks, "MAX_UNFOLDED", 1_000_000)
    monkeypatch.setattr("knot_runner.data.images.cifar.MAX_BYTES", 10_000)
    for entry in ("bomb.tar.gz", "name.tar.gz", "many.tar.gz", "large.tar.gz", "twice.tar"):
        with refuses():
            load_cifar(entry)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_cifar_header_size_is_limited(write, load_cifar, tmp_path, monkeypatch, kind):
    """One is read; more than ``MAX_HEADER`` bytes are refused by its size, and need not even be there."""
    whole = binary_files(write)
    content = b"13 comment=x\n" if kind in (tarfile.XHDTYPE, tarfile.XGLTYPE) else f"{next(iter(whole))}\0".encode()
    files = io.BytesIO()
    write_tar(files, members(whole))
    before = member("long", kind, size=len(content)).tobuf() + content.ljust(512, b"\0")
    (tmp_path / "x.tar").write_bytes(before + files.getvalue())
    monkeypatch.setattr(checks, "MAX_HEADER", len(content))
    np.testing.assert_array_equal(load_cifar("x.tar").train.labels, LABELS)
    (tmp_path / "y.tar").write_bytes(member("long", kind, size=len(content) + 1).tobuf())
    with refuses():
        load_cifar("y.tar")
