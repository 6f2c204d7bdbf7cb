"""Tasks shared by the jobs of one process, so that data are read and held once."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from knot_runner.config.settings import ImageTaskSettings, TaskSettings
from knot_runner.config.strict import digest
from knot_runner.data.images.load import load_images
from knot_runner.data.images.unlabelled import UnlabelledImages, load_unlabelled
from knot_runner.data.load import load_task
from knot_runner.data.tasks import ImageTask, PartyTask


class SharedTasks:
    """:func:`load_images`, :func:`load_unlabelled` and :func:`load_task` for jobs that are threads, which must not
    change the tasks they get.

    A task is kept while any job uses it, and the ``idle`` last requested ones longer, for the jobs to come. A file that
    changes meanwhile is read again only once its task has been dropped. Errors are not kept.
    """

    def __init__(self, idle: int = 4) -> None:
        self._idle = idle
        self._lock = threading.Lock()
        self._loading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._known: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._last: OrderedDict[str, Any] = OrderedDict()  # strong references, for the jobs to come

    def images(self, settings: ImageTaskSettings, data_root: Path | None) -> ImageTask:
        """:func:`load_images`, or what it returned before."""
        return self._get(load_images, settings, data_root)

    def unlabelled(self, settings: ImageTaskSettings, data_root: Path | None) -> UnlabelledImages:
        """:func:`load_unlabelled`, or what it returned before."""
        return self._get(load_unlabelled, settings, data_root)

    def texts(self, settings: TaskSettings, data_root: Path | None) -> PartyTask:
        """:func:`load_task`, or what it returned before."""
        return self._get(load_task, settings, data_root)

    def _get(self, load: Callable[..., Any], settings: Any, data_root: Path | None) -> Any:
        key = digest([load.__name__, dataclasses.asdict(settings), str(data_root)], 64)
        with self._lock:
            loading = self._loading[key]
        with loading:  # of this task only; others are loaded meanwhile
            with self._lock:
                task = self._known.get(key)
            if task is None:
                task = load(settings, data_root)
            with self._lock:
                self._known[key] = self._last[key] = task
                self._last.move_to_end(key)
                while len(self._last) > self._idle:
                    self._last.popitem(last=False)
        return task
