"""The one exception a user's mistake raises: one line that names the key or file and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input (config, data, checkpoint, hardware). Its text is the whole message: exit code 2, no traceback."""

    exit_code = 2


class DiskFullError(UserError):
    """A file does not fit on its disk: not an error of the input; the same command resumes once there is space."""

    exit_code = 1


class ReadOnlyError(UserError):
    """A folder cannot be written to, though it may well be read."""


def nearest(word: str, known: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the closest of ``known``, else the list of ``known``.

    Ends every "there is no such ..." message, so that a typo is easy to mend.
    """
    names = sorted(str(name) for name in known)
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    if close:
        return f" (did you mean '{close[0]}'?)"
    return f" (there is: {', '.join(names)})" if names else ""


def first_line(problem: BaseException) -> str:
    """Returns the first line of an exception's text; the name of its class where the text is empty."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
