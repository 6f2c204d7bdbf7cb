"""``knot-runner data``: lists present and missing data sets with their sources, and downloads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from knot_runner.data.fetch import PART, THERE, FetchError, fetch_file, file_state, place_of
from knot_runner.data.sources import DataFile, DataSet, chosen_data_sets, data_sets
from knot_runner.report.render.terminal import TerminalColumn, listing, output, print_line, text_line
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import require_writable
from knot_runner.util.memory import size_text
from knot_runner.util.messages import LOGGER

if TYPE_CHECKING:
    from knot_runner.config.settings import HubSource, ImageHub

DATA_HELP = """\
knot-runner data [TASK or DATA SET ...] [paths.data=DIR] [flags]: what is there, from where the rest comes, its download

  --fetch              download what needs no agreement, resumed and compared with published sizes and checksums
  --config-dir=DIR     YAML of your own: DIR/data/NAME.yaml is a data set, like those of conf/data
  paths.data=DIR       the folder of the data sets; KNOT_DATA=DIR says it, too

  knot-runner data
  knot-runner data erc
  knot-runner data mnist cifar10 --fetch paths.data=DIR"""
DATA_FLAGS = ("--fetch", "--config-dir=DIR")
_KEY = "paths.data"
#: Columns of a terminal from which on licences and addresses are listed; in fewer each is cut into a dozen lines.
_WIDE = 120
#: state of a file -> its text
SAID = {"absent": "absent", "unknown": "there", "other": "another file"}


def data_command(arguments: list[str]) -> int:
    """Print all data sets, or one or more in detail; with ``--fetch`` download missing files. Returns the exit code: 1
    if a download failed."""
    names, folder, root, fetch = _parsed(arguments)
    chosen = chosen_data_sets(data_sets(folder), names)
    if fetch:
        return _fetched(chosen, root)
    if not names:
        _print_all(chosen, root)
    for one in chosen if names else []:
        _print_one(one, root)
    _print_hub(sorted({task for one in chosen for task in one.tasks} & set(names)), folder)
    return 0


def _parsed(arguments: list[str]) -> tuple[list[str], str | None, Path | None, bool]:
    """Return (names, --config-dir, paths.data, whether to download). Raises :class:`UserError`."""
    from knot_runner.composing.overrides import config_dir_of, parse_overrides, split_flags

    flags, words = split_flags(arguments)
    own = [flag for flag in flags if flag.startswith("--config-dir")]
    for flag in flags:
        if flag not in (*own, "--fetch"):
            raise UserError(f"{flag}: there is no such flag of data{nearest(flag, DATA_FLAGS)}")
    root = os.environ.get("KNOT_DATA") or None
    for override in parse_overrides([word for word in words if "=" in word]):
        if override.key_or_group == "task" and not override.is_sweep_override():
            raise UserError(f"{override.input_line}: data takes the name alone, as in 'knot-runner data mnist'")
        if override.key_or_group != _KEY or override.is_sweep_override():
            raise UserError(f"{override.input_line}: data takes names, paths.data=DIR, --fetch and --config-dir=DIR")
        value = override.value()
        root = None if value is None else str(getattr(value, "text", value))
    names = [name for word in words if "=" not in word for name in word.split(",") if name]
    folder = Path(root).expanduser() if root else None
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError(f"{_KEY}: {folder}: is not a folder; the one that holds the data sets is right")
    return names, config_dir_of(own), folder, "--fetch" in flags


# ------------------------------------------------------------------------------------------------------------- shown


def _print_all(known: list[DataSet], root: Path | None) -> None:
    console = output()
    print_line(console, f"{_where(root)}; 'knot-runner data NAME' shows one, with its origin; --fetch downloads")
    origin = ("licence", "official address") if console.width >= _WIDE else ()
    columns = [TerminalColumn(title, no_wrap=True, overflow="fold") for title in ("data set", "state")]
    for title in ("files", "size", "download", *origin, "tasks"):
        columns.append(TerminalColumn(title, overflow="fold"))
    rows = []
    for one in known:
        files, download = f"{len(one.files)}", "--fetch" if one.sources else "by hand"
        texts = [one.name, _state(one, root), files, _size(one.size), download]
        rows.append((*texts, *([one.licence, one.home] if origin else []), ", ".join(one.tasks)))
    console.print(listing(columns, rows))


def _state(one: DataSet, root: Path | None) -> str:
    """State of the data set, and whether the size of one of its files differs from the published one."""
    standing = one.standing(root)
    others = [file for file in one.files if root and file_state(root / file.path, file, False) == "other"]
    return f"{standing}, not as published" if others else standing


def _where(root: Path | None) -> str:
    return f"{_KEY}: {root}" if root else f"{_KEY}: is not set (paths.data=DIR or the variable KNOT_DATA)"


def _size(size: int | None) -> str:
    return "not known" if size is None else size_text(size)


def _print_one(one: DataSet, root: Path | None) -> None:
    console = output()
    print_line(console, f"{one.name}: {one.title}", "bold")
    lines = [
        ("state", f"{_state(one, root)} in {root}" if root else _where(root)),
        ("tasks", ", ".join(one.tasks)),
        ("licence", one.licence),
        ("official", one.home),
    ]
    lines += [("file", f"{file.path}: {_file_line(file, root)}") for file in one.files]
    lines += [("instead", f"{', '.join(paths)}: {_all_there(paths, root)}") for paths in one.instead]
    lines += [("get", f"knot-runner data {one.name} --fetch paths.data={root or 'DIR'}")] if one.sources else []
    lines += [("get", one.how)] if one.how else []
    lines += [("read by", one.use)] if one.use else []
    _print_lines(console, lines)


def _print_lines(console: Console, lines: list[tuple[str, str]]) -> None:
    for title, text in lines:
        print_line(console, f"  {title:<9} {text}")
    console.print()


def _file_line(file: DataFile, root: Path | None) -> str:
    """State, size and checksum of a local file beside the published ones."""
    checksum = f"sha256 {file.sha256}"
    if file.sha256 is None:
        checksum = "no checksum known" if file.size is None else "size only"
    published = f"{_size(file.size)}, {checksum}"
    if root is None:
        return f"published: {published}"
    path = root / file.path
    state = file_state(path, file)
    if state == "same":
        return f"there, {'checksum' if file.sha256 else 'size'} as published ({published})"
    has = f" ({size_text(path.stat().st_size)})" if path.is_file() else ""
    part = path.with_name(path.name + PART)
    begun = f", {size_text(part.stat().st_size)} of it downloaded" if part.is_file() else ""
    return f"{SAID[state]}{has}{begun}; published: {published}"


def _all_there(paths: list[str], root: Path | None) -> str:
    return "there" if root and all((root / path).exists() for path in paths) else "absent"


def _print_hub(tasks: list[str], folder: str | None) -> None:
    """Print the source that ``task.source=hub`` reads for each of ``tasks``, and whether its revision is a commit."""
    from knot_runner.composing.commands import compose_jobs

    for task in tasks:
        settings = compose_jobs([f"task={task}", "hardware=cpu"], folder)[0].settings.task
        groups = [settings, *getattr(settings, "sets", {}).values(), *getattr(settings, "datasets", {}).values()]
        found = [group.hub for group in groups if getattr(group, "hub", None) is not None]
        lines = list(dict.fromkeys(_hub_line(hub) for hub in found)) or ["none: this task has no hub copy"]
        output().print(text_line(f"task={task} task.source=hub", "bold"))
        _print_lines(output(), [("hub", line) for line in lines])


def _hub_line(hub: HubSource | ImageHub) -> str:
    is_commit = len(hub.revision) == 40 and set(hub.revision) <= set("0123456789abcdef")
    pinned = "a commit" if is_commit else "a branch, which is not pinned"
    return f"https://huggingface.co/datasets/{hub.id} at {hub.revision} ({pinned}); the first run downloads it"


# --------------------------------------------------------------------------------------------------------- downloads


def _fetched(chosen: list[DataSet], root: Path | None) -> int:
    """Download missing files one by one; a failure does not stop the others. Returns the exit code."""
    from knot_runner.cli.progress import Live

    if root is None:
        raise UserError(f"{_KEY}: is not set; --fetch needs paths.data=DIR or the variable KNOT_DATA")
    failed = 0
    with Live(Console(stderr=True)) as live:
        for one in chosen:
            if not one.sources:
                LOGGER.info("%s: %s", one.name, "present" if one.standing(root) == "present" else f"by hand: {one.how}")
                continue
            for file in one.files:
                failed += not _fetched_one(one, file, root, live.watch)
            if one.use:
                LOGGER.info("%s: is read by %s", one.name, one.use)
    return 1 if failed else 0


def _fetched_one(one: DataSet, file: DataFile, root: Path, watch: object) -> bool:
    """Download one file and print the outcome; returns whether the file is present afterwards."""
    checked = "checksum" if file.sha256 else "size"
    try:
        if file_state(place_of(root, file), file) not in THERE:
            require_writable(root, _KEY)

        def progress(done: int, total: int) -> None:
            watch(file.path, done >> 10, total >> 10, "KB")

        is_new = fetch_file(root, file, one.addresses(file), progress)
        watch(file.path, 1, 1, "done")
    except FetchError as problem:
        LOGGER.error("%s", problem)
        return False
    LOGGER.info("%s: %s, %s as published", file.path, "downloaded" if is_new else "there", checked)
    return True
