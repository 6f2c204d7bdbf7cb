"""Check that all data files of the runs exist, before the first job starts. The files are not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from knot_runner.config.settings.families import TASK_KINDS, call
from knot_runner.config.settings.image_tasks import IMAGE_READERS, ImageTaskSettings, transfer_keys
from knot_runner.config.settings.run import Settings
from knot_runner.config.settings.text_tasks import TaskSettings
from knot_runner.data.checksums import missing_entries, open_folder
from knot_runner.data.sources import data_sets, task_names
from knot_runner.util.errors import UserError


def missing_data(settings: Settings) -> str | None:
    """Return a one-line error message if data of a run are missing; None if nothing is missing.

    The message names the key or the file. Neither data on the hub nor files that a plug-in reads are checked.
    """
    transfer = settings.transfer
    root = Path(settings.paths.data_dir) if settings.paths.data_dir else None
    try:
        _check(settings.task, root)
    except UserError as problem:
        return str(problem)
    try:
        if transfer is not None:
            _check(replace(transfer, local=transfer.local and replace(transfer.local, test=[])), root)
    except UserError as problem:
        return transfer_keys(str(problem))
    return None


def _check(task: Any, root: Path | None) -> None:
    if isinstance(task, TaskSettings) and task.source != "embedded":
        from knot_runner.data.load import check_text_files

        check_text_files(task, root)
    elif isinstance(task, ImageTaskSettings) and task.source != "embedded":
        _check_images(task, root)
    elif task.source == "local" and (check_files := TASK_KINDS[task.kind].check_files):
        open_folder(root)
        call(check_files, task, root)


def _check_images(task: ImageTaskSettings, root: Path | None) -> None:
    if task.source == "hub":
        if task.hub is None:
            raise UserError("required by task.source=hub, but not set", "task.hub")
        return
    open_folder(root)
    if task.local is None or not IMAGE_READERS.is_built_in(task.local.format):
        return  # loading reports the error, or a plug-in reads the files
    if gone := missing_entries(task.local, root):
        raise UserError(f"file not found (data set {task.name})", root / gone[0])


def no_data(jobs: Iterable[Settings]) -> str | None:
    """Return a one-line error message if data of any job are missing; None if nothing is missing.

    The argument ``jobs`` holds the settings of each job. The message names the command that lists the needed files.
    """
    jobs = list(jobs)
    seen = {}
    missing = Counter[str]()
    tasks = []
    for settings in jobs:
        key = repr((settings.task, settings.transfer, settings.paths.data_dir))
        if key not in seen:
            seen[key] = missing_data(settings)
        problem = seen[key]
        if problem is not None:
            missing[problem] += 1
            tasks += [task.name for task in (settings.task, settings.transfer) if task is not None]
    if not missing:
        return None
    problems = []
    for problem, count in missing.items():
        which = "all" if count == len(jobs) else f"{count} of"
        problems.append(f"{problem}. This affects {which} {len(jobs)} jobs" if len(jobs) > 1 else problem)
    known = task_names(data_sets())
    command = " ".join(["knot-runner data", *(task for task in dict.fromkeys(tasks) if task in known)])
    return f"{'. '.join(problems)}. Run '{command}' to see which files are needed and where to get them"
