"""Checks that the files of a run's data exist, without reading them, before the first job of a sweep."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from knot_runner.config.settings import ImageSetsSettings, ImageTaskSettings, Settings, TaskSettings
from knot_runner.config.settings.tasks.images import IMAGE_FORMATS
from knot_runner.data.checksums import open_folder
from knot_runner.data.images.sets import check_set_files, missing_entries
from knot_runner.data.load import check_text_files
from knot_runner.data.sources import data_sets
from knot_runner.util.errors import UserError


def missing_data(settings: Settings) -> str | None:
    """Why the data of a run cannot be read, in one line that names the key or the file; None where no problem is found.

    Contents of files, the hub and entries for a plug-in's reader are not checked.
    """
    try:
        _check(settings.task, Path(settings.paths.data).expanduser() if settings.paths.data else None)
    except UserError as problem:
        return str(problem)
    return None


def _check(task: object, root: Path | None) -> None:
    if isinstance(task, TaskSettings) and task.source != "embedded":
        check_text_files(task, open_folder(root) if task.source == "local" else None)
    elif isinstance(task, ImageTaskSettings) and task.source != "embedded":
        _check_images(task, root)
    elif isinstance(task, ImageSetsSettings) and task.source == "local":
        open_folder(root)
        check_set_files(task, root)


def _check_images(task: ImageTaskSettings, root: Path | None) -> None:
    if task.source == "hub":
        if task.hub is None:
            raise UserError(f"task.hub: is not set, so task.source=hub has no {task.name}")
        return
    open_folder(root)
    if task.local is None or task.local.format not in IMAGE_FORMATS:
        return  # loading reports the error, or a plug-in reads
    if gone := missing_entries(task.local, root):
        raise UserError(f"{root / gone[0]}: is not there (for {task.name})")


def no_data(jobs: Iterable[tuple[str, Settings]]) -> str | None:
    """One line on the first of ``jobs`` (title, settings) whose data are missing, on how many they are, and on the
    command that lists the data; None where no file is missing. Jobs of one task and folder are checked once."""
    seen: dict[str, str | None] = {}
    missing: dict[str, list[tuple[str, str]]] = {}
    total = 0
    for title, settings in jobs:
        total += 1
        key = repr((settings.task, settings.paths.data))
        if key not in seen:
            seen[key] = missing_data(settings)
        if (problem := seen[key]) is not None:
            missing.setdefault(problem, []).append((title, settings.task.name))
    if not missing:
        return None
    told = [f"{problem}{_which([title for title, _ in found], total)}" for problem, found in missing.items()]
    return f"{'; '.join(told)}; {_command([task for found in missing.values() for _, task in found])}"


def _which(titles: list[str], total: int) -> str:
    """Which of ``total`` jobs, in brackets; "" of one."""
    if total == 1:
        return ""
    if len(titles) == total:
        return f" (all {total} jobs)"
    return f" ({len(titles)} of {total} jobs: {titles[0]}{', ...' if len(titles) > 1 else ''})"


def _command(tasks: list[str]) -> str:
    known = {task for one in data_sets().values() for task in one.tasks}
    named = [task for task in dict.fromkeys(tasks) if task in known]
    return (
        f"'knot-runner data {' '.join(named)}' shows what is needed and where from"
        if named
        else ("'knot-runner data' shows what there is")
    )
