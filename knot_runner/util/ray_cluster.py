"""Ray, imported on use: it is an extra, and takes seconds to import and to connect."""

from __future__ import annotations

import importlib
import signal
import threading
from types import ModuleType
from typing import Any

from knot_runner.util.errors import UserError, first_line, require_extra
from knot_runner.util.processes import act_on_signals


def connected(key: str, address: str | None = None) -> ModuleType:
    """The module ``ray``, connected until this process ends to the cluster at ``address``.

    None means Ray's default: the cluster of the variable ``RAY_ADDRESS``, else one running on this machine, else a new
    one for this process, with a worker per core. A signal that ends this process disconnects it first, so that nothing
    of a cluster of its own is left. Raises :class:`UserError` naming the setting ``key``.
    """
    require_extra(key, "ray")
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        return ray
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as problem:  # of whatever kind: no cluster, another version of Ray or of Python there
        raise UserError(f"Ray has no cluster at {address or 'hand'}: {first_line(problem)}", key) from None
    finally:
        if threading.current_thread() is threading.main_thread():  # Ray sets a handler of its own
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
    act_on_signals(ray.shutdown)
    return ray
