"""A task cache for the jobs of one process, which read and store each task only once."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.config.settings.text_tasks import TaskSettings
from knot_runner.config.strict import digest
from knot_runner.data.images.held_out import load_unlabeled
from knot_runner.data.images.load import load_images
from knot_runner.data.load import load_task

#: maximum number of cached tasks; the least recently used task is dropped
KEPT_TASKS = 4
Task = TypeVar("Task")


class SharedTasks:
    """A thread-safe cache for :func:`load_images`, :func:`load_unlabeled` and :func:`load_task`.

    Jobs must not modify the tasks. The ``KEPT_TASKS`` most recently used tasks are cached. If a file changes, it is
    read again only after the task was dropped from the cache.

    Attributes:
        images: :func:`load_images`, from the cache if possible.
        unlabeled: :func:`load_unlabeled`, from the cache if possible.
        texts: :func:`load_task`, from the cache if possible.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks = OrderedDict[str, Any]()
        self.images = partial(self._get, load_images)
        self.unlabeled = partial(self._get, load_unlabeled)
        self.texts = partial(self._get, load_task)

    def _get(
        self, load: Callable[..., Task], settings: ImageTaskSettings | TaskSettings, data_root: Path | None
    ) -> Task:
        key = digest([load.__name__, dataclasses.asdict(settings), str(data_root)], 64)
        with self._lock:
            if key not in self._tasks:
                self._tasks[key] = load(settings, data_root)
            self._tasks.move_to_end(key)
            if len(self._tasks) > KEPT_TASKS:
                self._tasks.popitem(last=False)
            task: Task = self._tasks[key]
            return task
