"""Packing of finished runs into one archive.

Packing the same runs again gives the same bytes.
"""

from __future__ import annotations

import glob  # skips hidden folders
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from knot_runner.bundles.archive import MAX_FILE, archive_bytes, too_much
from knot_runner.records import CONFIG_FILE, RESULT_FILE, ROUNDS_FILE, read_record, require_result
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic
from knot_runner.util.shared_memory import size_text

#: Files that a comparison reads. They are packed regardless of their size.
NEEDED = (CONFIG_FILE, RESULT_FILE, ROUNDS_FILE)
#: Size in bytes above which a file, usually with weights, is packed only on request.
LEFT_OUT_ABOVE = 4_000_000


@dataclass(frozen=True)
class RunContents:
    """A bundled run and its packed files.

    Attributes:
        folder: ``<task>/<method>/<run id>``.
        seed: Seed of the run.
        files: Dict from file name to content.
        left_out: Names of large files that are not packed. The checksums of these files are in ``result.json``.
    """

    folder: str
    seed: int
    files: dict[str, bytes]
    left_out: list[str]


def finished_runs(folder: Path) -> list[Path]:
    """Return the sorted folders of the finished runs that are at most three levels below ``folder``.

    If ``folder`` is itself the folder of a finished run, return only this folder.
    """
    if (folder / RESULT_FILE).is_file():
        return [folder]
    names = []
    for depth in ("*", "*/*", "*/*/*"):
        names += glob.glob(f"{depth}/{RESULT_FILE}", root_dir=folder)  # noqa: PTH207
    return sorted((folder / name).parent for name in names)


def packed_run(folder: Path, weights: bool = False) -> RunContents:
    """Read the finished run in ``folder``, and return its contents for a bundle.

    ``weights``: whether to include files above :data:`LEFT_OUT_ABOVE` bytes, such as weights.

    Raises:
        UserError: A file is missing, damaged, or larger than :data:`MAX_FILE` bytes.
    """
    result = require_result(folder)
    run = RunContents(f"{result.task}/{result.method}/{folder.name}", result.seed, {}, [])
    for name in sorted({CONFIG_FILE, *result.digest}):
        path = folder / name
        size = 0
        if path.is_file():
            size = path.stat().st_size
        if size > LEFT_OUT_ABOVE and name not in NEEDED and not weights:
            run.left_out.append(name)
            continue
        if size > MAX_FILE:
            raise UserError(f"has {size_text(size)}, more than the limit of a bundle, {size_text(MAX_FILE)}", path)
        if name == RESULT_FILE:
            run.files[name] = path.read_bytes()
        else:
            run.files[name] = read_record(folder, result, name)
    return run


def write_bundle(runs: Sequence[RunContents], path: Path) -> None:
    """Write ``runs`` as one archive to the file ``path``, atomically.

    Raises:
        UserError: The runs exceed the limits of a bundle, or the file cannot be written.
    """
    members: dict[str, bytes] = {}
    for run in runs:
        members |= {f"{run.folder}/{name}": content for name, content in run.files.items()}
    if problem := too_much(len(members), sum(map(len, members.values()))):
        raise UserError(f"{problem}. Pack fewer runs per bundle", path)
    try:
        content = archive_bytes(members)
    except ValueError as problem:
        raise UserError(f"the names of task and method are too long for an archive ({problem})", path) from None
    write_atomic(path, content)


def contents_lines(runs: Sequence[RunContents]) -> list[str]:
    """Return lines of text that list ``runs`` and the large files that are not packed."""
    lines = []
    for run in runs:
        size = size_text(sum(map(len, run.files.values())))
        lines.append(f"{run.folder}, seed {run.seed}: {len(run.files)} files, {size}")
    left_out = ", ".join(sorted({name for run in runs for name in run.left_out}))
    if left_out:
        hint = "'verify' compares their checksums. To pack them, use --weights"
        lines.append(f"files above {size_text(LEFT_OUT_ABOVE)} are not packed: {left_out}. {hint}")
    return lines
