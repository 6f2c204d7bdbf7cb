"""Connection to a Ray cluster. Ray is imported only on use, because it is an optional extra and slow to import."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from knot_runner.util.errors import UserError, first_line, require_extra
from knot_runner.util.processes import POLL_SECONDS, descendants, is_running, kill_descendants_on_signals, send_signal


def connected(key: str, address: str | None = None) -> ModuleType:
    """Return the module ``ray``, connected to the cluster at ``address`` until this process ends.

    None selects Ray's default: the cluster in the variable ``RAY_ADDRESS``, otherwise a cluster that runs on this
    machine, otherwise a new cluster with a worker per core. A new cluster always ends with this process.

    Raises:
        UserError: The cluster cannot be reached. The message names the setting ``key``.
    """
    require_extra(key, "ray")
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        return ray
    kill_descendants_on_signals()
    watch = f"from knot_runner.util.ray_cluster import kill_after; kill_after({os.getpid()})"
    subprocess.Popen([sys.executable, "-c", watch], start_new_session=True)
    set_handler = signal.signal
    signal.signal = _keep_handler
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as problem:  # Ray raises many types: no cluster, other versions of Ray or Python
        raise UserError(f"no Ray cluster at {address or 'the default address'}: {first_line(problem)}", key) from None
    finally:
        signal.signal = set_handler
    return ray


def kill_after(parent: int) -> None:
    """Wait for the end of process ``parent``, and then kill Ray's remaining processes.

    After ``kill -9``, Ray's agents would otherwise search for their cluster for a minute.
    """
    started: set[int] = set()
    while is_running(parent):
        started = {process for process in started | descendants(parent) if _is_rays(process)}
        time.sleep(POLL_SECONDS)
    send_signal(started, signal.SIGKILL)


def _is_rays(process: int) -> bool:
    """Return whether ``process`` belongs to Ray: an agent, a worker (``ray::NAME``), or a program of its package."""
    try:
        line = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
    return line.startswith(b"ray::") or b"/ray/" in line


def _keep_handler(number: int, handler: object, set_handler: Callable[..., object] = signal.signal) -> object:
    """Keep the current signal handler, because Ray's SIGTERM handler ends this process with a different exit code.

    Only requests to ignore a signal take effect.
    """
    if handler is signal.SIG_IGN:
        return set_handler(number, handler)
    return signal.getsignal(number)
