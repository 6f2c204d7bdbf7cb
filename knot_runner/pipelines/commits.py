"""Commits of a run: so frequent that a kill costs little time. A run resumes from them only with the same data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from knot_runner.engine.commit import Checkpoint, Commit
from knot_runner.engine.hardware import all_machines
from knot_runner.engine.tensor_file import Tensors
from knot_runner.provenance import code_changes, made_by
from knot_runner.results.base import SEVERAL_MACHINES
from knot_runner.util.files import LogRow

#: A commit may take this share of the time since the last one; a kill costs the steps in between, never a number.
COMMIT_SHARE = 0.1
#: ... but never more than so many seconds of work.
MAX_UNCOMMITTED = 60.0
#: (values, tensors) of a commit -> whether it can be gone on from
Usable = Callable[[dict[str, Any], Tensors], bool]
#: What is said where the data of a commit are not those of now.
OTHER_DATA = "the data changed since this run was interrupted. It starts from the beginning"


def stands(commit: Commit, code: str | None, note: Callable[[str], None]) -> bool:
    """Return whether to resume from ``commit``.

    Warn through ``note`` if other code wrote it. With ``code`` (``--stale=rerun``) such a commit is not used.
    """
    changes = code_changes(commit.values) if commit.step >= 0 else []
    if changes:
        note(f"{'does not resume' if code else 'resumes'} from a commit that differs: {'; '.join(changes)}")
    return not (changes and code)


def join_machines(records: Iterable[dict], note: Callable[[str], None]) -> list[str]:
    """Return :func:`all_machines` of ``records``. Report through ``note`` if there are several."""
    machines = all_machines(records)
    if len(machines) > 1:
        names = "; ".join(machines)
        note(f"{SEVERAL_MACHINES} ({names}): numbers may differ in the last digits from a run on one machine")
    return machines


class Commits:
    """Commits in ``folder`` of work on ``data`` (a digest of all inputs of the steps).

    Use them only while holding the lock.

    Attributes:
        code: If set, commits of other code versions are not used.
        plugins: Plug-ins that count as part of that code.
        step: The last committed step, -1 before any.
    """

    def __init__(
        self, folder: Path, data: str, note: Callable[[str], None], code: str | None = None, plugins: Sequence[str] = ()
    ) -> None:
        self._checkpoint, self._data, self._note, self._code = Checkpoint(folder, share=True), data, note, code
        self._plugins = list(plugins)
        self.step, self._cost, self._since = -1, 0.0, time.monotonic()
        #: those that have computed the steps so far, and this one
        self.machines: list[str] = []

    def resume(self, usable: Usable = lambda *_: True) -> tuple[Commit, list[LogRow]]:
        """Return the last commit (step -1: none) and the log up to it.

        Commits on other data, and those that are not ``usable``, are dropped with a warning.
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
        self.step, self._since = commit.step, time.monotonic()
        self.machines = join_machines([commit.values], self._note)
        return commit, self._checkpoint.log()

    def due(self) -> bool:
        """Return whether a commit is due. Commits take a bounded share of the time."""
        return time.monotonic() - self._since > min(self._cost / COMMIT_SHARE, MAX_UNCOMMITTED)

    def save(self, step: int, state: Tensors, rows: list[LogRow], values: dict[str, Any] | None = None) -> Tensors:
        """Commit ``state`` and plain ``values`` after ``step``; ``rows``: the whole log, one row per step.

        Returns the result of :meth:`Checkpoint.save`.
        """
        began = time.monotonic()
        about = {"data": self._data, **(values or {}), **made_by(self._plugins), "machines": self.machines}
        shared = self._checkpoint.save(step, state, about, rows[self.step - step :])
        self.step, self._since = step, time.monotonic()
        self._cost = self._since - began
        return shared
