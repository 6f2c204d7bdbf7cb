"""The commit protocol: a process may be killed at any time, and the same command then resumes from the last commit.

To save a commit, a state file is written first, and then the commit record (``commit.json``) is replaced. Commits
alternate between two state files. The state file of the current record is therefore never overwritten.

The record contains the name of the run or stage. It also contains digests of itself, of the state file, and of the
committed part of the log. On resume, the digests are verified, and the log is truncated to its committed part. If a
digest or the name does not match, the saved files are moved to another folder, and the work starts from the beginning.

:class:`Commits` decides when to save a commit. A run resumes only if its data have not changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load as load_bytes

from knot_runner.engine.hardware import all_machines
from knot_runner.engine.tensor_file import DoesNotMatch, StateParts, Tensors, tensor_parts
from knot_runner.provenance import code_changes, made_by
from knot_runner.records import PART_FILES, ROUNDS_FILE, STATE_FILES, clear_states, sealed_problem, write_sealed
from knot_runner.results import SEVERAL_MACHINES
from knot_runner.util.files import (
    Facts,
    LogRow,
    append_synced,
    digest_of_parts,
    parsed_json,
    regular,
    remove_temporaries,
    set_aside_files,
    write_atomic,
)

RECORD = STATE_FILES[0]
#: Largest fraction of a run's time that is spent on commits. After a kill, the steps since the last commit are computed
#: again, with the same results.
COMMIT_SHARE = 0.1
#: After this number of seconds without a commit, the next step is committed. A kill loses about this much work at most.
MAX_UNCOMMITTED = 60.0
#: Function ``(values, tensors) -> bool`` that returns whether the run can resume from a commit with this content.
Usable = Callable[[dict[str, Any], Tensors], bool]
#: The message for the user if the data have changed since the commit.
OTHER_DATA = "the data changed since this run was interrupted. The run starts from the beginning"


@dataclass(frozen=True)
class Commit:
    """The content of a commit: the state after a step, as tensors and plain values.

    Attributes:
        step: The number of the step; -1 if there is no commit.
        tensors: The tensors of the state, by name.
        values: The other values of the state, by name.
        problem: A message for the user if the last commit was damaged; otherwise "".
    """

    step: int
    tensors: Tensors = field(default_factory=dict)
    values: Facts = field(default_factory=dict)
    problem: str = ""


class Checkpoint:
    """The last commit and the log of one run or stage, stored in ``folder``.

    Hold the lock of ``folder`` while using this object.

    Args:
        folder: The folder of the run or stage.
        share: Whether tensors that do not change between commits are stored in separate files (:class:`StateParts`).
    """

    def __init__(self, folder: Path, share: bool = False) -> None:
        self.folder = folder
        self._share = share
        self._slot = 0
        self._parts = StateParts(folder)
        self._logged, self._hash = 0, hashlib.sha256()  # length and hash of the committed log
        folder.mkdir(parents=True, exist_ok=True)
        remove_temporaries(folder)

    def load(self) -> Commit:
        """Verify the last commit and return its content. If there is no intact commit, the result has ``step`` -1.

        The log is truncated to its committed part. Damaged files are moved to another folder.

        Raises:
            OSError: A file cannot be read.
            UserError: Damaged files cannot be moved.
        """
        if not (self.folder / RECORD).exists():
            self._cut_log(b"")
            self._parts.tidy()
            return Commit(-1)
        try:
            record, state, log = self._verified()
            parts = self._parts.load(record["parts"])
        except DoesNotMatch as problem:
            shared = sorted(path.name for path in self.folder.glob(PART_FILES))
            moved_to = set_aside_files(self.folder, [*STATE_FILES, *shared, ROUNDS_FILE])
            self._parts = StateParts(self.folder)
            self._cut_log(b"")
            return Commit(
                -1, problem=f"{problem}. The saved state is moved to {moved_to}, and the work starts from the beginning"
            )
        self._cut_log(log)
        self._parts.tidy()
        self._slot = 2 - STATE_FILES.index(record["file"])  # index of the other state file
        return Commit(record["step"], load_bytes(state) | parts, record["values"])

    def save(self, step: int, tensors: Tensors, values: Facts, rows: list[LogRow]) -> Tensors:
        """Append ``rows`` to the log, and save a commit with the state after ``step``.

        Args:
            step: Number of the step.
            tensors: The tensors of the state, by name.
            values: The other values of the state, as JSON values.
            rows: The log rows since the last commit, as JSON values.

        Returns:
            Memory-mapped copies of the tensors that this call wrote to separate files, as a dict by name. To save
            memory, use these copies instead of the original tensors.
        """
        text = "\n".join(json.dumps(row, allow_nan=False) for row in rows)
        append_synced(self.folder / ROUNDS_FILE, text)
        logged = f"{text}\n".encode()
        self._hash.update(logged)
        self._logged += len(logged)
        rest = tensors
        shared = {}
        if self._share:
            rest, shared = self._parts.settle(tensors)
        content = tensor_parts(rest)
        state = self.folder / STATE_FILES[1 + self._slot]
        write_atomic(state, content)
        record = {
            "work": self._work,
            "file": state.name,
            "sha256": digest_of_parts(content),
            "step": step,
            "log_bytes": self._logged,
            "log_sha256": self._hash.hexdigest(),
            "values": values,
            "parts": self._parts.record(),
        }
        write_sealed(self.folder / RECORD, record)
        self._slot = 1 - self._slot
        self._parts.tidy()
        return shared

    def log(self) -> list[LogRow]:
        """Return all rows of the log."""
        path = self.folder / ROUNDS_FILE
        if path.exists():
            return [json.loads(line) for line in path.read_bytes().splitlines()]
        return []

    def clear(self) -> None:
        """Delete the commit record and all files with tensors. The log is not deleted."""
        clear_states(self.folder)
        self._parts = StateParts(self.folder)

    @property
    def _work(self) -> str:
        """Return the identity of the work: the name of the folder (run id, or stage key) and of its parent folder."""
        return "/".join(self.folder.absolute().parts[-2:])

    def _verified(self) -> tuple[Facts, bytes, bytes]:
        """Return the commit record, and the bytes of the state file and of the log that the record names.

        Raises:
            DoesNotMatch: The content of a file does not have the recorded digest.
        """
        path = self.folder / RECORD
        record: Any = parsed_json(self._read(RECORD))
        if problem := sealed_problem(record):
            raise DoesNotMatch(f"{path}: {problem}")
        if record["work"] != self._work:
            raise DoesNotMatch(f"{path}: belongs to another run or stage ({record.get('work')})")
        state = self._read(record["file"])
        if hashlib.sha256(state).hexdigest() != record["sha256"]:
            raise DoesNotMatch(f"{self.folder / record['file']}: does not match its checksum in {RECORD}")
        log = self._read(ROUNDS_FILE)[: record["log_bytes"]]  # without rows that were logged, but not committed
        if hashlib.sha256(log).hexdigest() != record["log_sha256"]:
            raise DoesNotMatch(f"{self.folder / ROUNDS_FILE}: does not match its checksum in {RECORD}")
        return record, state, log

    def _read(self, name: str) -> bytes:
        try:
            return regular(self.folder / name).read_bytes()
        except FileNotFoundError:
            raise DoesNotMatch(f"{self.folder / name}: no longer exists") from None

    def _cut_log(self, committed: bytes) -> None:
        """Truncate the log file to ``committed``, the bytes up to the committed length. The file is never extended."""
        path = self.folder / ROUNDS_FILE
        self._logged = len(committed)
        self._hash = hashlib.sha256(committed)
        if path.exists() and regular(path).stat().st_size > len(committed):
            os.truncate(path, len(committed))


def stands(commit: Commit, code: str | None, note: Callable[[str], None]) -> bool:
    """Return whether to resume from ``commit``.

    If another version of the code wrote ``commit``, ``note`` is called with a warning. The result is then false if
    ``code`` is set (``--stale=rerun``), and true otherwise.
    """
    changes = code_changes(commit.values) if commit.step >= 0 else []
    if changes:
        action = "does not resume" if code else "resumes"
        note(f"{action} from a commit of another version: {'; '.join(changes)}")
    return not (changes and code)


def join_machines(records: Iterable[Facts], note: Callable[[str], None]) -> list[str]:
    """Return the descriptions of all machines in ``records`` and of the current machine, without duplicates.

    If there are several machines, ``note`` is called with a message for the user.
    """
    machines = all_machines(records)
    if len(machines) > 1:
        names = "; ".join(machines)
        note(f"{SEVERAL_MACHINES} ({names}): numbers may differ in the last digits from a run on one machine")
    return machines


class Commits:
    """An object that saves the commits of a run or stage, and resumes from the last commit.

    Hold the lock of ``folder`` while using this object.

    Args:
        folder: The folder of the run or stage.
        data: The digest of the inputs of the run or stage.
        note: Function that prints a message for the user.
        code: If set, a commit that was written by another version of the code is not used.
        plugins: The plug-ins of the run. Their source code is part of the code version.

    Attributes:
        step: The last committed step; -1 before the first commit.
    """

    def __init__(
        self, folder: Path, data: str, note: Callable[[str], None], code: str | None = None, plugins: Sequence[str] = ()
    ) -> None:
        self._checkpoint, self._data, self._note, self._code = Checkpoint(folder, share=True), data, note, code
        self._plugins = list(plugins)
        self.step = -1
        self._cost = 0.0
        self._since = time.monotonic()
        #: the machines that have computed steps of this run, including the current machine
        self.machines: list[str] = []

    def resume(self, usable: Usable = lambda *_: True) -> tuple[Commit, list[LogRow]]:
        """Return the last commit and the log up to it. If the commit is unusable, return an empty commit and no rows.

        An unusable commit is deleted. A commit is unusable if the data have changed, or if ``usable(values, tensors)``
        returns false. If ``code`` is set, a commit of another version of the code is also unusable.
        """
        commit = self._checkpoint.load()
        if commit.problem:
            self._note(commit.problem)
        other_data = commit.step >= 0 and commit.values.get("data") != self._data
        if other_data:
            self._note(OTHER_DATA)
        complete = commit.step < 0 or other_data or usable(commit.values, commit.tensors)
        if other_data or not complete or not stands(commit, self._code, self._note):
            self._checkpoint.clear()
            commit = self._checkpoint.load()
        self.step = commit.step
        self._since = time.monotonic()
        self.machines = join_machines([commit.values], self._note)
        return commit, self._checkpoint.log()

    def due(self) -> bool:
        """Return whether to save a commit now.

        Let d be the time in seconds that saving the last commit took. The next commit is due ``d / COMMIT_SHARE``
        seconds after the last commit, but at the latest after :data:`MAX_UNCOMMITTED` seconds.
        """
        return time.monotonic() - self._since > min(self._cost / COMMIT_SHARE, MAX_UNCOMMITTED)

    def save(self, step: int, state: Tensors, rows: list[LogRow], values: dict[str, Any] | None = None) -> Tensors:
        """Save a commit with the state after ``step``.

        Args:
            step: Number of the step.
            state: The tensors of the state, by name.
            rows: All rows of the log so far, one per step.
            values: The other values of the state, as JSON values.

        Returns:
            Memory-mapped copies of some of the tensors, by name (see :meth:`Checkpoint.save`).
        """
        began = time.monotonic()
        about = {"data": self._data, **(values or {}), **made_by(self._plugins), "machines": self.machines}
        shared = self._checkpoint.save(step, state, about, rows[self.step - step :])
        self.step = step
        self._since = time.monotonic()
        self._cost = self._since - began
        return shared
