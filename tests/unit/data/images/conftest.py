"""Small image files in every layout that is read, and the settings of a task of them."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from knot_runner.config.settings import ImageTaskSettings, build
from knot_runner.data.images import ImageTask, load_images
from tests.unit.data.images.presets import task_config


def write_idx(path: Path, array: np.ndarray) -> Path:
    """``array`` (uint8) as idx, gzip where the name says so."""
    body = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(body, mtime=0) if path.suffix == ".gz" else body)
    return path


def write_leaf(path: Path, writers: dict[str, tuple[Any, Any]], **changes: Any) -> Path:
    """One LEAF json of writer -> (x, y)."""
    content = {
        "users": list(writers),
        "num_samples": [len(y) for _, y in writers.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in writers.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | changes))
    return path


def write_usps(path: Path, labels: list[int], grey: np.ndarray) -> Path:
    """``grey`` [N, 256] in -1..1, to three places as the official files have it."""
    lines = [f"{y} {' '.join(f'{v:.3g}' for v in row)} \n" for y, row in zip(labels, grey, strict=True)]
    body = "".join(lines).encode()
    path.write_bytes(gzip.compress(body, mtime=0) if path.suffix == ".gz" else body)
    return path


def png(pixels: np.ndarray, mode: str | None = None) -> bytes:
    """uint8 [H, W] or [H, W, 3] as PNG."""
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, "PNG")
    return file.getvalue()


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_tree(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def binary_batch(pixels: np.ndarray, *labels: np.ndarray) -> bytes:
    """CIFAR records: label bytes, then the planes of ``pixels`` [N, 3, 32, 32]."""
    return np.concatenate([*(y[:, None] for y in labels), pixels.reshape(len(pixels), -1)], 1).astype("u1").tobytes()


def python2_batch(pixels: np.ndarray, labels: list[int], key: str = "labels") -> bytes:
    """A batch, opcode by opcode as Python 2's cPickle wrote the official files (protocol 2, dtype code in bytes)."""
    data = pixels.tobytes()
    return b"".join([
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03",
        b"U" + bytes([len(key)]) + key.encode() + b"q\x04]q\x05(" + b"".join(b"K" + bytes([y]) for y in labels) + b"e",
        b"U\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\t",
        b"(K\x01" + b"M" + struct.pack("<H", len(pixels)) + b"M\x00\x0c\x86",
        b"cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
        b"\x89T" + struct.pack("<I", len(data)) + data + b"tb",
        b"U\tfilenamesq\x0c]q\r(" + b"".join(b"U\x05a.png" for _ in labels) + b"eu.",
    ])  # fmt: skip


@pytest.fixture
def write() -> SimpleNamespace:
    """The writers of this file, by short names."""
    return SimpleNamespace(
        idx=write_idx, leaf=write_leaf, usps=write_usps, png=png, zip=write_zip, tree=write_tree, tar=write_tar,
        binary=binary_batch, python2=python2_batch,
    )  # fmt: skip


@pytest.fixture
def image_task() -> Callable[..., ImageTaskSettings]:
    """Settings of a file in conf/task, with top-level changes; ``local`` is merged into what is there."""

    def load(name: str = "mnist", **changes: Any) -> ImageTaskSettings:
        config = task_config(name)
        local = config["local"] | changes.pop("local", {})
        return build(ImageTaskSettings, config | {"source": "local"} | changes | {"local": local}, "task")

    return load


@pytest.fixture
def load_cifar(image_task: Callable[..., ImageTaskSettings], tmp_path: Path) -> Callable[..., ImageTask]:
    """Reads an entry of ``tmp_path`` as a release of CIFAR."""

    def read(entry: str, name: str = "cifar10", **changes: Any) -> ImageTask:
        local = {"format": "cifar", "train": [entry], "test": [entry]}
        return load_images(image_task(name, local=local, **changes), tmp_path)

    return read
