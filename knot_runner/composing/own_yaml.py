"""Checks the user's own YAML (``--config-dir``) before Hydra loads it, so that errors name a file and a line.

A file is plain data. Anything that would run code (a class to instantiate, Hydra's callbacks and logging, Python tags)
is refused when the file is read, before composing; ``plugins`` is the only way to run the user's code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from knot_runner.composing.hydra_keys import LAUNCHER_GROUP, TARGET, check_key, check_launcher_class, is_hydras
from knot_runner.composing.override_errors import message_text
from knot_runner.config.plugins import found_from
from knot_runner.util.errors import UserError

#: Maximum bytes of a file, and maximum values in it with aliases expanded.
MAX_YAML_BYTES, MAX_YAML_VALUES = 1_000_000, 100_000
#: Tags of plain data; others name a type of Python or of an application.
TAGS = {f"tag:yaml.org,2002:{name}" for name in
        ("null", "bool", "int", "float", "str", "seq", "map", "merge", "timestamp", "value")}  # fmt: skip
_HEADER = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def search_path(config_dir: str | None) -> list[str]:
    """The override that adds ``config_dir`` to Hydra's search path, through :class:`OwnYaml`; [] without a folder."""
    if not config_dir:
        return []
    Plugins.instance().register(OwnYaml)
    folder = str(Path(config_dir).resolve())
    if "${" in folder or "\\" in folder:
        raise UserError(
            f"--config-dir: {message_text(folder)}: a folder whose name has neither ${{ nor a backslash is right"
        )
    quoted = folder.replace("'", "\\'")
    return [f"hydra.searchpath=['{OwnYaml.scheme()}://{quoted}']"]


class OwnYaml(FileConfigSource):
    """A Hydra config source for a folder of YAML files, with our checks."""

    @staticmethod
    def scheme() -> str:
        """The URL scheme, as in ``own://FOLDER``."""
        return "own"

    def load_config(self, config_path: str) -> ConfigResult:
        """Load one file. Raises :class:`UserError` naming file and line."""
        name = self._normalize_file_name(config_path)
        path = Path(self.path) / name
        text = read_checked(path, name)
        try:
            config = OmegaConf.create(text)
        except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError) as problem:
            raise UserError(_said(path, problem)) from None
        plugins = config.get("plugins") if OmegaConf.is_dict(config) else None
        if OmegaConf.is_list(plugins):
            config.plugins = [found_from(path.parent, one) if isinstance(one, str) else one for one in plugins]
        header = ConfigSource._get_header_dict(text[:512])
        return ConfigResult(provider=self.provider, path=f"{self.scheme()}://{self.path}", config=config, header=header)


def read_checked(path: Path, name: str) -> str:
    """The text of a YAML file, after checks that it is safe to load. ``name``: its path below the folder, with its
    group.

    Raises :class:`UserError` naming file and line.
    """
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise UserError(f"{path}: cannot be read ({problem.strerror})") from None
    if len(data) > MAX_YAML_BYTES:
        raise UserError(f"{path}: has {len(data):,} bytes; a YAML file of settings has at most {MAX_YAML_BYTES:,}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data[: problem.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: is not text in UTF-8") from None
    try:
        root = yaml.compose(text, Loader=YAML_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise UserError(_said(path, problem)) from None
    if root is not None:
        _Check(path, name).whole(root, text)
    return text


def _said(path: Path, problem: Exception) -> str:
    """A parser's error as ``FILE:LINE: what is wrong``."""
    mark = getattr(problem, "problem_mark", None) or getattr(problem, "context_mark", None)
    text = getattr(problem, "problem", None) or getattr(problem, "reason", None) or str(problem) or "nested too deep"
    for part, begins, meaning in _MEANINGS:
        if part in str(text):
            mark, text = problem.context_mark if begins else mark, meaning
            break
    line = f":{mark.line + 1}" if mark else ""
    return f"{path}{line}: {message_text(' '.join(str(text).split()), 160)}"


_NO_KEY = "is no key beside those above; its indentation, or a quote, is wrong"
#: Part of a parser's error -> (whether it is about the line where the value began, what it means to who wrote it).
_MEANINGS = (
    ("cannot start any token", False, "a tab, or another character that no value begins with; YAML indents by spaces"),
    ("could not find expected ':'", True, "a key without a colon; key: value is right"),
    ("unexpected end of stream", True, "a quote that begins here is not closed"),
    ("mapping values are not allowed", False, "a colon too many, or a line indented otherwise than those above"),
    ("did not find expected key", False, _NO_KEY),
    ("expected <block end>", False, _NO_KEY),  # by the parser in Python, where there is no libyaml
)


class _Check:
    """Checks the parsed nodes of one YAML file; each node has its line."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.group = path, name.replace("\\", "/").rpartition("/")[0]
        self._sizes: dict[int, int] = {}
        self._under_way: set[int] = set()

    def whole(self, root: yaml.Node, text: str) -> None:
        if not isinstance(root, yaml.MappingNode):
            self._refuse(root, "is not a mapping; key: value pairs are right")
        if self._size(root) > MAX_YAML_VALUES:
            self._refuse(root, f"its aliases (*name) come to more than {MAX_YAML_VALUES:,} values")
        if self.group != LAUNCHER_GROUP and is_hydras(self.group):
            self._hydras(root, self.group)
        package = _HEADER.search(text[:512])
        if package and is_hydras(package.group(1).lstrip("/")):
            self._hydras(root, package.group(1))
        for key, value in node_pairs(root):
            if key.value == "defaults":
                self._defaults(value)
            elif key.value == "hydra":
                self._hydra_node(key, value)
            elif key.value == "sweep":
                self._sweep(value)
        if self.group == "experiment" and (package is None or package.group(1) != "_global_"):
            self._refuse(root, "a preset needs the line '# @package _global_' above its keys")

    def _refuse(self, node: yaml.Node, text: str) -> None:
        raise UserError(f"{self.path}:{node.start_mark.line + 1}: {text}")

    def _hydras(self, node: yaml.Node, key: str) -> None:
        """Raise an error with file and line for an unsupported key of Hydra's."""
        try:
            check_key(key)
        except UserError as problem:
            self._refuse(node, str(problem))

    def _size(self, node: yaml.Node) -> int:
        """Number of values of a node with aliases expanded; each node is visited once."""
        if id(node) in self._under_way:
            self._refuse(node, "an anchor (&name) with its own alias in it has no end")
        if id(node) not in self._sizes:
            self._under_way.add(id(node))
            self._sizes[id(node)] = self._looked_at(node)
            self._under_way.discard(id(node))
        return self._sizes[id(node)]

    def _looked_at(self, node: yaml.Node) -> int:
        if node.tag not in TAGS:
            self._refuse(
                node, f"the tag {message_text(node.tag.replace('tag:yaml.org,2002:', '!!'))}; plain values are right"
            )
        if isinstance(node, yaml.SequenceNode):
            return 1 + sum(self._size(one) for one in node.value)
        if not isinstance(node, yaml.MappingNode):
            return 1
        seen: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._refuse(key, "a key that is no word; key: value pairs are right")
            if key.value in seen and key.value != "<<":
                self._refuse(key, f"the key {message_text(key.value)!r} stands in line {seen[key.value]} already")
            seen[key.value] = key.start_mark.line + 1
            if key.value == TARGET:
                self._class(value)
        return 1 + sum(self._size(key) + self._size(value) for key, value in node.value)

    def _class(self, value: yaml.Node) -> None:
        if self.group != LAUNCHER_GROUP:
            self._refuse(value, f"{TARGET} is not read; nothing but plugins=[FILE.py] runs code of your own")
        try:
            check_launcher_class(value.value, TARGET)
        except UserError as problem:
            self._refuse(value, str(problem))

    def _defaults(self, node: yaml.Node) -> None:
        if not isinstance(node, yaml.SequenceNode):
            self._refuse(node, "defaults: is not a list; '- group: name' entries are right")
        for key, group, package, _ in defaults_entries(node):
            if is_hydras(group.lstrip("/")) and not group.lstrip("/").startswith(f"{LAUNCHER_GROUP}/"):
                self._hydras(key, group.lstrip("/"))
            if is_hydras(package):
                self._hydras(key, package)

    def _hydra_node(self, key: yaml.Node, node: yaml.Node) -> None:
        parts = list(node_pairs(node)) if isinstance(node, yaml.MappingNode) else []
        for part, value in parts:
            below = list(node_pairs(value)) if isinstance(value, yaml.MappingNode) else []
            for name, _ in below:
                self._hydras(name, f"hydra.{part.value}.{name.value}")
            if not below:
                self._hydras(part, f"hydra.{part.value}")
        if not parts:
            self._hydras(key, "hydra")

    def _sweep(self, node: yaml.Node) -> None:
        null = isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")
        if not isinstance(node, yaml.MappingNode) and not null:
            self._refuse(node, "sweep: is not a mapping; 'seed: 0,1,2' in it is right")
        for key, value in [] if null else node_pairs(node):
            name = message_text(key.value)
            if not isinstance(value, yaml.ScalarNode):
                self._refuse(key, f"sweep.{name}: is not one text; values separated by commas are right, as in 0,1,2")
            if value.tag.endswith(":null"):  # as of 1 in {seed: 0,1}
                self._refuse(key, f"sweep.{name}: has no values; in braces they need quotes, as in {{seed: '0,1'}}")


def node_pairs(node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """Yield (key, value) of each pair of a mapping node."""
    yield from node.value


def defaults_entries(defaults: yaml.SequenceNode) -> Iterator[tuple[yaml.Node, str, str, str]]:
    """Yield (key, group, package, name) of every defaults entry; an entry that is not a mapping has its name in the
    group."""
    for entry in defaults.value:
        for key, value in node_pairs(entry) if isinstance(entry, yaml.MappingNode) else [(entry, None)]:
            words = re.sub(r"^(override|optional)\s+", "", str(key.value)).strip()
            group, _, package = words.partition("@")
            yield key, group.strip(), package, str(value.value) if value is not None else ""
