"""Processes: they die with their parent, end cleanly on SIGTERM, and share memory."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from typing import Any

#: Arrays in shared memory begin at multiples of so many bytes, as torch's and numpy's own do.
ALIGNED = 64


def die_with_parent() -> None:
    """End this process when its parent has died, however it died: a killed run leaves no worker behind."""
    threading.Thread(target=_wait, daemon=True).start()


class Ended(RuntimeError):
    """A shared pool or engine was closed while this run waited for it; no error of the run itself."""

    def __init__(self, text: str = "the worker processes have ended") -> None:
        super().__init__(text)


#: Exit code of a process that SIGTERM ended.
TERMINATED = 143
#: Seconds that the actions may take; a job that a sweep ends has GRACE (sweep/task.py) of them.
_GRACE_SECONDS = 10.0
#: Called on SIGTERM, the newest first.
_sigterm_actions: list[Callable[[], object]] = []


@contextlib.contextmanager
def on_sigterm(action: Callable[[], object]) -> Iterator[None]:
    """Inside the block, ``action`` is called if SIGTERM ends this process (see :func:`ended_by_sigterm`).

    For what would otherwise remain: an unfinished tracker, child processes.
    """
    _sigterm_actions.append(action)
    try:
        yield
    finally:
        _sigterm_actions.remove(action)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Inside the block, SIGTERM ends this process with :data:`TERMINATED`, after the actions of :func:`on_sigterm`;
    afterwards the previous handler is restored. In another thread than the main one nothing changes.

    Nothing is raised: an exception at an arbitrary instruction could be caught by whatever library it falls into, or
    leave it half-way. The main thread stops meanwhile, commits are whole at any moment, and locks and workers end with
    the process.
    """
    if threading.current_thread() is not threading.main_thread():  # only that may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _leave(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    late = threading.Timer(_GRACE_SECONDS, os._exit, (TERMINATED,))  # an action may wait for what the main thread holds
    late.daemon = True
    late.start()
    for action in reversed(list(_sigterm_actions)):
        with contextlib.suppress(Exception):
            action()
    os._exit(TERMINATED)


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def prepared(preloaded: list[str]) -> multiprocessing.context.BaseContext:
    """A multiprocessing context: the fork server, which imports ``preloaded`` (of the first call alone) and forks
    each process from its single thread, so that none imports torch for seconds; "spawn" where there is no server."""
    known = multiprocessing.get_all_start_methods()
    method = "forkserver" if "forkserver" in known else "spawn"
    if multiprocessing.get_start_method(allow_none=True) not in (None, *known):
        # a process is told its parent's own method, and without joblib would not know "loky", that of joblib's workers
        multiprocessing.set_start_method(method, force=True)
    context = multiprocessing.get_context(method)
    if method == "spawn":
        return context
    context.set_forkserver_preload(preloaded)
    return context


#: Warning filters belong to the whole process, and runs may be threads of one.
_WARNINGS = threading.RLock()


@contextlib.contextmanager
def warnings_apart(action: str, category: type[Warning] = Warning) -> Iterator[list[warnings.WarningMessage]]:
    """Warnings raised inside the block under the filter (``action``, ``category``), one thread at a time."""
    with _WARNINGS, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action, category)
        yield caught


class Memory:
    """``size`` bytes shared with every process that is started with this object among its arguments.

    Anonymous: no name to clean up, no limit of /dev/shm, gone with its last process. ``map`` is the bytes.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = size
        self._descriptor = _new_file(size) if descriptor is None else descriptor
        self.map = mmap.mmap(self._descriptor, size)

    def close(self) -> None:
        """Close the file descriptor; views of the bytes stay valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __reduce__(self) -> tuple[Callable[..., Memory], tuple[Any, ...]]:
        return _attached, (self.size, reduction.DupFd(self._descriptor))


def aligned(size: int) -> int:
    """``size`` bytes rounded up to whole units of alignment."""
    return -(-size // ALIGNED) * ALIGNED


def _new_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("knot-runner")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _attached(size: int, duplicate: Any) -> Memory:
    return Memory(size, duplicate.detach())
