"""Child processes that end when their parent process ends, and cleanup on signals."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, reduction, spawn
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from resource import RLIMIT_DATA, getrlimit, setrlimit
from typing import Any, TextIO

from knot_runner.util.streams import is_open

#: Seconds between two checks whether a process other than the direct parent still runs.
POLL_SECONDS = 0.5


def cores() -> int:
    """Return the number of CPU cores available to this process. A cluster job may have fewer cores than its machine."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def memory_limit(gigabytes: int) -> Iterator[None]:
    """Inside the block, limit the memory of this process and of child processes to ``gigabytes`` GB per process."""
    before = getrlimit(RLIMIT_DATA)
    setrlimit(RLIMIT_DATA, (gigabytes * 10**9, before[1]))
    try:
        yield
    finally:
        setrlimit(RLIMIT_DATA, before)


def begin_child(parent: int | None = None) -> None:
    """Make this process ignore Ctrl-C and end when its parent ends. Call this function first in a new process.

    Args:
        parent: Process id of the parent, on this machine. By default, the parent is the process that started this
            process with multiprocessing.
    """

    def wait() -> None:
        if parent is None:
            multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
        else:
            while is_running(parent):
                time.sleep(POLL_SECONDS)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=wait, daemon=True).start()


def is_running(process: int) -> bool:
    """Return whether a process with the id ``process`` exists and is not a zombie."""
    return Path(f"/proc/{process}/exe").exists()  # does not exist for a zombie


def redirect_output(file: TextIO) -> None:
    """Redirect this process's standard output and error to ``file``. Output of native code is redirected, too."""
    for stream in (1, 2):
        os.dup2(file.fileno(), stream)


#: Signals that end a command: Ctrl-C, ``kill``, a closed terminal.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds that the actions of :func:`on_signal` may take, and seconds that a terminated process may take to end.
_ACTION_SECONDS = 10.0
GRACE_SECONDS = 5.0
#: Actions to call on a signal, the newest first.
_signal_actions: list[Callable[[], object]] = []


@contextlib.contextmanager
def on_signal(action: Callable[[], object]) -> Iterator[None]:
    """If a signal ends this process inside the block, call ``action`` first.

    The signal must also arrive inside a block of :func:`ended_by_signals`. Otherwise, ``action`` is not called.
    """
    _signal_actions.append(action)
    try:
        yield
    finally:
        _signal_actions.remove(action)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new temporary folder, which is deleted at the end of the block or on a signal."""
    with (
        tempfile.TemporaryDirectory(prefix="knot-runner-", ignore_cleanup_errors=True) as folder,
        on_signal(functools.partial(shutil.rmtree, folder, ignore_errors=True)),
    ):
        yield Path(folder)


@contextlib.contextmanager
def ended_by_signals(restored: bool = True) -> Iterator[None]:
    """Inside the block, SIGINT, SIGTERM and SIGHUP end this process with exit code 128 plus the signal number.

    The actions of :func:`on_signal` are called first. Ignored signals stay ignored. In threads other than the main
    thread, the block changes nothing. The signal handlers raise no exception. Ending the process at any point is safe,
    because checkpoints are written atomically.

    Args:
        restored: Whether the previous handlers are restored after the block.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    caught = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, _leave) for number in caught]
    try:
        yield
    finally:
        for number, handler in zip(caught, before, strict=True) if restored else ():
            signal.signal(number, handler or signal.SIG_DFL)


# The handler raises no exception: a library could catch the exception, or be left in an inconsistent state.
def _leave(number: int, frame: object) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    code = 128 + number
    # an action may need a lock that the main thread holds
    late = threading.Timer(_ACTION_SECONDS, os._exit, (code,))
    late.daemon = True
    late.start()
    for action in reversed(list(_signal_actions)):
        with contextlib.suppress(Exception):
            action()
    os._exit(code)


def end_process(process: BaseProcess) -> None:
    """Terminate ``process``. If it still runs after ``GRACE_SECONDS``, kill it."""
    process.terminate()
    process.join(GRACE_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()


@contextlib.contextmanager
def ended_along(process: BaseProcess) -> Iterator[None]:
    """End ``process`` if an exception or a signal ends the block."""
    try:
        with on_signal(functools.partial(end_process, process)):
            yield
    except BaseException:
        end_process(process)
        raise


def start_process(
    context: BaseContext, target: Callable[..., None], *arguments: object, daemon: bool = False
) -> tuple[BaseProcess, Connection]:
    """Start a child process that calls ``target(pipe, *arguments)``. Return the child and the parent's end of the pipe.

    Raises:
        OSError: The system cannot start a process.
    """
    pipe, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=daemon)
    process.start()
    theirs.close()
    return process, pipe


def prepared(preloaded: list[str]) -> BaseContext:
    """Return the multiprocessing context of the fork server.

    The server imports the modules in ``preloaded`` when it starts, so its child processes need not import them. Later
    calls do not change the modules of a running server.
    """
    if multiprocessing.get_start_method(allow_none=True) not in (None, *multiprocessing.get_all_start_methods()):
        # a process inherits the start method "loky" of joblib's workers, which is unknown without joblib
        multiprocessing.set_start_method("forkserver", force=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["knot_runner.util.fork_server", *preloaded])
    _go_on_with_server(preloaded)
    return context


def begin_server(preloaded: list[str]) -> None:
    """Start the fork server (:func:`prepared`) early, so that its imports run in parallel with this process."""
    prepared(preloaded)
    with contextlib.suppress(OSError):  # starting a process reports this error again
        _server().ensure_running()


#: Modules that this process had imported when it was forked.
_born_with: frozenset[str] = frozenset()
#: Whether this process has already decided between the fork server of its parent and a new server.
_has_server = False


def _note_imports() -> None:
    global _born_with, _has_server
    _born_with = frozenset(sys.modules)
    _has_server = False


os.register_at_fork(after_in_child=_note_imports)


def _go_on_with_server(preloaded: list[str]) -> None:
    """Let a forked process reuse the server that forked it, if this server has imported ``preloaded``.

    multiprocessing intends this, but a forked process does not know the running server. It would start another server
    and import torch again, which takes seconds for each job of a sweep with workers.
    """
    global _has_server
    asks_with_key = sys.version_info >= (3, 14)  # a forked process does not have this key
    forked = forkserver.get_inherited_fds() is not None
    if forked and not asks_with_key and not _has_server and _born_with.issuperset(preloaded):
        _server().ensure_running = lambda: None
    _has_server = True


def _server() -> Any:
    """Return this process's client of multiprocessing's fork server."""
    return forkserver.ensure_running.__self__


class Surroundings:
    """The environment variables and the standard streams of the process that creates this object.

    A process forked by the fork server has the environment and the streams of the server. To replace both, pass this
    object to the process as an argument. Then call :meth:`adopt` in the process.
    """

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._streams: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        streams = {stream: reduction.DupFd(stream) for stream in (1, 2) if is_open(stream)}
        return {"_environment": self._environment, "_streams": streams}

    def adopt(self) -> None:
        """Replace the environment variables and standard streams of the calling process with those of this object."""
        os.environ.clear()
        os.environ.update(self._environment)
        for stream, sent in self._streams.items():
            descriptor = sent.detach()
            if descriptor != stream:
                os.dup2(descriptor, stream)
                os.close(descriptor)


@contextlib.contextmanager
def main_left_alone() -> Iterator[None]:
    """Inside the block, let new processes start without an import of the user's ``__main__``.

    By default, multiprocessing imports ``__main__`` in each process. Such an import runs the user's script again.
    """
    prepared = spawn.get_preparation_data

    def without_main(name: str) -> dict[str, Any]:
        return {key: value for key, value in prepared(name).items() if not key.startswith("init_main_from")}

    spawn.get_preparation_data = without_main
    try:
        yield
    finally:
        spawn.get_preparation_data = prepared
