"""With which code a record was made: ours, by a digest of its source files, the user's plug-ins, and torch."""

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
#: What of the package cannot change a number: what composes and starts runs, and what shows them. Settings are in the
#: run id, so conf/ (which a wheel carries inside the package) does not count either.
NOT_COUNTED = {
    *("__init__", "__main__", "cli", "composing", "conf", "report", "provenance"),
    *("sweeps", "estimate", "bundles", "engine/tracker"),
    *("data/fetch", "data/preflight", "data/sources"),  # what comes before any run
}
UNKNOWN = "made before code versions were recorded"


@functools.cache
def code_version() -> str:
    """``0.1.0+`` and 12 hex digits over the package's source files that can change numbers; once per process."""
    found = [path for path in PACKAGE_FOLDER.rglob("*.py") if _counts(path)]
    return f"{knot_runner.__version__}+{_digest(PACKAGE_FOLDER, found)}"


def _counts(path: Path) -> bool:
    name = path.relative_to(PACKAGE_FOLDER).with_suffix("").as_posix()
    return not any(name == place or name.startswith(f"{place}/") for place in NOT_COUNTED)


def _digest(folder: Path, files: Iterable[Path]) -> str:
    """12 hex digits over names (from ``folder`` on) and contents."""
    state = hashlib.sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in files):
        content = path.read_bytes()
        state.update(f"{name}\0{len(content)}\0".encode() + content)
    return state.hexdigest()[:12]


@functools.cache
def torch_version() -> str:
    """The installed torch's version without its build (``+cpu``), from its metadata, so that torch is not imported."""
    return _public(importlib.metadata.version("torch"))


def _public(version: str) -> str:
    return version.partition("+")[0]


def plugin_version(plugin: str) -> str | None:
    """12 hex digits over a plug-in's Python file, or all those of a package; None where there is none.

    A dotted name is looked up without importing it, so that asking runs none of the user's code.
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
    """What a record (a result, a stage, a commit) says of the code that made it; ``plugins``: those of the settings."""
    return {
        "code": code_version(),
        "plugins": {plugin: plugin_version(plugin) for plugin in plugins},
        "versions": {"torch": torch_version()},
    }


def code_changes(record: dict[str, Any]) -> list[str]:
    """One line each for what made ``record`` (see :func:`made_by`) and is another now; empty: the same code."""
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
    """``record[key]`` where it is a mapping, else {}: not every record has been checked."""
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def version_text(text: str) -> str:
    """``text`` from a record in one line of printable letters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
