"""Versions of the code that made a record: ours (a digest of its source files), the user's plug-ins, and torch."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import knot_runner

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
#: Parts of the package that cannot change a number: those that compose, start and report runs. Settings are in the run
#: id, so conf/ (inside the package in a wheel) does not count either.
NOT_COUNTED = {
    *("__init__", "__main__", "cli", "composing", "conf", "report", "provenance"),
    *("sweeps", "estimate", "bundles", "engine/tracker"),
    *("data/fetch", "data/preflight", "data/sources"),  # used before any run
}
#: Endings of source files: Python, and what the native engine compiles.
SOURCES = (".py", ".cpp", ".h")
UNKNOWN = "made before code versions were recorded"


@functools.cache
def code_version() -> str:
    """Our code version: ``0.1.0+`` and a 12-digit hex digest of the source files that can change numbers; computed once
    per process."""
    found = [path for path in PACKAGE_FOLDER.rglob("*") if path.suffix in SOURCES and _counts(path)]
    return f"{knot_runner.__version__}+{_digest(PACKAGE_FOLDER, found)}"


def _counts(path: Path) -> bool:
    name = path.relative_to(PACKAGE_FOLDER).with_suffix("").as_posix()
    return not any(name == place or name.startswith(f"{place}/") for place in NOT_COUNTED)


def _digest(folder: Path, files: Iterable[Path]) -> str:
    """12-digit hex digest of names (relative to ``folder``) and contents."""
    state = hashlib.sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in files):
        content = path.read_bytes()
        state.update(f"{name}\0{len(content)}\0".encode() + content)
    return state.hexdigest()[:12]


@functools.cache
def torch_version() -> str:
    """Version of the installed torch without its build (``+cpu``); read from metadata, without importing torch."""
    return _public(importlib.metadata.version("torch"))


def _public(version: str) -> str:
    return version.partition("+")[0]


def plugin_version(plugin: str) -> str | None:
    """12-digit hex digest of a plug-in's Python file, or of all files of a package; None if it is not found.

    A dotted name is located without importing it, so none of the user's code runs.
    """
    try:
        if plugin.endswith(".py"):
            return _digest(Path(plugin).parent, [Path(plugin)])
        top, *rest = plugin.split(".")
        spec = importlib.util.find_spec(top)
        if spec is None or spec.origin is None:
            return None
        home = Path(spec.origin).parent
        if not spec.submodule_search_locations:
            return _digest(home, [Path(spec.origin)])
        place = home.joinpath(*rest)
        return _digest(home, place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")])
    except (OSError, ImportError, ValueError):
        return None


def made_by(plugins: Iterable[str]) -> dict[str, Any]:
    """Code versions to store in a record (a result, a stage, a commit); ``plugins``: those of the settings."""
    return {
        "code": code_version(),
        "plugins": {plugin: plugin_version(plugin) for plugin in plugins},
        "versions": {"torch": torch_version()},
    }


def code_changes(record: dict[str, Any]) -> list[str]:
    """One line per code version in ``record`` (see :func:`made_by`) that differs from the current one; [] if none."""
    was, found = record.get("code"), []
    if was is None:
        found.append(UNKNOWN)
    elif was != code_version():
        found.append(f"code {was}, now {code_version()}")
    for plugin, version in table_of(record, "plugins").items():
        now = plugin_version(plugin)
        if now != version:
            found.append(f"plug-in {plugin} {'is gone' if now is None else 'changed'}")
    torch = _public(str(table_of(record, "versions").get("torch", torch_version())))
    if torch != torch_version():
        found.append(f"torch {torch}, now {torch_version()}")
    return [version_text(line) for line in found]


def table_of(record: dict[str, Any], key: str) -> dict[str, Any]:
    """``record[key]`` if it is a mapping, else {}, since records may be unchecked."""
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def version_text(text: str) -> str:
    """``text`` from a record as one line of printable characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
