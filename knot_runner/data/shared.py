"""A task cache for the jobs of one process, so that they read and store each task only once."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.config.settings.text_tasks import TaskSettings
from knot_runner.config.strict import digest
from knot_runner.data.images.held_out import UnlabeledImages, load_unlabeled
from knot_runner.data.images.load import load_images
from knot_runner.data.load import load_task
from knot_runner.data.tasks import ImageTask, PartyTask

#: number of cached tasks; the tasks that were requested last stay in the cache
KEPT_TASKS = 4
Spec = TypeVar("Spec", ImageTaskSettings, TaskSettings)
Task = TypeVar("Task", ImageTask, UnlabeledImages, PartyTask)


class SharedTasks:
    """A thread-safe cache for :func:`load_images`, :func:`load_unlabeled` and :func:`load_task`.

    Jobs must not change the tasks. The ``KEPT_TASKS`` most recently used tasks are cached. A changed file is read again
    only after its task was dropped from the cache.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: OrderedDict[str, Any] = OrderedDict()

    def images(self, settings: ImageTaskSettings, data_root: Path | None) -> ImageTask:
        """Return the result of :func:`load_images`, from the cache if possible."""
        return self._get(load_images, settings, data_root)

    def unlabeled(self, settings: ImageTaskSettings, data_root: Path | None) -> UnlabeledImages:
        """Return the result of :func:`load_unlabeled`, from the cache if possible."""
        return self._get(load_unlabeled, settings, data_root)

    def texts(self, settings: TaskSettings, data_root: Path | None) -> PartyTask:
        """Return the result of :func:`load_task`, from the cache if possible."""
        return self._get(load_task, settings, data_root)

    def _get(self, load: Callable[[Spec, Path | None], Task], settings: Spec, data_root: Path | None) -> Task:
        key = digest([load.__name__, dataclasses.asdict(settings), str(data_root)], 64)
        with self._lock:
            if key not in self._tasks:
                self._tasks[key] = load(settings, data_root)
            self._tasks.move_to_end(key)
            if len(self._tasks) > KEPT_TASKS:
                self._tasks.popitem(last=False)
            task: Task = self._tasks[key]
            return task
