"""Stale runs, whose code or data have changed since: the reasons, setting a run aside for a rerun, and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from knot_runner.config.settings import Settings
from knot_runner.config.strict import build
from knot_runner.provenance.code import code_changes, version_text
from knot_runner.provenance.fingerprints import Now, Opened
from knot_runner.util.errors import UserError

#: prefix of a reason about files
DATA_CHANGE = "data: "
#: maximum number of lines with reasons in a summary
MAX_REASONS = 4


def reasons(result: dict[str, Any], settings: Settings, now: Now | None = None) -> list[str]:
    """Reasons, one line each, why a finished run (its ``result.json``) is stale; [] if it is not."""
    return code_changes(result) + data_changes(result, settings.paths.data, now)


def on_data(found: Sequence[str]) -> list[str]:
    """Those of :func:`reasons` that are about data files (:func:`data_changes`)."""
    return [reason for reason in found if reason.startswith(DATA_CHANGE)]


def data_changes(result: dict[str, Any], data: str | None, now: Now | None = None) -> list[str]:
    """One line per file below ``data`` (``paths.data``) that has changed, vanished or appeared since a finished run; []
    if none.

    Files are read only if their metadata differ; ``now`` caches their state for the runs of one command. If ``data`` is
    None, files cannot be compared and the list is empty.
    """
    if data is None:
        return []
    root, now = Path(data).expanduser(), now or Now()
    try:
        files = [build(Opened, row, "files") for row in result.get("files", [])]
    except UserError:
        return [f"{DATA_CHANGE}another version of knot_runner recorded what was read"]
    changes = ((was.path, now.change(root, was)) for was in files)
    return [version_text(f"{DATA_CHANGE}{path} {change}") for path, change in changes if change]


@dataclass(frozen=True)
class CurrentData:
    """The current files below ``data`` (``paths.data``) for one command; with None, nothing is compared.

    Changes after the first check are not seen.
    """

    data: str | None
    now: Now = field(default_factory=Now)

    def changes(self, result: dict[str, Any]) -> list[str]:
        """:func:`data_changes` of a finished run."""
        return data_changes(result, self.data, self.now)


def refusal(changed: Sequence[tuple[str, Path, list[str]]], finished: int) -> str:
    """The error line for runs (title, folder, changes), out of ``finished`` ones, whose data differ from the current
    ``paths.data``: their numbers are not those of the requested data."""
    title, folder, changes = changed[0]
    more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
    some = f"{len(changed)} of {finished} finished runs were made from other data, the first " * (finished > 1)
    them, they, are = ("it", "it", "is") if len(changed) == 1 else ("them", "they", "are")
    was = " was made from other data" * (finished == 1)
    return (
        f"paths.data: {some}{title} ({folder}){was}: {changes[0].removeprefix(DATA_CHANGE)}{more}; "
        f"--stale=rerun makes {them} anew, --stale=keep shows {them} as {they} {are}"
    )


def set_aside(folder: Path) -> Path:
    """Move a run's ``folder`` (``<out>/<task>/<method>/<run id>``) to ``<out>/.stale/<task>/<method>/<run id>-<n>``
    with the first free n; returns the new folder. Call under the run's lock. Raises :class:`UserError`."""
    task, method, run = folder.parts[-3:]
    home = folder.parents[2] / ".stale" / task / method
    try:
        home.mkdir(parents=True, exist_ok=True)
        number = 1
        while (target := home / f"{run}-{number}").exists():
            number += 1
        return folder.rename(target)
    except OSError as problem:
        raise UserError(f"{folder}: cannot be set aside in {home}: {problem.strerror or problem}") from None


def staleness_line(kept: list[tuple[str, list[str]]]) -> list[str]:
    """A few warning lines for a command that keeps stale runs, from (title, reasons) of each; [] without reasons."""
    kept = [(title, why) for title, why in kept if why]
    if not kept:
        return []
    counts = Counter(reason for _, why in kept for reason in why)
    are, them = ("runs are", "them") if len(kept) > 1 else ("run is", "it")
    head = f"{len(kept)} finished {are} kept as {'they are' if len(kept) > 1 else 'it is'}"
    anew = f"--stale=rerun makes {them} anew"
    if all(count == len(kept) for count in counts.values()) and len(counts) <= MAX_REASONS:
        return [f"{head} ({'; '.join(counts)}); {anew}"]
    first = {reason: title for title, why in reversed(kept) for reason in why}
    lines = [f"  {count}: {reason} (first: {first[reason]})" for reason, count in counts.most_common(MAX_REASONS)]
    more = [f"  and {len(counts) - MAX_REASONS} more reasons"] if len(counts) > MAX_REASONS else []
    return [f"{head}, though made otherwise; {anew}", *lines, *more]
