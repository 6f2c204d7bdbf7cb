"""Errors and log messages.

A :class:`UserError` reports a user's mistake; a :class:`DivergedError` reports that training diverged. The message of a
user error is one line with the key or file, the problem, and how to fix it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


class UserError(Exception):
    """Wrong input, such as an invalid setting or a damaged file. The command prints the message and exits with code 2.

    Args:
        problem: What is wrong. Without other arguments, this is the whole message.
        key: The setting, option or file to name at the beginning of the message.
        value: The wrong value of ``key``, such as an unknown name.
        allowed: The allowed names. The message suggests a similar name.
        listed_by: The command that lists the allowed names.
        hint: What to do, as a sentence.
    """

    exit_code = 2

    def __init__(
        self,
        problem: str,
        key: str | Path = "",
        value: str = "",
        allowed: Iterable[str] = (),
        listed_by: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(problem)
        self.key, self.value, self.allowed, self.listed_by, self.hint = key, value, tuple(allowed), listed_by, hint

    def __str__(self) -> str:
        text: str = self.args[0]
        if self.key and self.value:
            text = f"{self.key}={self.value}: {text}"
        elif self.key:
            text = f"{self.key}: {text}"
        if self.allowed:
            text += nearest(self.value, self.allowed, self.listed_by)
        if self.hint:
            text += f". {self.hint}"
        return text


class Misfit(UserError):
    """Two choices of the user are incompatible.

    Args:
        first: The first choice as the user typed it, such as ``task=sa``.
        second: The second choice as the user typed it.
        why: The reason, in words that do not repeat the two choices.
        hint: What to do, as a sentence.
    """

    def __init__(self, first: str, second: str, why: str, hint: str = "") -> None:
        super().__init__(f"{first} and {second} cannot be combined: {why}", hint=hint)


class DiskError(UserError):
    """A disk is full or fails. Once the disk works, the user can repeat the same command to resume."""

    exit_code = 1


class ReadOnlyError(UserError):
    """A folder cannot be written to."""


class DivergedError(Exception):
    """Training diverged: a loss or weight is not finite.

    ``where`` holds the place of the divergence, such as the round (counted from 1) and the client.
    """

    def __init__(self, text: str, **where: Any) -> None:
        super().__init__(text)
        self.where = where


#: Maximum number of names that a message lists.
MAX_NAMES = 30
#: One or several names in this project -> names in Flower, PFLlib, RepDistiller or a paper.
PEER_NAMES = {
    "batch_size": "B lbs local_bs",
    "clients_per_round": "C fraction_fit frac join_ratio",
    "local_epochs": "E epochs ls local_ep",
    "rounds": "R global_rounds num_rounds num_server_rounds",
    "temperature": "T tau kd_T",
    "milestones": "lr_decay",
    "num_clients": "K num_users",
    "lr": "learning_rate local_learning_rate eta server_learning_rate",
    "lambda_": "lam lamda",
    "alpha": "beta",
    "weight_decay prox": "wd",
}
_LIKELY_NAMES = {
    "batch_size": "batch", "clients_per_round": "participants", "num_clients": "clients", "embedded_clients": "count",
    "max_examples": "limit", "checkpoints": "saves", "num_workers": "workers", "data_dir": "data", "output_dir": "out",
    "server_distillation": "distil",
}  # fmt: skip
#: Name that users may try for a setting -> one or several names in this project.
OTHER_NAMES = {
    other: name for table in (PEER_NAMES, _LIKELY_NAMES) for name, others in table.items() for other in others.split()
}


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the name in ``known`` that is most similar to ``word``; None if no name is similar.

    A name is similar if its edit distance is at most 2, or if it is the only name that begins with ``word``. Case is
    ignored. A name in a folder (``kd/mnist``) is also compared without the folder.
    """
    names = {}
    for name in map(str, known):
        names[name.casefold()] = names[name.rpartition("/")[2].casefold()] = name
    typed = word.casefold()
    distances = {name: _distance(typed, name) for name in names}
    near = min(distances, key=distances.__getitem__, default="")
    if near and distances[near] <= min(2, len(typed) // 2):
        return names[near]
    beginning = {names[name] for name in names if typed and name.startswith(typed)}
    if len(beginning) == 1:
        return beginning.pop()
    return None


def _distance(a: str, b: str) -> int:
    """Return the edit distance: the smallest number of letters inserted, deleted, replaced or swapped."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a):
        earlier = before
        before = row
        row = [i + 1]
        for j, other in enumerate(b):
            row.append(min(before[j + 1] + 1, row[j] + 1, before[j] + (letter != other)))
            if i and j and letter == b[j - 1] and other == a[i - 1]:
                row[-1] = min(row[-1], earlier[j - 1] + 1)
    return row[-1]


def nearest(word: str, known: Iterable[str], listed_by: str = "") -> str:
    """Return a text that suggests the known name nearest to ``word``. The text is the end of an error message.

    If a name in ``known`` is similar (:func:`closest`), the text is ``" (did you mean 'x'?)"``. Otherwise, the text
    names ``listed_by``, a command that lists the known names. Without such a command, the text lists the names
    if there are at most ``MAX_NAMES``.
    """
    names = sorted(map(str, known))
    others = [name for name in OTHER_NAMES.get(str(word), "").split() if name in names]
    close = others[0] if others else closest(str(word)[:80], names)
    if close is not None:
        return f" (did you mean '{close}'?)"
    if listed_by:
        return f". Run '{listed_by}' to list the names. To add a name, use --config-dir=DIR or plugins=[FILE]"
    if 0 < len(names) <= MAX_NAMES:
        return f" (choose from {', '.join(names)})"
    return ""


def unknown(key: str, value: str, known: Iterable[str], listed_by: str = "") -> UserError:
    """Return the error for the unknown name ``value`` in the setting ``key``."""
    return UserError("unknown name", key, value, known, listed_by)


def first_line(problem: BaseException) -> str:
    """Return the first line of an exception's text. If the text is empty, return the name of the exception's class."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]


def require_extra(key: str, package: str) -> None:
    """Check that ``package`` is installed.

    Raises:
        UserError: ``package`` is not installed. The message names the setting ``key`` and the install command.
    """
    if importlib.util.find_spec(package) is None:
        raise not_installed(key, package)


def not_installed(key: str, extra: str) -> UserError:
    """Return the error for optional packages that are not installed.

    Args:
        key: The setting that needs the packages.
        extra: The name in brackets in ``pip install 'knot_runner[NAME]'``.
    """
    return UserError("package not installed", key, hint=f"Run this command: pip install 'knot_runner[{extra}]'")


# ---------------------------------------------------------------------------------------------------------- messages


#: The only logger of the program.
LOGGER = logging.getLogger("knot_runner")


class _Lines(logging.Handler):
    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__(logging.INFO)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            text = f"knot-runner: {text}"
        self._write(text)


def print_on_stderr(text: str) -> None:
    """Print ``text`` as one line to ``sys.stderr``."""
    print(text, file=sys.stderr)


@contextlib.contextmanager
def messages_to(write: Callable[[str], object]) -> Iterator[None]:
    """Inside the block, pass each log message to ``write`` instead of to the logger's handlers.

    The text of a warning then begins with ``knot-runner:``.
    """
    before = LOGGER.handlers, LOGGER.level, LOGGER.propagate
    LOGGER.handlers = [_Lines(write)]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.handlers = before[0]
        LOGGER.propagate = before[2]
        LOGGER.setLevel(before[1])


def counted(count: int, name: str) -> str:
    """Return ``count`` and the noun ``name``, in the singular or plural: ``1 run``, ``3 runs``."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
