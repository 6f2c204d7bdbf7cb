"""YAML files: the config groups in ``conf/`` and in a user's ``--config-dir``, and the ``config.yaml`` of each run."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

#: Settings of a run, or of a group, as plain values.
Config = dict[str, Any]
#: Longest accepted file in bytes. A composed config has some kilobytes.
LONGEST_CONFIG = 300_000
#: Deepest accepted nesting. Far deeper nesting would exhaust the stack of libyaml.
DEEPEST = 40
#: Pattern of a choice's name, including its folders, such as ``chill/table1``.
PLAIN_NAME = r"\w[\w.-]*(/\w[\w.-]*)*"
# beginning of a line with a top-level key; the content of a key is indented or begins with "- "
_SECTION = re.compile(r"^(?=[A-Za-z_]\w*:(?:\s|$))", re.MULTILINE)
#: The loader of YAML: libyaml's, which is ten times as fast, if PyYAML includes it; otherwise PyYAML's own.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
PACKAGE = Path(__file__).resolve().parents[1]


def config_folder() -> Path:
    """Return the path of ``conf/`` in the source checkout; without a checkout, the path of the copy in the package."""
    in_checkout = PACKAGE.parent / "conf"
    return in_checkout if (in_checkout / "config.yaml").is_file() else PACKAGE / "conf"


def choices(group: str, config_dir: str | Path | None = None) -> list[str]:
    """Return the names of all choices of the config group ``group``, in ``conf/`` and in the user's ``config_dir``."""
    return list(yaml_files(group, config_dir))


def yaml_files(group: str, config_dir: str | Path | None = None) -> dict[str, Path]:
    """Return a sorted dict from the name of each choice in ``group`` to the file of the choice.

    A choice in a subfolder has the name ``FOLDER/NAME``. If ``conf/`` and ``config_dir`` have a choice of the same
    name, the dict contains the file in ``conf/``.
    """
    files: dict[str, Path] = {}
    for parent in (config_dir, config_folder()):
        if parent:
            folder = Path(parent) / group
            files |= {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}
    return dict(sorted(files.items()))


def headline(path: Path) -> str:
    """Return the first comment line of the YAML file ``path``; "" if there is no comment.

    Comments that begin with ``@package`` or with a command (``knot-runner``) are skipped.
    """
    for line in path.read_text(encoding="utf-8").splitlines():
        comment = line.lstrip("# ").rstrip()
        if line.startswith("#") and comment and not comment.startswith(("@package", "knot-runner")):
            return comment
    return ""


def read_config(path: Path) -> Config:
    """Return the settings in the file ``path`` as plain values.

    Do not modify the returned values: they are cached, and other calls may return the same objects.

    Raises:
        ValueError: The file is missing or too long, or it has aliases, tags, repeated keys or too deep nesting.
        OSError: The file cannot be read.
    """
    if not path.is_file():  # reading a pipe may never end
        raise ValueError("not a regular file" if path.exists() else "file not found")
    if path.stat().st_size > LONGEST_CONFIG:
        raise ValueError("the file is too long")
    first, *sections = _SECTION.split(path.read_text(encoding="utf-8"))
    if any(line.strip() and not line.startswith("#") for line in first.split("\n")):
        raise ValueError("expected 'key: value' at the beginning")
    config: Config = {}
    for text in sections:
        section = _section(text)
        if section.keys() & config.keys():
            raise ValueError("a key is repeated")
        config |= section
    return config


# The configs of a sweep share most sections, so 1,000 configs cost little more than one config.
@lru_cache(maxsize=256)
def _section(text: str) -> Config:
    try:
        _refuse_bombs(text)
        loader = LOADER(text)
        content = loader.get_single_data()
        loader.dispose()
    except (yaml.YAMLError, RecursionError) as problem:
        raise ValueError(f"not plain YAML ({type(problem).__name__})") from None
    if not isinstance(content, dict):
        raise ValueError("expected a mapping")
    return content


def _refuse_bombs(text: str) -> None:
    """Refuse aliases, which can multiply content, and deep nesting, which crashes the process."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("YAML aliases are not supported")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError("nested too deeply")


def unquoted(value: str) -> str:
    """Return a command-line value as Hydra reads it: outer quotes removed, and inner quotes unescaped."""
    quote = value[:1]
    if len(value) < 2 or quote not in "'\"" or value[-1] != quote:
        return value
    return value[1:-1].replace(f"\\{quote}", quote)
