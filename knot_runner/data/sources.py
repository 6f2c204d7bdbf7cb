"""Descriptions of data sets: one file ``data/NAME.yaml`` each, in ``conf/`` or in a user's ``--config-dir``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import yaml

from knot_runner.config.strict import AtMost, build, require
from knot_runner.util.config_yaml import headline, yaml_files
from knot_runner.util.errors import UserError, nearest


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, or a folder that is created from other files.

    Attributes:
        path: Path relative to ``paths.data_dir``.
        size: Published size in bytes; None if unknown.
        sha256: Published sha256 as hex digits; None if unknown.
    """

    path: str
    size: Annotated[int, AtMost(10**15)] | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path).parts
        inside = bool(parts) and parts[0] != "/" and ".." not in parts and "\\" not in self.path
        require(inside, "path", f"{self.path!r} is not a path below paths.data_dir")
        right = self.sha256 is None or re.fullmatch("[0-9a-f]{64}", self.sha256) is not None
        require(right, "sha256", f"expected 64 hexadecimal digits, got {self.sha256!r}")


@dataclass(frozen=True)
class DataSet:
    """A data set: its official address, license and files, and how to obtain the files."""

    name: str
    #: description in one line
    title: str
    #: names of the tasks that read the data set
    tasks: list[str]
    #: official web address
    home: str
    license: str
    files: list[DataFile]
    #: web addresses of folders with the files, the preferred one first. Without sources, the files are not downloaded
    sources: list[str] = field(default_factory=list)
    #: alternatives to ``files``: the paths of any one list can replace all ``files``
    instead: list[list[str]] = field(default_factory=list)
    #: instructions for getting the files, if they are not downloaded
    how: str = ""
    #: overrides with which a task reads ``files``, if the YAML file of the task names other files
    use: str = ""

    def __post_init__(self) -> None:
        for address in self.sources:
            require(address.startswith(("https://", "http://")), "from", f"{address!r} does not begin with https://")
            require(address.endswith("/"), "from", f"{address!r} does not end with '/', so it is not a folder")
        require(bool(self.files), "files", "no files listed")
        require(bool(self.sources or self.how), "how", "required if 'from' is not set. Describe how to get the files")

    @property
    def size(self) -> int | None:
        """Return the total size of all files in bytes, or None if any size is unknown."""
        total = 0
        for file in self.files:
            if file.size is None:
                return None
            total += file.size
        return total

    def addresses(self, file: DataFile) -> list[str]:
        """Return the URLs of ``file``, the preferred one first."""
        return [source + PurePosixPath(file.path).name for source in self.sources]

    def standing(self, root: Path | None) -> Literal["present", "partly", "absent"]:
        """Return "present" if all files of the data set exist below ``root``, "partly" if some exist, else "absent".

        Each list of paths in ``instead`` is an alternative to ``files``.
        """
        if root is None:
            return "absent"
        state: Literal["partly", "absent"] = "absent"
        for paths in ([file.path for file in self.files], *self.instead):
            present = [(root / path).exists() for path in paths]
            if all(present):
                return "present"
            if any(present):
                state = "partly"
        return state


def data_sets(config_dir: str | None = None) -> dict[str, DataSet]:
    """Return all data sets as a dict from name to data set, sorted by name.

    Raises:
        UserError: A description file is invalid. The message names the file and the key.
    """
    return {name: _read(path) for name, path in yaml_files("data", config_dir).items()}


def _read(path: Path) -> DataSet:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError, RecursionError) as problem:
        raise UserError(f"cannot be read: {' '.join(str(problem).split())}", path) from None
    if not isinstance(values, dict):
        raise UserError("no keys found. Set tasks, home, license and files", path)
    values = {str(key): value for key, value in values.items()}
    sources = values.pop("from", [])
    try:
        return build(DataSet, {"name": path.stem, "title": headline(path), **values, "sources": sources}, "")
    except UserError as problem:
        raise UserError(f"{problem}", path) from None


def task_names(known: dict[str, DataSet]) -> set[str]:
    """Return the names of the tasks that read the given data sets."""
    return {task for data_set in known.values() for task in data_set.tasks}


def chosen_data_sets(known: dict[str, DataSet], names: list[str]) -> list[DataSet]:
    """Return the data sets that ``names`` selects; all data sets if ``names`` is empty.

    Each name is the name of a data set or a task. A task selects all data sets that it reads.

    Raises:
        UserError: A name is unknown.
    """
    if not names:
        return list(known.values())
    chosen = set(names)
    for name in names:
        if name not in known:  # a name of both a data set and a task selects the data set only
            meant = {data_set.name for data_set in known.values() if name in data_set.tasks}
            if not meant:
                raise UserError(f"unknown task or data set{nearest(name, known.keys() | task_names(known))}", name)
            chosen |= meant
    return [data_set for data_set in known.values() if data_set.name in chosen]
