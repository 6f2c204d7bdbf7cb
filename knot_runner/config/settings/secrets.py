"""API keys and passwords in environment variables must not get into records, which are shared with others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from knot_runner.util.errors import UserError

#: Names of environment variables that hold secrets, and the least length of one that is looked for.
SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
MIN_LENGTH = 8


def refuse_secrets(config: dict[str, Any]) -> None:
    """Raises :class:`UserError` naming the key of ``config`` (plain) with a value of such a variable, however it came
    there (``${oc.env:WANDB_API_KEY}``): config.yaml and trackers would store it. The message does not contain the
    value."""
    secrets = {
        value: name for name, value in os.environ.items() if SECRET_NAMES.search(name) and len(value) >= MIN_LENGTH
    }
    if not secrets:
        return
    for key, text in _texts(config, ""):
        for value, name in secrets.items():
            if value in text:
                raise UserError(
                    f"{key}: holds the value of the environment variable {name}, which records and trackers would "
                    "keep; what needs it reads the environment by itself"
                )


def _texts(node: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yields dotted key and text of every string in ``node``, including the names of keys."""
    if isinstance(node, dict):
        for key, value in node.items():
            own = f"{where}.{key}" if where else str(key)
            yield where or "config", str(key)
            yield from _texts(value, own)
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _texts(value, f"{where}[{number}]")
    elif isinstance(node, str):
        yield where, node
