"""Tensors as a safetensors file, written directly from the tensors' memory: the library's ``save`` copies all of them
twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from knot_runner.util.shared_memory import map_file

#: What the format calls each type, in the order in which the library lays tensors out: no file changed when its own
#: ``save`` was left.
_NAMES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_ORDER = list(_NAMES)
#: Of those that numpy has.
_TYPES = {"I64": "<i8", "F64": "<f8", "F32": "<f4", "I32": "<i4", "F16": "<f2", "I16": "<i2", "I8": "i1", "U8": "u1"}
#: A header ends at a multiple of so many bytes.
_ALIGNED = 8
#: Parts below so many bytes are joined: few calls to the disk for small models, no copy of large ones.
_JOINED = 1 << 20


def tensor_parts(tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """The parts of the file of ``tensors``, in their order: byte for byte what ``safetensors.torch.save`` makes.

    Large parts share the memory of tensors that lie contiguous on the CPU: write them before those change. Raises
    TypeError for a type that the table above lacks.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise TypeError(f"{name}: tensors of {tensor.dtype} cannot be kept")
    names = sorted(tensors, key=lambda name: (_ORDER.index(tensors[name].dtype), name.encode()))
    flat = {name: _bytes_of(tensors[name]) for name in names}
    header, end = {}, 0
    for name, content in flat.items():
        start, end = end, end + len(content)
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _NAMES[tensors[name].dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return _joined([len(text).to_bytes(8, "little") + text, *flat.values()])


def mapped_arrays(path: Path) -> dict[str, np.ndarray]:
    """The tensors of the file ``path`` as arrays on its mapped pages (:func:`map_file`); what is written to them stays
    in this process. For files that have been compared with their digest. Raises SafetensorError, OSError."""
    with safe_open(path, "numpy"):  # sees that the header is sound, and that no two tensors overlap
        pass
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    memory = map_file(path)
    return {
        name: np.ndarray(entry["shape"], _TYPES[entry["dtype"]], memory.map, 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()).cast("B")


def _joined(parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    joined: list[bytes | memoryview] = []
    small = bytearray()
    for part in parts:
        if len(part) < _JOINED:
            small += part
            continue
        joined += [bytes(small), part]
        small.clear()
    return [part for part in [*joined, bytes(small)] if len(part)]
