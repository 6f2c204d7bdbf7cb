"""Cache for images that are slow to read.

The images are stored as arrays, which later runs memory-map. The cache is valid while the image files are unchanged.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from pathlib import Path

import torch

from knot_runner.config.strict import digest
from knot_runner.data.checksums import CHECKSUMS
from knot_runner.data.tasks import Images, ImageTask
from knot_runner.engine.store import TENSORS, Artifact, Store
from knot_runner.engine.tensor_file import mapped_arrays
from knot_runner.pipelines.context import RunContext
from knot_runner.provenance.fingerprints import Now, Opened
from knot_runner.util.files import Facts

STAGE = "images_read"
#: Images that take at least this number of seconds to read are cached.
SLOW = 3.0
#: Fields of a task without its images, and the arrays of its training or test images.
_FACTS = ("name", "classes", "coordinates", "mean", "std", "source", "user_names", "file_names", "notes", "called")
_ARRAYS = ("pixels", "labels", "users", "files")


def mapped_images(context: RunContext, root: Path) -> ImageTask:
    """Return the run's images, read from the files below ``root`` or memory-mapped from the cache.

    Raises:
        UserError: The images cannot be read.
    """
    settings = context.settings.task
    store = context.store
    sums = root / CHECKSUMS
    known = hashlib.sha256(sums.read_bytes()).hexdigest() if sums.is_file() else None
    key = digest({"task": dataclasses.asdict(settings), "root": str(root), "sums": known})
    # Reading LEAF's JSON of 3,550 writers takes minutes. Mapped arrays are available at once and use no process memory.
    kept = _find(store, key, root)
    if kept is not None:
        return _task(kept)
    began = time.monotonic()
    task = context.services.images(settings, root)
    if time.monotonic() - began < SLOW:
        return task
    with store.lock(STAGE, key):
        kept = _find(store, key, root) or _keep(store, key, task)
    context.note(f"{settings.name}: saved as arrays for later runs in {kept.folder}")
    return _task(kept)


def _find(store: Store, key: str, root: Path) -> Artifact | None:
    """Return the cached images if their files are unchanged."""
    kept = store.find(STAGE, key)
    now = Now()
    if kept is None or any(now.change(root, Opened(**record)) for record in kept.info["opened"]):
        return None
    return kept


def _keep(store: Store, key: str, task: ImageTask) -> Artifact:
    tensors = {}
    for part, images in (("train", task.train), ("test", task.test)):
        for name in _ARRAYS:
            if (array := getattr(images, name)) is not None:
                tensors[f"{part}.{name}"] = torch.from_numpy(array)
    facts: Facts = {name: getattr(task, name) for name in _FACTS}
    opened = [dataclasses.asdict(file) for file in task.files]
    return store.put(STAGE, key, tensors, {"task": facts, "opened": opened, "content": task.digest})


def _task(kept: Artifact) -> ImageTask:
    arrays = mapped_arrays(kept.folder / TENSORS)
    parts = []
    for part in ("train", "test"):
        parts.append(Images(*[arrays.get(f"{part}.{name}") for name in _ARRAYS]))
    facts = dict(kept.info["task"])
    called = {by: tuple(words) for by, words in facts.pop("called").items()}
    files = [Opened(**record) for record in kept.info["opened"]]
    task = ImageTask(train=parts[0], test=parts[1], files=files, called=called, **facts)
    vars(task)["digest"] = kept.info["content"]  # not read again, because the store has verified the arrays
    return task
