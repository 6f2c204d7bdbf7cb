"""The commit protocol: a process may die at any instruction, and the same command goes on from the last commit.

Two state files are written in turn, so the one that the commit record names is never the one being written. The
record (``commit.json``: file, digest, step, length of the log) is replaced last. On resume the digest is checked and
the log is cut back to the recorded length, so a step that was logged but not committed leaves no trace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from knot_runner.errors import UserError
from knot_runner.files import append_synced, read_json, remove_temporaries, sha256, write_atomic, write_json
from knot_runner.records import clear_states

LOG = "rounds.jsonl"


@dataclass(frozen=True)
class Commit:
    """What a commit holds: the step it was made after (-1: none yet), tensors, and plain values."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


class Checkpoint:
    """The committed state of one piece of work in ``folder``. Use under that folder's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._slot = 0
        folder.mkdir(parents=True, exist_ok=True)
        remove_temporaries(folder)

    def load(self) -> Commit:
        """The last commit, verified; ``step=-1`` when there is none. The log is cut back to it.

        Raises :class:`UserError` naming the file when a digest does not match: a wrong number is never returned.
        """
        record_path = self.folder / "commit.json"
        if not record_path.exists():
            self._cut_log(0)
            return Commit(-1, {}, {})
        record = read_json(record_path)
        if not isinstance(record, dict) or not {"file", "sha256", "step", "log_bytes", "values"} <= set(record):
            raise UserError(f"{record_path}: is damaged; delete the folder to start this work afresh")
        state = self.folder / record["file"]
        if not state.is_file() or sha256(state) != record["sha256"]:
            raise UserError(f"{state}: does not match its digest; delete the folder to start this work afresh")
        self._cut_log(record["log_bytes"])
        self._slot = 1 - int(record["file"].removeprefix("state-").removesuffix(".safetensors"))
        return Commit(record["step"], safetensors.torch.load_file(state), record["values"])

    def save(self, step: int, tensors: dict[str, Tensor], values: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        """Commit the state after ``step`` with the ``rows`` logged since the last commit. Values, rows: plain JSON."""
        length = append_synced(self.folder / LOG, "\n".join(json.dumps(row, allow_nan=False) for row in rows))
        state = self.folder / f"state-{self._slot}.safetensors"
        content = save_bytes(tensors)
        write_atomic(state, content)
        record = {"file": state.name, "sha256": sha256(state), "step": step, "log_bytes": length, "values": values}
        write_json(self.folder / "commit.json", record)
        self._slot = 1 - self._slot

    def log(self) -> list[dict[str, Any]]:
        """The rows logged so far."""
        path = self.folder / LOG
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def clear(self) -> None:
        """Delete the states (the work is finished and its result stands elsewhere); the log stays."""
        clear_states(self.folder)

    def _cut_log(self, length: int) -> None:
        path = self.folder / LOG
        if path.exists() and path.stat().st_size != length:
            with path.open("rb+") as file:
                file.truncate(length)


def save_bytes(tensors: dict[str, Tensor]) -> bytes:
    """``tensors`` in safetensors form (contiguous copies on the CPU)."""
    return safetensors.torch.save({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()})
