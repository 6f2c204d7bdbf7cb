"""Standard output and error streams whose failures do not end a run.

If a terminal, pipe or full disk refuses output, the output is dropped and the problem is reported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

#: Exit codes of a command if its output could not be printed, and if the reader of its output closed the pipe.
NOT_PRINTED = 1
NOT_READ = 141


class Stream:
    """A text stream that raises no error if output fails.

    ``problem`` is the first error; None if all output succeeded.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.problem: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write ``text``. Characters that the encoding does not support become question marks."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        shown = text.encode(encoding, "replace").decode(encoding)
        self._attempt(lambda: self._stream.write(shown))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all ``lines`` in order."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream."""
        self._attempt(self._stream.flush)

    def _attempt(self, call: Callable[[], object]) -> None:
        if self.problem is not None:
            return
        try:
            call()
        except OSError as problem:
            # A run takes hours and its records are files, so a line that cannot be printed must not end the run.
            self.problem = problem
            self._discard()

    def _discard(self) -> None:
        """Discard buffered output, because Python would report an error for it at exit."""
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), self._stream.fileno())


def is_open(descriptor: int) -> bool:
    """Return whether a file descriptor is open."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def lasting() -> Iterator[Stream]:
    """Inside the block, replace ``sys.stdout`` and ``sys.stderr`` by :class:`Stream` objects. Yield the new stdout.

    If a stream is closed, for example by ``>&-`` in a shell, its output is dropped.
    """
    for number in (0, 1, 2):
        # Otherwise, the next opened file would get this descriptor, and printed text would go into that file.
        if not is_open(number):
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this descriptor
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        out = Stream(sys.stdout or nowhere)
        err = Stream(sys.stderr or nowhere)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield out
            err.flush()


def print_safely(out: Stream, code: int) -> int:
    """Print the buffered output in ``out``, and return the exit code with which the process must end.

    If ``code`` is 0 and output was dropped, the exit code is an error code. Otherwise, the exit code is ``code``.
    """
    out.flush()
    if out.problem is None or code:
        return code
    if out.problem.errno == errno.EPIPE:  # the reader of our output has closed the pipe
        return NOT_READ
    why = out.problem.strerror or out.problem
    print(f"knot-runner: output could not be printed ({why}). Repeat the command to show it", file=sys.stderr)
    return NOT_PRINTED
