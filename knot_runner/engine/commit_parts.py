"""Tensors that commits need not write again: unchanged ones are kept in parts, files shared between commits.

A federated state may hold a tensor for every client (a control variate, a head), of which a round changes those of its
participants. A tensor that is the same object, unchanged in place, as in the commit before is settled. Settled tensors
go into a part as soon as they are :data:`PART_BYTES` together, so that a tensor is written at most twice, and small
states have no parts. A part is dropped when less than half of its bytes are in use; its remaining tensors settle anew.
From then on a settled tensor is the part's own memory-mapped content: memory does not grow with the clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.records import PART_FILES
from knot_runner.util.errors import UserError
from knot_runner.util.files import digest_of_parts, sha256, write_atomic

#: Settled tensors become a part when they are so many bytes together.
PART_BYTES = 1 << 23


class DoesNotMatch(Exception):
    """A file differs from its commit."""


@dataclass(frozen=True)
class _Seen:
    """A tensor as a commit saw it: the object, and how often it had been changed in place."""

    tensor: Tensor
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Seen:
        return cls(tensor, -1 if tensor.is_inference() else tensor._version)

    def is_now(self, tensor: Tensor | None) -> bool:
        """Returns whether ``tensor`` is the same object, unchanged; tensors of inference mode have no version
        counter."""
        return tensor is self.tensor and not tensor.is_inference() and tensor._version == self.version


@dataclass(frozen=True)
class _Part:
    """A part's digest and size, and its tensors that are still in the last state."""

    sha256: str
    size: int
    held: dict[str, _Seen]

    @property
    def half_dead(self) -> bool:
        return 2 * sum(seen.tensor.nbytes for seen in self.held.values()) < self.size


class StateParts:
    """The parts of the commits in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: dict[str, _Part] = {}  # by file
        self._last: dict[str, _Seen] = {}  # tensors in the last commit's own file
        self._number = 0

    def settle(self, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns the tensors of the state that the next commit has to write, and those just moved into a part,
        memory-mapped, by name. Writes at most one part, which no commit names yet."""
        self._forget_changed(tensors)
        settled = {name: tensors[name] for name, seen in self._last.items() if seen.is_now(tensors.get(name))}
        given_up = [part for part in self._parts.values() if part.half_dead]
        settled |= {name: tensors[name] for part in given_up for name in part.held}
        moved: dict[str, Tensor] = {}
        if sum(tensor.nbytes for tensor in settled.values()) >= PART_BYTES:
            moved = self._write(settled)  # tensors of a dropped part become new objects
        kept = {name for part in self._parts.values() for name in part.held}
        rest = {name: tensor for name, tensor in tensors.items() if name not in kept}
        self._last = {name: _Seen.of(tensor) for name, tensor in rest.items()}
        return rest, moved

    def record(self) -> list[dict[str, Any]]:
        """Returns the parts' entry of a commit's record: file, digest and names in use of each."""
        return [{"file": file, "sha256": part.sha256, "names": sorted(part.held)} for file, part in self._parts.items()]

    def load(self, record: list[dict[str, Any]]) -> dict[str, Tensor]:
        """The tensors of the parts that a commit's ``record`` names, mapped. Raises :class:`DoesNotMatch`."""
        self._parts, self._last, found = {}, {}, {}
        for entry in record:
            content = self._read(entry["file"], entry["sha256"])
            own = {name: content[name] for name in entry["names"]}
            held = {name: _Seen.of(tensor) for name, tensor in own.items()}
            size = sum(tensor.nbytes for tensor in content.values())
            self._parts[entry["file"]] = _Part(entry["sha256"], size, held)
            found |= own
        return found

    def tidy(self) -> None:
        """Deletes parts that the last commit does not name (dropped ones, or from before a kill)."""
        for path in self._folder.glob(PART_FILES):
            if path.name not in self._parts:
                path.unlink(missing_ok=True)

    def _forget_changed(self, tensors: dict[str, Tensor]) -> None:
        parts, self._parts = self._parts, {}
        for file, part in parts.items():
            held = {name: seen for name, seen in part.held.items() if seen.is_now(tensors.get(name))}
            if held:
                self._parts[file] = _Part(part.sha256, part.size, held)

    def _write(self, settled: dict[str, Tensor]) -> dict[str, Tensor]:
        content = tensor_parts(settled)
        while (path := self._folder / PART_FILES.replace("*", str(self._number))).exists():
            self._number += 1
        write_atomic(path, content)
        mapped = load_file(path)
        held = {name: _Seen.of(tensor) for name, tensor in mapped.items()}
        size = sum(tensor.nbytes for tensor in mapped.values())
        self._parts[path.name] = _Part(digest_of_parts(content), size, held)
        return mapped

    def _read(self, name: str, digest: str) -> dict[str, Tensor]:
        path = self._folder / name
        try:
            if sha256(path) != digest:
                raise DoesNotMatch(f"{path}: does not match its digest in the commit's record")
            return load_file(path)
        except FileNotFoundError:
            raise DoesNotMatch(f"{path}: is gone") from None
        except OSError as problem:
            raise UserError(f"{path}: cannot be read: {problem.strerror or problem}") from None
