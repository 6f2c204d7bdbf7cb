"""``knot-runner data``: lists the data sets, their state and their sources, and downloads missing files."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from knot_runner.cli.parsers import names_and_keys
from knot_runner.data.fetch import THERE, FetchError, fetch_file, file_state, place_of
from knot_runner.data.sources import DataFile, DataSet, chosen_data_sets, data_sets
from knot_runner.report.render.terminal import TerminalColumn, listing, output, print_line
from knot_runner.util.errors import LOGGER, UserError
from knot_runner.util.files import require_writable
from knot_runner.util.shared_memory import size_text

_KEY = "paths.data_dir"
#: state of a file -> its text
SAID = {"same": "found, as published", "absent": "absent", "unknown": "found", "other": "a different file"}


def data_command(options: argparse.Namespace) -> int:
    """Print a table of all data sets, or the details of the named data sets.

    With ``--fetch``, download missing files instead. The exit code is 1 if a download failed.
    """
    names, keys = names_and_keys(options.words, (_KEY,))
    root = None
    if folder := keys.get(_KEY) or os.environ.get("KNOT_DATA"):
        root = Path(folder).expanduser()
        if root.exists() and not root.is_dir():
            raise UserError("not a folder", f"{_KEY}={root}")
    chosen = chosen_data_sets(data_sets(options.config_dir), names)
    if options.fetch:
        return _fetched(chosen, root)
    if not names:
        _print_all(chosen, root)
        return 0
    for data_set in chosen:
        _print_one(data_set, root)
    return 0


# ------------------------------------------------------------------------------------------------------------- shown


def _print_all(known: list[DataSet], root: Path | None) -> None:
    print_line(output(), f"{_where(root)}. 'knot-runner data NAME' describes a data set. To download it, add --fetch")
    titles = ("data set", "state", "files", "size", "download", "tasks")
    columns = [TerminalColumn(title, no_wrap=title in titles[:2], overflow="fold") for title in titles]
    rows = []
    for data in known:
        files = str(len(data.files))
        download = "by hand"
        if data.sources:
            download = "--fetch"
        rows.append((data.name, _state(data, root), files, _size(data.size), download, ", ".join(data.tasks)))
    output().print(listing(columns, rows))


def _state(data_set: DataSet, root: Path | None) -> str:
    """Return the state of the data set, and whether the size of a local file differs from the published size."""
    standing = data_set.standing(root)
    if root and any(file_state(root / file.path, file, False) == "other" for file in data_set.files):
        return f"{standing}, but differs from the published file"
    return standing


def _where(root: Path | None) -> str:
    if root:
        return f"{_KEY}: {root}"
    return f"{_KEY}: not set. Use paths.data_dir=DIR or the variable KNOT_DATA"


def _size(size: int | None) -> str:
    if size is None:
        return "not known"
    return size_text(size)


def _print_one(data_set: DataSet, root: Path | None) -> None:
    console = output()
    print_line(console, f"{data_set.name}: {data_set.title}", "bold")

    def show(title: str, text: str) -> None:
        print_line(console, f"  {title:<9} {text}")

    state = _where(root)
    if root:
        state = f"{_state(data_set, root)} in {root}"
    show("state", state)
    show("tasks", ", ".join(data_set.tasks))
    show("license", data_set.license)
    show("official", data_set.home)
    for file in data_set.files:
        show("file", f"{file.path}: {_file_line(file, root)}")
    for paths in data_set.instead:
        found = "not found"
        if root and all((root / path).exists() for path in paths):
            found = "found"
        show("instead", f"{', '.join(paths)}: {found}")
    if data_set.sources:
        show("get", shlex.join(["knot-runner", "data", data_set.name, "--fetch", f"paths.data_dir={root or 'DIR'}"]))
    if data_set.how:
        show("get", data_set.how)
    if data_set.use:
        show("used by", data_set.use)
    console.print()


def _file_line(file: DataFile, root: Path | None) -> str:
    """Return the state of a local file, and the published size and checksum."""
    checksum = "no published checksum"
    if file.sha256:
        checksum = f"sha256 {file.sha256}"
    published = f"published: {_size(file.size)}, {checksum}"
    if root is None:
        return published
    return f"{SAID[file_state(root / file.path, file)]}; {published}"


# --------------------------------------------------------------------------------------------------------- downloads


def _fetched(chosen: list[DataSet], root: Path | None) -> int:
    """Download missing files one by one. A failure does not stop the others. Return the exit code."""
    from knot_runner.cli.progress import Live

    if root is None:
        raise UserError("required by --fetch, but not set. Use paths.data_dir=DIR or the variable KNOT_DATA", _KEY)
    failed = 0
    with Live(Console(stderr=True)) as live:
        for data in chosen:
            if not data.sources:
                standing = data.standing(root)
                if standing != "present":
                    standing = f"download by hand: {data.how}"
                LOGGER.info("%s: %s", data.name, standing)
                continue
            for file in data.files:
                failed += not _fetched_one(data, file, root, live.watch)
            if data.use:
                LOGGER.info("%s: used by %s", data.name, data.use)
    return min(failed, 1)


def _fetched_one(data_set: DataSet, file: DataFile, root: Path, watch: Callable[[str, int, int, str], None]) -> bool:
    """Download one file and print the outcome; return whether the file is present afterwards."""
    checked = "size"
    if file.sha256:
        checked = "checksum"
    state = "found"
    try:
        if file_state(place_of(root, file), file) not in THERE:
            require_writable(root, _KEY)

        def progress(done: int, total: int) -> None:
            watch(file.path, done >> 10, total >> 10, "KB")

        if fetch_file(root, file, data_set.addresses(file), progress):
            state = "downloaded"
        watch(file.path, 1, 1, "done")
    except FetchError as problem:
        LOGGER.error("%s", problem)
        return False
    LOGGER.info("%s: %s, %s as published", file.path, state, checked)
    return True
