"""The exception that a user's mistake raises: one line that names the key or file and what would be right; and the one
of training that diverges."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """Bad input (config, data, checkpoint, hardware). Its text is the whole message: exit code 2, no traceback."""

    exit_code = 2


class DiskFullError(UserError):
    """A file does not fit on its disk: not an error of the input; the same command resumes once there is space."""

    exit_code = 1


class ReadOnlyError(UserError):
    """A folder cannot be written to, though it may well be read."""


class DivergedError(Exception):
    """Training diverged: a loss or weight is not finite. The step is discarded, and a sweep goes on. ``where``: round
    (from 1) and client, for the record."""

    def __init__(self, text: str, **where: Any) -> None:
        super().__init__(text)
        self.where = where


#: More names than these are not listed in a message that can say where they are listed.
MAX_NAMES = 30


def closest(word: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that is spelled most like ``word``, upper and lower case aside; None if none is alike.

    A name in a folder (``kd/mnist``) is compared without the folder, too, and as ``kd_mnist``.
    """
    names = {}
    for name in map(str, known):
        for spelling in (name.rpartition("/")[2], name.replace("/", "_")):
            names[spelling.casefold()] = name
    typed = str(word).casefold().replace("/", "_")
    close = difflib.get_close_matches(typed, sorted(names), n=1, cutoff=0.6)
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


def require_extra(key: str, package: str) -> None:
    """Raises :class:`UserError`, naming the setting ``key`` and what to type, where ``package`` is not installed, which
    an extra of pyproject of the same name installs."""
    if importlib.util.find_spec(package) is None:
        raise UserError(not_installed(key, package))


def not_installed(key: str, extra: str) -> str:
    """One line for the setting ``key``, which needs the extra."""
    return f"{key}: its package is not installed; pip install 'knot_runner[{extra}]' adds it"
