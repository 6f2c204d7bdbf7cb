"""Small image files in every layout that is read, and the settings of a task of them."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from PIL import Image

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.config.strict import build

PRESETS = Path(__file__).resolve().parents[1] / "conf" / "task"


def task_config(name: str) -> dict[str, Any]:
    """conf/task/NAME.yaml, with what it takes from conf/base/images and without what it chooses of other groups."""
    own = OmegaConf.load(PRESETS / f"{name}.yaml")
    parts = [str(entry).removesuffix("@_here_") for entry in own.pop("defaults") if str(entry).endswith("@_here_")]
    bases = [OmegaConf.load(PRESETS.parent / f"{part.lstrip('/')}.yaml") for part in parts]
    return OmegaConf.to_container(OmegaConf.merge(*bases, own), resolve=True)


def image_settings(name: str = "mnist", **changes: Any) -> ImageTaskSettings:
    """Settings of a file in conf/task, with top-level changes; ``local`` is merged into what is there."""
    config = task_config(name)
    local = config["local"] | changes.pop("local", {})
    return build(ImageTaskSettings, config | {"source": "local"} | changes | {"local": local}, "task")


def idx(path: Path, array: np.ndarray) -> Path:
    """``array`` (uint8) as idx, gzip where the name says so."""
    body = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(body, mtime=0) if path.suffix == ".gz" else body)
    return path


def leaf(path: Path, writers: dict[str, tuple[Any, Any]], **changes: Any) -> Path:
    """One LEAF json of writer -> (x, y)."""
    content = {
        "users": list(writers),
        "num_samples": [len(y) for _, y in writers.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in writers.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | changes))
    return path


def usps(path: Path, labels: list[int], gray: np.ndarray) -> Path:
    """``gray`` [N, 256] in -1..1, to three places as the official files have it."""
    lines = [f"{y} {' '.join(f'{v:.3g}' for v in row)} \n" for y, row in zip(labels, gray, strict=True)]
    body = "".join(lines).encode()
    path.write_bytes(gzip.compress(body, mtime=0) if path.suffix == ".gz" else body)
    return path


def png(pixels: np.ndarray, mode: str | None = None) -> bytes:
    """uint8 [H, W] or [H, W, 3] as PNG."""
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, "PNG")
    return file.getvalue()


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tree(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def binary(pixels: np.ndarray, *labels: np.ndarray) -> bytes:
    """CIFAR records: label bytes, then the planes of ``pixels`` [N, 3, 32, 32]."""
    return np.concatenate([*(y[:, None] for y in labels), pixels.reshape(len(pixels), -1)], 1).astype("u1").tobytes()


def python2(pixels: np.ndarray, labels: list[int], key: str = "labels") -> bytes:
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
