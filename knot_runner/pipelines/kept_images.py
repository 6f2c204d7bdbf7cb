"""Cache for images that are slow to read: arrays in the store, which later runs memory-map.

Reading LEAF's JSON of 3,550 writers takes minutes, and reading a zip of 12,000 JPEG files takes eight seconds. Cached
arrays are available at once, and a mapped file takes no process memory. The cache is valid while the files are
unchanged: by metadata, and by content if metadata differ (:class:`knot_runner.provenance.fingerprints.Now`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from pathlib import Path

import torch

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.config.strict import digest
from knot_runner.data.checksums import CHECKSUMS
from knot_runner.data.tasks import Images, ImageTask
from knot_runner.engine.store import TENSORS, Artifact, Store
from knot_runner.engine.tensor_file import mapped_arrays
from knot_runner.pipelines.context import RunContext
from knot_runner.provenance.fingerprints import Now, Opened
from knot_runner.util.files import Facts

STAGE = "images_read"
#: Images that took so many seconds to read are kept.
SLOW = 3.0
#: What of a task is no array, and of a part is one.
_FACTS = ("name", "classes", "coordinates", "mean", "std", "source", "user_names", "file_names", "notes", "called")
_ARRAYS = ("pixels", "labels", "users", "files")


def mapped_images(context: RunContext, root: Path) -> ImageTask:
    """Return the run's images, read from the files below ``root`` or memory-mapped from the cache.

    Raises:
        UserError: The images cannot be read.
    """
    settings, store = context.settings.task, context.store
    key = _key(settings, root)
    kept = store.find(STAGE, key)
    if kept is not None and _same_files(kept, root):
        return _task(kept)
    began = time.monotonic()
    task = context.services.images(settings, root)
    if time.monotonic() - began < SLOW:
        return task
    with store.lock(STAGE, key):
        kept = store.find(STAGE, key)
        if kept is None or not _same_files(kept, root):
            kept = _keep(store, key, task)
    context.note(f"{settings.name}: saved as arrays for later runs in {kept.folder}")
    return _task(kept)


def _key(settings: ImageTaskSettings, root: Path) -> str:
    sums = root / CHECKSUMS
    known = hashlib.sha256(sums.read_bytes()).hexdigest() if sums.is_file() else None
    return digest({"task": dataclasses.asdict(settings), "root": str(root), "sums": known})


def _same_files(kept: Artifact, root: Path) -> bool:
    """Return whether the files are unchanged since they were cached."""
    now = Now()
    return all(now.change(root, Opened(**record)) is None for record in kept.info["opened"])


def _keep(store: Store, key: str, task: ImageTask) -> Artifact:
    arrays = {
        f"{part}.{name}": getattr(images, name)
        for part, images in (("train", task.train), ("test", task.test))
        for name in _ARRAYS
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}
    facts: Facts = {name: getattr(task, name) for name in _FACTS}
    opened = [dataclasses.asdict(file) for file in task.files]
    return store.put(STAGE, key, tensors, {"task": facts, "opened": opened, "content": task.digest})


def _task(kept: Artifact) -> ImageTask:
    arrays = mapped_arrays(kept.folder / TENSORS)
    parts = []
    for part in ("train", "test"):
        parts.append(Images(*[arrays.get(f"{part}.{name}") for name in _ARRAYS]))
    facts = dict(kept.info["task"])
    facts["called"] = {by: tuple(words) for by, words in facts["called"].items()}
    files = [Opened(**record) for record in kept.info["opened"]]
    task = ImageTask(train=parts[0], test=parts[1], files=files, **facts)
    vars(task)["digest"] = kept.info["content"]  # of the same arrays: the store has compared the file with its digest
    return task
