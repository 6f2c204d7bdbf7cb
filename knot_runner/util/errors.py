"""The one exception a user's mistake raises: one line that names the key or file and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input (config, data, checkpoint, hardware). Its text is the whole message: exit code 2, no traceback."""

    exit_code = 2


class DiskFullError(UserError):
    """A file does not fit on its disk: not the input's fault, and the same command goes on once there is space."""

    exit_code = 1


class ReadOnlyError(UserError):
    """A folder cannot be written to, though it may well be read."""


def nearest(word: str, known: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the closest of ``known``, else the list of what there is.

    Used at the end of every "there is no such ..." message, so that a typo is mended in one look.
    """
    names = sorted(str(name) for name in known)
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    if close:
        return f" (did you mean '{close[0]}'?)"
    return f" (there is: {', '.join(names)})" if names else ""


def first_line(problem: BaseException) -> str:
    """Of what an exception says; the name of its class where it says nothing."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
