"""Messages of the logger ``knot_runner`` on a terminal, bare lines as if printed."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

#: The program's one logger.
LOGGER = logging.getLogger("knot_runner")


class _Lines(logging.Handler):
    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__(logging.INFO)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(("knot-runner: " if record.levelno >= logging.WARNING else "") + record.getMessage())


def print_on_stderr(text: str) -> None:
    """Prints one line on the current standard error."""
    print(text, file=sys.stderr)


@contextlib.contextmanager
def messages_to(write: Callable[[str], object]) -> Iterator[None]:
    """Inside the block, ``write`` receives each message instead of the logger's handlers; a warning begins with our
    name."""
    before = LOGGER.handlers, LOGGER.level, LOGGER.propagate
    LOGGER.handlers, LOGGER.propagate = [_Lines(write)], False
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.handlers, LOGGER.propagate = before[0], before[2]
        LOGGER.setLevel(before[1])


def counted(count: int, name: str) -> str:
    """``1 run``, ``3 runs``: ``count`` and the ``name`` of what is counted."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
