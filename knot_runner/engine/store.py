"""Artefacts: finished stages, named by what they depend on, shared by all runs that need the same thing.

``<out>/artefacts/<stage>/<key>/`` holds ``tensors.safetensors`` and ``info.json``, which is written last and carries
the digest: a folder without it is unfinished work. A lock per artefact lets two sweeps over one folder wait for each
other instead of doing the same work twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from knot_runner import stale
from knot_runner.engine.commit import save_bytes
from knot_runner.errors import UserError
from knot_runner.files import locked, read_json, sha256, write_atomic, write_json


@dataclass(frozen=True)
class Artefact:
    """A finished stage: its key, where it lies, and plain facts about it (seconds, scores, ...)."""

    stage: str
    key: str
    folder: Path
    info: dict[str, Any]

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors, after the file's digest was checked. Raises :class:`UserError` when it does not match."""
        path = self.folder / "tensors.safetensors"
        if not path.is_file() or sha256(path) != self.info["sha256"]:
            raise UserError(f"{path}: does not match its digest; delete its folder and repeat the command")
        return safetensors.torch.load_file(path)


@dataclass(frozen=True)
class Store:
    """All artefacts below ``root``."""

    root: Path
    #: with it, stages that other code made (or another torch, or a plug-in that changed) are as if they were not there
    code: str | None = None
    #: the user's plug-ins, which each artefact names with what made it
    plugins: tuple[str, ...] = ()

    def folder(self, stage: str, key: str) -> Path:
        return self.root / stage / key

    def find(self, stage: str, key: str) -> Artefact | None:
        """The artefact, if it is finished."""
        folder = self.folder(stage, key)
        info = read_json(folder / "info.json")
        if not isinstance(info, dict) or "sha256" not in info or (self.code and stale.code_changes(info)):
            return None
        return Artefact(stage, key, folder, info)

    def get(self, stage: str, key: str) -> Artefact:
        """The artefact; it must be finished (the stages are executed in order)."""
        artefact = self.find(stage, key)
        if artefact is None:
            raise UserError(f"{self.folder(stage, key)}: this stage's result is gone; repeat the command to make it")
        return artefact

    def put(self, stage: str, key: str, tensors: dict[str, Tensor], info: dict[str, Any]) -> Artefact:
        """Write a finished artefact; call under :meth:`lock`."""
        folder = self.folder(stage, key)
        path = folder / "tensors.safetensors"
        write_atomic(path, save_bytes(tensors))
        info = {**info, **stale.made_by(self.plugins), "sha256": sha256(path)}
        write_json(folder / "info.json", info)
        return Artefact(stage, key, folder, info)

    @contextlib.contextmanager
    def lock(self, stage: str, key: str, wait: bool = True) -> Iterator[None]:
        """Alone with this artefact; whoever comes second waits and finds it finished, or without ``wait`` gets a
        :class:`knot_runner.files.BusyError`."""
        with locked(self.root / ".locks" / f"{stage}-{key}", wait):
            yield
