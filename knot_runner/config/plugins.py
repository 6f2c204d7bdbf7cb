"""Plug-ins: the user's Python files or modules. They add entries to the package's tables (:class:`Table`).

The path of a plug-in file is relative to the folder of the YAML file that names the plug-in. A path on the command line
is relative to the current folder.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from knot_runner.util.errors import UserError

Entry = TypeVar("Entry")

#: Separator between the folder of a YAML file and the path of a plug-in as written in this YAML file.
BESIDE = "/./"
_EXIT_NOW = os._exit
#: Folder with a subfolder for each paper. The rest of the package does not need the papers.
PAPERS = Path(__file__).resolve().parents[1] / "papers"
#: Name of the plug-in that is being loaded; "" for none.
_loading = ""


class Table(UserDict[str, Entry]):
    """A dict from name to entry. Plug-ins add entries by ``TABLE["name"] = entry``.

    A plug-in can replace only its own entries. An entry may also be a string ``knot_runner.MODULE:NAME``. The object
    NAME is then imported when the entry is looked up.

    Args:
        name: Name of the table in messages.
        entries: The package's own entries. ``accept`` does not check them.
        accept: Function ``(where, entry) -> entry`` that checks a plug-in's entry and returns the entry to store.
            ``where`` is the name of the entry in messages. The function raises :class:`UserError` for an invalid entry.
        options: Function from an entry to the class of the entry's settings. For each added entry, this class is
            stored in ``settings``.
        settings: Dict from the name of an entry to the class of the entry's settings.
        papers: Name of the module in which a paper adds entries (:func:`load_papers`). If "", papers add no entries.
        reserved: Names that entries must not have.
    """

    data: dict[str, Any]

    def __init__(
        self,
        name: str,
        entries: Mapping[str, Entry | str],
        accept: Callable[[str, Entry], Entry] = lambda _, entry: entry,
        options: Callable[[Entry], type] | None = None,
        settings: dict[str, type] | None = None,
        papers: str = "",
        reserved: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.name, self._accept, self._options, self._papers = name, accept, options, papers
        if settings is None:
            settings = {}
        self._settings = settings
        self.data.update(entries)
        self._owners = dict.fromkeys([*entries, *reserved], "knot_runner")

    def __setitem__(self, key: str, entry: Entry) -> None:
        where = f"{self.name}[{key!r}]"
        if not isinstance(key, str):
            raise UserError(f"{where}: an entry has no name. Register it under a name")
        if self._owners.get(key, _loading) != _loading:
            raise UserError(f"{where} already exists. Register the new entry under another name")
        if _loading != "knot_runner":
            entry = self._accept(where, entry)
        self.data[key] = entry
        self._owners[key] = _loading
        if self._options is not None:
            self._settings[key] = self._options(entry)

    def __getitem__(self, key: str) -> Entry:
        entry: Entry = super().__getitem__(key)
        if isinstance(entry, str) and entry.startswith("knot_runner."):
            entry = load(entry)
        return entry

    def __contains__(self, key: object) -> bool:
        if key not in self.data:
            load_papers(self._papers)
        return key in self.data

    def __missing__(self, key: str) -> Entry:
        load_papers(self._papers)
        entry: Entry = self.data[key]
        return entry

    def __iter__(self) -> Iterator[str]:
        load_papers(self._papers)
        return iter(self.data)

    def is_built_in(self, key: str) -> bool:
        """Return whether the package itself, rather than a plug-in, added the entry named ``key``."""
        return self._owners.get(key) == "knot_runner"


def load(name: str) -> Any:
    """Import the object ``name``, given as ``package.module:NAME``, and return it."""
    module, attribute = name.split(":")
    return getattr(importlib.import_module(module), attribute)


def expect(where: str, entry: object, kind: type) -> None:
    """Check that ``entry`` is an instance of ``kind``.

    Raises:
        UserError: The entry has another type. The message begins with ``where``, the name of the entry.
    """
    if not isinstance(entry, kind):
        raise UserError(f"{where}: expected a {kind.__name__}, got {_described(entry)}")


def checked(where: str, function: Callable[..., Any], problem: Callable[..., str]) -> Callable[..., Any]:
    """Return a wrapper of ``function``. A call of the wrapper raises :class:`UserError` if the result is invalid.

    Args:
        where: Name of the table's entry in messages.
        function: A plug-in's function.
        problem: Function ``(result, *arguments) -> str`` that describes what is wrong with ``result``, or returns ""
            for a valid result. ``arguments`` are the arguments of the call.

    Raises:
        UserError: ``function`` is not callable.
    """
    if not callable(function):
        raise UserError(f"{_described(function)} is not a function", where)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        if wrong := problem(result, *arguments):
            raise UserError(f"{getattr(function, '__name__', 'the function')}() returned {wrong}", where)
        return result

    return call


def unlike(result: object, kind: type | tuple[type, ...], wanted: str) -> str:
    """Return the text "RESULT instead of WANTED" if ``result`` is not an instance of ``kind``. Otherwise return ""."""
    if isinstance(result, kind):
        return ""
    return f"{_described(result)} instead of {wanted}"


def _described(value: object) -> str:
    if value is None:
        return "None"
    return f"{type(value).__name__} {value!r:.40}"


@contextlib.contextmanager
def no_exit(plugins: Sequence[str]) -> Iterator[None]:
    """Context manager: a call of ``exit`` in the code of ``plugins`` raises :class:`UserError`."""
    if not plugins:
        yield
        return
    process = os.getpid()

    def exit_now(status: int) -> NoReturn:
        if status == 0 and os.getpid() == process:  # forked workers end with os._exit
            raise SystemExit(status)
        _EXIT_NOW(status)

    os._exit = exit_now
    try:
        yield
    except SystemExit as stop:
        # An exit with code 0 would look like success, although the run is not finished.
        names = ", ".join(map(as_written, plugins))
        raise UserError(f"{names}: the code called exit({stop.code}). Raise an exception instead", "plugins") from None
    finally:
        os._exit = _EXIT_NOW


def load_plugins(plugins: Sequence[str]) -> None:
    """Import plug-ins.

    Args:
        plugins: Dotted names of modules, or paths of files (``*.py``).

    Raises:
        UserError: A plug-in cannot be imported. The message names the plug-in.
    """
    for plugin in plugins:
        with _owner(Path(plugin).stem):
            _load(plugin)


@functools.cache
def load_papers(module: str) -> None:
    """Import ``knot_runner/papers/PAPER/MODULE.py`` for every paper that has this file.

    Args:
        module: "settings" for method families and kinds of tasks; "report" for figures, tables and claims; "verbs" for
            verbs of the command line.
    """
    with _owner("knot_runner"):
        for path in sorted(PAPERS.glob(f"*/{module}.py")):
            importlib.import_module(f"knot_runner.papers.{path.parent.name}.{module}")


@contextlib.contextmanager
def _owner(name: str) -> Iterator[None]:
    """Inside the block, new table entries belong to the plug-in ``name``, or to the package if it is "knot_runner"."""
    global _loading
    outer = _loading
    _loading = name
    try:
        yield
    finally:
        _loading = outer


def found_from(folder: Path, plugin: str) -> str:
    """Return ``plugin`` in a form that :func:`load_plugins` can import, whatever the current folder is.

    If ``plugin`` is a relative path, ``folder`` is put before it. Other values, such as names of modules and
    interpolations ``${...}``, are returned unchanged.

    Args:
        folder: Folder of the YAML file that names the plug-in.
        plugin: The plug-in as written in this YAML file.
    """
    if not plugin.endswith(".py") or "${" in plugin or Path(plugin).is_absolute():
        return plugin
    return f"{folder}{BESIDE}{plugin}"


def as_written(plugin: str) -> str:
    """Return ``plugin`` as written in the YAML file, without the folder that :func:`found_from` adds."""
    return plugin.rpartition(BESIDE)[2]


def _load(plugin: str) -> None:
    if not plugin:
        raise UserError("expected a module or a file, got ''", "plugins")
    is_file = plugin.endswith(".py")
    path = Path(plugin).resolve()
    written = as_written(plugin)
    name = plugin
    hint = ". For a file, use a name that ends in .py"
    if is_file:
        name = path.stem
        hint = ""
        if not path.is_file():
            where = f" ({path})"
            if written == str(path):
                where = ""
            raise UserError(f"{written}: file not found{where}", "plugins")
    if name in sys.modules:
        other = Path(getattr(sys.modules[name], "__file__", None) or "built-in")
        if is_file and not (other.is_file() and other.read_bytes() == path.read_bytes()):
            raise UserError(f"{written}: another module is named {name} ({other}). Rename the file", "plugins")
        return
    try:
        with no_exit([plugin]):
            if is_file:
                spec = importlib.util.spec_from_file_location(name, path)
                assert spec is not None and spec.loader is not None
                sys.modules[name] = module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            else:
                importlib.import_module(plugin)
    except (UserError, ImportError, OSError, SyntaxError) as problem:
        sys.modules.pop(name, None)
        if isinstance(problem, UserError):
            raise UserError(str(problem).removeprefix(f"plugins: {written}: "), f"plugins: {written}") from None
        raise UserError(f"{plugin}: cannot be imported ({problem}){hint}", "plugins") from None
