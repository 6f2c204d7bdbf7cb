"""Plug-ins: Python files or modules of the user's own that add to our tables.

A file's path is relative to the YAML file that names it, or, on a command line, to the current folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from knot_runner.util.errors import UserError

#: Stands between the folder of the YAML file that names a plug-in and the path that is written there.
BESIDE = "/./"
_ONE_AT_A_TIME = threading.RLock()


def load_plugins(plugins: Sequence[str]) -> None:
    """Import modules (dotted names) or files (``*.py``) that add to the tables of losses, weightings, ...

    Raises :class:`UserError` naming the plug-in, and where it was looked for.
    """
    with _ONE_AT_A_TIME:  # a run in a thread of a sweep must not find a plug-in that another thread is still importing
        for plugin in plugins:
            _load(plugin)


def found_from(folder: Path, plugin: str) -> str:
    """Returns a plug-in named in a YAML file in ``folder`` in a form that is found from any folder."""
    is_relative = plugin.endswith(".py") and "${" not in plugin and not Path(plugin).is_absolute()
    return f"{folder}{BESIDE}{plugin}" if is_relative else plugin


def as_written(plugin: str) -> str:
    """Returns a plug-in as written in its YAML file, whatever the file's folder: this form enters the run id."""
    return plugin.rpartition(BESIDE)[2]


def _load(plugin: str) -> None:
    path = Path(plugin).resolve()
    name = path.stem if plugin.endswith(".py") else plugin
    if name in sys.modules:
        return
    if plugin.endswith(".py") and not path.is_file():
        where = f"; it was looked for as {path}" if as_written(plugin) != str(path) else ""
        raise UserError(f"plugins: {as_written(plugin)}: is not there{where}")
    try:
        if plugin.endswith(".py"):
            spec = importlib.util.spec_from_file_location(name, path)
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            importlib.import_module(plugin)
    except (ImportError, OSError, SyntaxError) as problem:
        sys.modules.pop(name, None)
        where = "" if plugin.endswith(".py") else "; modules are looked for on Python's path, and a file ends in .py"
        raise UserError(f"plugins: {plugin}: cannot be imported ({problem}){where}") from None
