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


#: More names than these are not listed in a message that can say where they are listed.
MAX_NAMES = 30


def closest(word: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that is spelled most like ``word``, upper and lower case aside; None if none is alike."""
    names = {str(name).casefold(): str(name) for name in known}
    close = difflib.get_close_matches(str(word).casefold(), sorted(names), n=1, cutoff=0.6)
    return names[close[0]] if close else None


def nearest(word: str, known: Iterable[str], listed_by: str = "") -> str:
    """``" (did you mean 'x'?)"`` for the closest of ``known``, else the list of ``known``.

    Ends every "there is no such ..." message, so that a typo is easy to mend. ``listed_by``: the command that lists
    them, named in place of more than :data:`MAX_NAMES`.
    """
    names = sorted(str(name) for name in known)
    close = closest(word, names)
    if close is not None:
        return f" (did you mean '{close}'?)"
    if listed_by and len(names) > MAX_NAMES:
        return f" (there are {len(names)}: '{listed_by}' lists them)"
    return f" (there is: {', '.join(names)})" if names else ""


def first_line(problem: BaseException) -> str:
    """Returns the first line of an exception's text; the name of its class where the text is empty."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
