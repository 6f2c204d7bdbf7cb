"""Several GPUs: assigns them to the jobs of a sweep, under any launcher."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

from knot_runner.config.settings import Settings
from knot_runner.util.files import BusyError, locked


@contextlib.contextmanager
def leased(settings: Settings) -> Iterator[str]:
    """Yield the device of this job and hold it while the job runs: the first of the ``hardware.devices`` with the
    fewest jobs of this machine and ``paths.out``; ``hardware.device`` if that list is empty."""
    devices = settings.hardware.devices
    if not devices:
        yield settings.hardware.device
        return
    folder = Path(settings.paths.out) / ".locks" / "devices"
    with contextlib.ExitStack() as stack:
        yield next(
            device
            for turn in itertools.count()
            for device in devices
            if _taken(stack, folder / f"{socket.gethostname()}-{device.replace(':', '')}-{turn}")
        )


def _taken(stack: contextlib.ExitStack, path: Path) -> bool:
    try:
        stack.enter_context(locked(path, wait=False))
    except BusyError:
        return False
    return True
