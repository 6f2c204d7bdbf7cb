"""Tensors in files: in one safetensors file, or in several files that commits share ("parts").

A file is written directly from the tensors' memory, whereas the library's ``save`` would copy all tensors twice.

A federated state may hold a tensor for every client (a control variate, a head), but a round changes only the tensors
of its participants. A tensor is settled if it is the same object as in the previous commit, and has not been changed in
place. As soon as the total size of the settled tensors reaches :data:`PART_BYTES`, they are written to a part, a file
that later commits refer to. An unchanged tensor is therefore written at most twice, and small states have no parts.
When less than half of the bytes of a part are in use, the part is dropped and its remaining tensors are written to a
new part. Tensors in a part are memory-mapped, so that memory use does not grow with the number of clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from knot_runner.records import PART_FILES
from knot_runner.util.files import Facts, digest_of_parts, sha256, write_atomic
from knot_runner.util.shared_memory import map_file

#: The content of a file as byte buffers, in the order in which they are written.
FileParts = list[bytes | memoryview]
#: Tensors by name.
Tensors = dict[str, Tensor]
#: The format's name for each dtype. The order is the library's, so that files are equal to the library's files.
_NAMES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_ORDER = list(_NAMES)
#: Name in the format -> numpy dtype. Numpy has no bfloat16, and bool tensors are not mapped.
_TYPES = {"I64": "<i8", "F64": "<f8", "F32": "<f4", "I32": "<i4", "F16": "<f2", "I16": "<i2", "I8": "i1", "U8": "u1"}
#: The header is padded to a multiple of this number of bytes.
_ALIGNED = 8
#: Settled tensors move into a part when their total size reaches this number of bytes.
PART_BYTES = 1 << 23


def tensor_parts(tensors: Mapping[str, Tensor]) -> FileParts:
    """Return the content of a safetensors file with ``tensors``, as byte buffers in the order of the file.

    The bytes are the same as those of ``safetensors.torch.save``. A buffer shares the memory of its tensor if the
    tensor is contiguous and on the CPU. Write the buffers before such a tensor changes.

    Raises:
        TypeError: A tensor has a dtype for which this module has no safetensors name.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise TypeError(f"{name}: tensors of {tensor.dtype} cannot be saved")
    names = sorted(tensors, key=lambda name: (_ORDER.index(tensors[name].dtype), name.encode()))
    contents: FileParts = []
    header = {}
    end = 0
    for name in names:
        tensor = tensors[name]
        content = _bytes_of(tensor)
        contents.append(content)
        start = end
        end = end + len(content)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return [len(text).to_bytes(8, "little") + text, *contents]


def mapped_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of the file ``path`` as arrays on memory-mapped pages (:func:`map_file`).

    Changes to the arrays are visible only in this process. The caller must have verified the file.

    Raises:
        SafetensorError: The file is damaged.
        OSError: The file cannot be read.
    """
    with safe_open(path, "numpy"):  # checks the header, and that no two tensors overlap
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


class DoesNotMatch(Exception):
    """A file does not have the digest that the commit record states."""


@dataclass(frozen=True)
class _Seen:
    """A tensor as of a commit: the object, and the number of in-place changes before the commit."""

    tensor: Tensor
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Seen:
        return cls(tensor, -1 if tensor.is_inference() else tensor._version)

    def is_now(self, tensor: Tensor | None) -> bool:
        """Return whether ``tensor`` is the same object, unchanged.

        For tensors created in inference mode, the result is False, because they have no version counter.
        """
        return tensor is self.tensor and not tensor.is_inference() and tensor._version == self.version


@dataclass(frozen=True)
class _Part:
    """The digest and size of a part, and the part's tensors that the last state still uses."""

    sha256: str
    size: int
    held: dict[str, _Seen]

    @property
    def half_dead(self) -> bool:
        return 2 * sum(seen.tensor.nbytes for seen in self.held.values()) < self.size


class StateParts:
    """The shared parts of the commits in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: dict[str, _Part] = {}  # by file name
        self._last: dict[str, _Seen] = {}  # tensors in the state file of the last commit
        self._number = 0

    def settle(self, tensors: Tensors) -> tuple[Tensors, Tensors]:
        """If the settled tensors are large enough, move them into a part; return (tensors to write, moved tensors).

        Both are dicts by name. The first dict holds the tensors that the next commit must write to the state file. The
        tensors of the second dict are memory-mapped. A call writes at most one part, to which no commit refers yet.
        """
        self._forget_changed(tensors)
        settled = {name: tensors[name] for name, seen in self._last.items() if seen.is_now(tensors.get(name))}
        for part in self._parts.values():
            if part.half_dead:
                settled |= {name: tensors[name] for name in part.held}
        moved: Tensors = {}
        if sum(tensor.nbytes for tensor in settled.values()) >= PART_BYTES:
            moved = self._write(settled)  # returns new tensor objects, also for a dropped part's tensors
        kept = {name for part in self._parts.values() for name in part.held}
        rest = {name: tensor for name, tensor in tensors.items() if name not in kept}
        self._last = {name: _Seen.of(tensor) for name, tensor in rest.items()}
        return rest, moved

    def record(self) -> list[Facts]:
        """Return the commit record's entry for the parts: the file, digest and used tensor names of each part."""
        return [{"file": file, "sha256": part.sha256, "names": sorted(part.held)} for file, part in self._parts.items()]

    def load(self, record: list[Facts]) -> Tensors:
        """Return the memory-mapped tensors of the parts that a commit's ``record`` names.

        Raises:
            DoesNotMatch: The file of a part does not have the recorded digest.
        """
        tensors: dict[str, Tensor] = {}
        self._parts = {}
        self._last = {}
        for entry in record:
            content = self._read(entry["file"], entry["sha256"])
            tensors |= {name: content[name] for name in entry["names"]}
            self._hold(entry["file"], entry["sha256"], content, entry["names"])
        return tensors

    def tidy(self) -> None:
        """Delete parts that the last commit does not name (dropped parts, and parts of a process that was killed)."""
        for path in self._folder.glob(PART_FILES):
            if path.name not in self._parts:
                path.unlink(missing_ok=True)

    def _forget_changed(self, tensors: Tensors) -> None:
        parts = self._parts
        self._parts = {}
        for file, part in parts.items():
            held = {name: seen for name, seen in part.held.items() if seen.is_now(tensors.get(name))}
            if held:
                self._parts[file] = _Part(part.sha256, part.size, held)

    def _write(self, settled: Tensors) -> Tensors:
        content = tensor_parts(settled)
        while (path := self._folder / PART_FILES.replace("*", str(self._number))).exists():
            self._number += 1
        write_atomic(path, content)
        mapped = load_file(path)
        self._hold(path.name, digest_of_parts(content), mapped, mapped)
        return mapped

    def _hold(self, file: str, digest: str, content: Tensors, names: Iterable[str]) -> None:
        """Register the part ``file``, which holds the values ``content``; its tensors ``names`` belong to the state."""
        held = {name: _Seen.of(content[name]) for name in names}
        self._parts[file] = _Part(digest, sum(tensor.nbytes for tensor in content.values()), held)

    def _read(self, name: str, digest: str) -> Tensors:
        path = self._folder / name
        try:
            if sha256(path) != digest:
                raise DoesNotMatch(f"{path}: does not match its checksum in the commit")
            return load_file(path)
        except FileNotFoundError:
            raise DoesNotMatch(f"{path}: no longer exists") from None
