"""Standard output and error that end no run: what a terminal, a pipe or a full disk does not take is dropped, and said.

A run takes hours and its records are files, so a line that cannot be printed must not cost them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

#: How a terminal that knows ASCII alone shows what we print; what is not here becomes a question mark.
PLAIN_CHARACTERS = str.maketrans(
    {"·": "-", "±": "+-", "–": "-", "—": "-", "…": "...", "×": "x", "→": "->", "≤": "<=", "≥": ">=", "²": "2", "’": "'"}
    | dict.fromkeys("─━═╌╍╸╺╴╶┄┅", "-")
    | dict.fromkeys("│┃║┆┇╎╏", "|")
    | dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰┏┓┗┛┡┩╇", "+")
    | dict.fromkeys("█▉▊▋▌▍▎▏", "#")
)
#: What a command returns that made all it was asked for but could not print it; or whose reader had seen enough.
NOT_PRINTED, NOT_READ = 1, 141


class Stream:
    """A text stream that raises nothing; ``problem`` is why its output is dropped, None while it is not."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.problem: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As a file's, in the letters that the stream's encoding has."""
        self._attempt(lambda: self._stream.write(_encodable(text, getattr(self._stream, "encoding", None))))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """As a file's."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """As a file's."""
        self._attempt(self._stream.flush)

    def _attempt(self, call: Any) -> None:
        if self.problem is not None:
            return
        try:
            call()
        except OSError as problem:
            self.problem = problem
            self._discard()

    def _discard(self) -> None:
        """Send what is still in the buffer nowhere: Python would complain of it when it ends."""
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), self._stream.fileno())


def _encodable(text: str, encoding: str | None) -> str:
    """``text`` less the letters that ``encoding`` has not; a file's name may hold some that no encoding has."""
    try:
        text.encode(encoding or "utf-8")
        return text
    except UnicodeEncodeError:
        return text.translate(PLAIN_CHARACTERS).encode(encoding or "utf-8", "replace").decode(encoding or "utf-8")


def is_open(descriptor: int) -> bool:
    """Whether a file descriptor leads anywhere."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def lasting() -> Iterator[Stream]:
    """Within, ``sys.stdout`` (which is given) and ``sys.stderr`` are :class:`Stream`; afterwards what they were.

    One that was closed (``>&-``) leads nowhere: the next file that is opened would else have its number, and be
    written to by whoever prints.
    """
    for number in (0, 1, 2):
        if not is_open(number):
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
    with contextlib.ExitStack() as stack:
        before = sys.stdout, sys.stderr
        stack.callback(_restore, *before)
        standing = [
            Stream(each or stack.enter_context(open(os.devnull, "w", encoding="utf-8")))  # noqa: PTH123
            for each in before
        ]
        sys.stdout, sys.stderr = standing
        yield standing[0]
        standing[1].flush()


def _restore(out: TextIO, err: TextIO) -> None:
    sys.stdout, sys.stderr = out, err


def print_safely(out: Stream, code: int) -> int:
    """The exit code of a command that ends with ``code``, after its last output; says what could not be printed."""
    out.flush()
    if out.problem is None or code:
        return code
    if out.problem.errno == errno.EPIPE:  # whoever read our output has seen enough
        return NOT_READ
    why = out.problem.strerror or out.problem
    print(f"knot-runner: output could not be printed ({why}); the same command shows it again", file=sys.stderr)
    return NOT_PRINTED
