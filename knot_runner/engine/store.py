"""The store of artifacts, which are the results of finished stages.

The key of an artifact is a digest of all inputs of its stage. If the inputs of a stage are equal in several runs, these
runs use the same artifact. The folder ``<out>/artifacts/<stage>/<key>/`` contains ``tensors.safetensors``, further
files of the stage, and ``info.json``. The info file is written last and contains digests of itself and of the other
files. A stage whose folder has no info file is unfinished.

If a file does not match its digest, the artifact counts as missing. Its files are moved to another folder when the
stage is computed again. A process holds a lock while computing an artifact, so that no other process computes the same
artifact.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knot_runner import provenance
from knot_runner.engine.commit import load_bytes
from knot_runner.engine.tensor_file import Tensors, tensor_parts
from knot_runner.records import clear_states, lock_of_stage, read_sealed, sealed_problem, write_sealed
from knot_runner.util.errors import UserError
from knot_runner.util.files import (
    Facts,
    digest_of_parts,
    locked,
    read_json,
    removal,
    remove_temporaries,
    set_aside_files,
    sha256,
    write_atomic,
)

INFO = "info.json"
TENSORS = "tensors.safetensors"
#: For files that this process has verified, (path, digest) -> inode, size and times of the file at that moment.
_FOUND: dict[tuple[Path, str], tuple[int, ...]] = {}


@dataclass(frozen=True)
class Artifact:
    """The result of a finished stage.

    Attributes:
        stage: The name of the stage.
        key: The digest of all inputs of the stage.
        folder: The folder that contains the files of the artifact.
        info: The digests of the files, and facts about the stage, such as its duration and scores.
    """

    stage: str
    key: str
    folder: Path
    info: Facts

    @property
    def name(self) -> str:
        """Return ``stage/key``, the name by which a method's state refers to the artifact."""
        return f"{self.stage}/{self.key}"

    def tensors(self) -> Tensors:
        """Return the artifact's tensors.

        Raises:
            UserError: The tensor file is missing or does not have the recorded digest.
        """
        return load_bytes(self.read(TENSORS))

    def read(self, name: str) -> bytes:
        """Return the content of the artifact's file ``name``.

        Raises:
            UserError: The file is missing or does not have the recorded digest.
        """
        path = self.folder / name
        content = b""
        if path.is_file():
            content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.info["files"].get(name):
            raise UserError("does not match its checksum. Repeat the command to recreate the file", path)
        return content


@dataclass(frozen=True)
class Store:
    """The store of all artifacts below the folder ``root``."""

    root: Path
    #: if set, artifacts from other code, another torch version or a changed plug-in count as missing
    code: str | None = None
    #: the user's plug-ins, recorded in each artifact's provenance
    plugins: tuple[str, ...] = ()

    def folder(self, stage: str, key: str) -> Path:
        """Return the folder of the artifact ``key`` of ``stage``. The folder is not created."""
        return self.root / stage / key

    def find(self, stage: str, key: str) -> Artifact | None:
        """Return the artifact ``key`` of ``stage``; None if it is missing.

        An unfinished or damaged artifact counts as missing. If ``code`` is set, an artifact that another version of the
        code computed also counts as missing.
        """
        folder = self.folder(stage, key)
        info = read_sealed(folder / INFO)
        if info is None or _damage(folder, info) or (self.code and provenance.code_changes(info)):
            return None
        return Artifact(stage, key, folder, info)

    def get(self, stage: str, key: str) -> Artifact:
        """Return the artifact ``key`` of ``stage``, which must exist.

        Raises:
            UserError: :meth:`find` returns None.
        """
        artifact = self.find(stage, key)
        if artifact is None:
            raise UserError("the result was deleted. Repeat the command to recreate it", self.folder(stage, key))
        return artifact

    def put(
        self, stage: str, key: str, tensors: Tensors, info: Facts, more: Mapping[str, str] | None = None
    ) -> Artifact:
        """Store ``tensors`` and the facts ``info`` as a finished artifact.

        Commits in its folder, and temporary files that a killed process left there, are deleted.

        ``more``: a dict from file name to text, for other files of the artifact. Hold the lock of the artifact
        (:meth:`lock`) during the call.
        """
        folder = self.folder(stage, key)
        remove_temporaries(folder)
        contents = {**{name: [text.encode()] for name, text in (more or {}).items()}, TENSORS: tensor_parts(tensors)}
        for name, content in contents.items():
            write_atomic(folder / name, content)
        files = {name: digest_of_parts(content) for name, content in contents.items()}
        about = {**info, **provenance.made_by(self.plugins), "artifact": [stage, key], "files": files}
        artifact = Artifact(stage, key, folder, write_sealed(folder / INFO, about))
        with removal():
            clear_states(folder)
        return artifact

    def find_or_put(self, stage: str, key: str, make: Callable[[], tuple[Tensors, Facts]]) -> Artifact:
        """Return the artifact ``key`` of ``stage``. If it is missing, first store the result of ``make()``.

        ``make`` returns a pair: the tensors of the artifact, and a dict of facts.
        """
        with self.lock(stage, key):
            return self.find(stage, key) or self.put(stage, key, *make())

    @contextlib.contextmanager
    def lock(self, stage: str, key: str, wait: bool = True) -> Iterator[None]:
        """Context manager that holds the lock of the artifact ``key`` of ``stage`` during the ``with`` block.

        ``wait``: whether to wait for the lock. If the artifact is damaged, its files are moved to another folder before
        the block begins, and the damage is reported on stderr.

        Raises:
            BusyError: Another process holds the lock, and ``wait`` is false.
        """
        with locked(lock_of_stage(self.root, stage, key), wait):
            self._set_aside_damaged(self.folder(stage, key))
            yield

    def _set_aside_damaged(self, folder: Path) -> None:
        if not (folder / INFO).exists():
            return
        info: Any = read_json(folder / INFO)
        problem = sealed_problem(info)
        if problem:
            damage = f"{folder / INFO}: {problem}"
            names = [TENSORS]
        else:
            damage = _damage(folder, info)
            names = list(info["files"])
        if damage:
            moved_to = set_aside_files(folder, [INFO, *names])
            print(f"{damage}. The result is moved to {moved_to} and recreated", file=sys.stderr, flush=True)


def _damage(folder: Path, info: Facts) -> str:
    """Return a description of the damage to an artifact whose info file is intact; "" if there is none."""
    if info["artifact"] != [folder.parent.name, folder.name]:
        return f"{folder / INFO}: belongs to another stage"
    for name, wanted in info["files"].items():
        if not _matches(folder / name, wanted):
            return f"{folder / name}: does not match its checksum in {INFO}"
    return ""


def _matches(path: Path, wanted: str) -> bool:
    """Return whether a file has the digest ``wanted``. The file is read only once per process, unless it changes."""
    try:
        stat = path.stat()
        seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if _FOUND.get((path, wanted)) != seen and sha256(path) == wanted:
            _FOUND[path, wanted] = seen
        return _FOUND.get((path, wanted)) == seen
    except OSError:
        return False
