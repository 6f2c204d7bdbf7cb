"""Plug-ins: Python files or modules of the user's own that add to our tables."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from pathlib import Path

from knot_runner.util.errors import UserError

_ONE_AT_A_TIME = threading.RLock()


def load_plugins(plugins: list[str]) -> None:
    """Import modules (dotted names) or files (``*.py``) that add to the tables of losses, weightings, ...

    Raises :class:`UserError` naming the plug-in.
    """
    with _ONE_AT_A_TIME:  # a run that is a thread of a sweep must not find a plug-in that another is still importing
        for plugin in plugins:
            _load(plugin)


def _load(plugin: str) -> None:
    name = Path(plugin).stem if plugin.endswith(".py") else plugin
    if name in sys.modules:
        return
    try:
        if plugin.endswith(".py"):
            spec = importlib.util.spec_from_file_location(name, Path(plugin).resolve())
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            importlib.import_module(plugin)
    except (ImportError, OSError, SyntaxError) as problem:
        sys.modules.pop(name, None)
        raise UserError(f"plugins: {plugin}: cannot be imported ({problem})") from None
