"""What all worker processes share."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading


def die_with_parent() -> None:
    """End this process when its parent has died, however it died: a killed run leaves no worker behind."""
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
