"""Packages that only some runs need: extras of pyproject, imported where they are used."""

from __future__ import annotations

import importlib.util

from knot_runner.util.errors import UserError


def require_extra(key: str, package: str) -> None:
    """Raises :class:`UserError`, naming the setting ``key`` and what to type, where ``package`` is not installed, which
    an extra of the same name installs."""
    if importlib.util.find_spec(package) is None:
        raise UserError(not_installed(key, package))


def not_installed(key: str, extra: str) -> str:
    """One line for the setting ``key``, which needs the extra."""
    return f"{key}: its package is not installed; pip install 'knot_runner[{extra}]' adds it"
