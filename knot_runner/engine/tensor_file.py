"""Files of tensors: safetensors files, and parts. A part is a file of tensors that do not change between commits.

The state of a federated run may hold one tensor for every client, such as a control variate or a head. A round changes
only the tensors of its participants, and a commit should not write all other tensors again. A tensor is called settled
if it is the same object as in the previous commit and has not been changed in place. When the settled tensors reach a
total size of :data:`PART_BYTES`, they are written to a new part. Later commits refer to this part as long as its
tensors do not change.

If less than half of the bytes of a part are in use, the tensors in use move to the next new part, and the old part is
deleted. Tensors in a part are memory-mapped.
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
    """Return the content of a safetensors file with ``tensors``, as a list of byte buffers in file order.

    The bytes are the same as those of ``safetensors.torch.save``. Do not change the tensors before the buffers are
    written, because a buffer may be a view of a tensor's memory.

    Raises:
        TypeError: A tensor has a dtype that this module cannot save.
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
        # The file is written from the memory of the tensors. The library's ``save`` would copy all tensors twice.
        content = _bytes_of(tensor)
        contents.append(content)
        start = end
        end = end + len(content)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return [len(text).to_bytes(8, "little") + text, *contents]


def mapped_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of the safetensors file ``path`` by name, as memory-mapped arrays (:func:`map_file`).

    Changes to the arrays are visible only in this process. Only the header of the file is checked. Verify the
    checksum of the file before the call.

    Raises:
        SafetensorError: The header is damaged.
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
    """Error: a file of a commit is missing, or does not match the commit record."""


@dataclass(frozen=True)
class _Seen:
    """A tensor at the time of a commit: the object, and the number of earlier in-place changes (``version``)."""

    tensor: Tensor
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Seen:
        return cls(tensor, -1 if tensor.is_inference() else tensor._version)

    def is_now(self, tensor: Tensor | None) -> bool:
        """Return whether ``tensor`` is the same object and has not been changed since the commit.

        For a tensor that was created in inference mode, the result is False, because it has no version counter.
        """
        return tensor is self.tensor and not tensor.is_inference() and tensor._version == self.version


@dataclass(frozen=True)
class _Part:
    """The digest and size of a part, and the part's tensors that the last state still uses."""

    sha256: str
    size: int
    held: dict[str, _Seen]


class StateParts:
    """The parts of a state, stored in ``folder``. A part is a file of tensors that do not change between commits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: dict[str, _Part] = {}  # by file name
        self._last: dict[str, _Seen] = {}  # tensors in the state file of the last commit
        self._number = 0

    def settle(self, tensors: Tensors) -> tuple[Tensors, Tensors]:
        """Write a new part with the tensors that have not changed since the previous commit.

        If their total size is less than :data:`PART_BYTES`, no part is written.

        Returns:
            Two dicts of tensors by name. The first dict holds the tensors that the next commit must write to its state
            file. The second dict holds memory-mapped copies of the tensors in the new part.
        """
        self._forget_changed(tensors)
        settled = {name: tensors[name] for name, seen in self._last.items() if seen.is_now(tensors.get(name))}
        for part in self._parts.values():
            if 2 * sum(seen.tensor.nbytes for seen in part.held.values()) < part.size:  # mostly unused
                settled |= {name: tensors[name] for name in part.held}
        moved: Tensors = {}
        if sum(tensor.nbytes for tensor in settled.values()) >= PART_BYTES:
            moved = self._write(settled)  # returns new tensor objects, also for a dropped part's tensors
        kept = {name for part in self._parts.values() for name in part.held}
        rest = {name: tensor for name, tensor in tensors.items() if name not in kept}
        self._last = {name: _Seen.of(tensor) for name, tensor in rest.items()}
        return rest, moved

    def record(self) -> list[Facts]:
        """Return each part's file name, its digest, and the names of the tensors that the state reads from the part."""
        return [{"file": file, "sha256": part.sha256, "names": sorted(part.held)} for file, part in self._parts.items()]

    def load(self, record: list[Facts]) -> Tensors:
        """Return the memory-mapped tensors that ``record`` lists. ``record``: a result of :meth:`record`.

        Raises:
            DoesNotMatch: The file of a part is missing or does not have the recorded digest.
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
        """Delete every part to which the last commit does not refer."""
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
        # With memory-mapped tensors, memory use does not grow with the number of clients.
        mapped = load_file(path)
        self._hold(path.name, digest_of_parts(content), mapped, mapped)
        return mapped

    def _hold(self, file: str, digest: str, content: Tensors, names: Iterable[str]) -> None:
        """Register the part ``file`` with the tensors ``content``, of which the state uses those called ``names``."""
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
