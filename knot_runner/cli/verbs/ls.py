"""``knot-runner ls``: lists the config groups, or the choices of the given groups, including the user's files."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

import yaml

from knot_runner.composing.hydra_compose import read_flags
from knot_runner.composing.overrides import GROUPS, message_text
from knot_runner.config.settings.families import FAMILIES, METHOD_SETTINGS, TASK_KINDS, family_of_algorithm
from knot_runner.report.render.terminal import TerminalColumn, listing, output, text_line
from knot_runner.util.config_yaml import LOADER, config_folder, headline, yaml_files
from knot_runner.util.errors import UserError, counted, nearest


def ls_command(options: argparse.Namespace) -> int:
    """Print the config groups, or a description of each choice in the given groups. Raises :class:`UserError`."""
    folder = read_flags(options.flags).config_dir
    for word in options.words:
        if word not in GROUPS:
            raise UserError(f"not a config group{nearest(word, GROUPS)}", message_text(word))
    if not options.words:
        for group in GROUPS:
            names = list(yaml_files(group, folder))
            line = text_line(f"{group:<11} {len(names):>3}  {', '.join(names)}")
            output().print(line, no_wrap=True, overflow="ellipsis")
        output().print(text_line("Run 'knot-runner ls GROUP' for a description of each choice"))
    groups = [group for group in GROUPS if group in options.words]
    for group in groups:
        columns = (TerminalColumn(no_wrap=True, style="bold"), TerminalColumn(overflow="fold"))
        rows = [(name, _described(path, folder)) for name, path in yaml_files(group, folder).items()]
        output().print(listing(columns, rows, group))
        output().print()
    if "method" in groups:
        _print_compositions(folder)
    for path in hidden(folder):
        output().print(text_line(f"{path}: ignored, since another file has this name. Rename it"))
    return 0


def _print_compositions(folder: str | None) -> None:
    """Print which methods run on which kinds of task, by family."""
    title = "task x method (a method may require more: run 'knot-runner check task=NAME method=NAME')"
    methods: dict[str, list[str]] = {}
    for path in yaml_files("method", folder).values():
        algorithm = algorithm_of(path)
        if algorithm in METHOD_SETTINGS:
            methods.setdefault(family_of_algorithm(algorithm).name, []).append(path.stem)
    columns = [TerminalColumn(kind, no_wrap=True) for kind in TASK_KINDS]
    rows = []
    for family, names in methods.items():
        marks = dict.fromkeys(TASK_KINDS, "-") | dict.fromkeys(FAMILIES[family].tasks, "yes")
        rows.append([*marks.values(), ", ".join(names)])
    output().print(listing([*columns, TerminalColumn("methods", overflow="fold")], rows, title))
    output().print()


def _described(path: Path, folder: str | None) -> str:
    text = describe_yaml(path)
    if folder is not None and path.is_relative_to(folder):
        return f"{text} ({path})"
    return text


# ----------------------------------------------------------------------------------------------- the files


def hidden(config_dir: str | None) -> list[Path]:
    """Return the files in ``config_dir`` that are ignored because the package has files of the same name."""
    if not config_dir:
        return []
    paths = []
    for group in GROUPS:
        for path in Path(config_dir, group).rglob("*.yaml"):
            if (config_folder() / path.relative_to(config_dir)).is_file():
                paths.append(path)
    return paths


def algorithm_of(path: Path) -> str:
    """Return the value of ``algorithm`` in a method's YAML file, or in a file from its ``defaults`` list.

    The result is "" if no file sets ``algorithm``, or a file cannot be read.
    """
    with contextlib.suppress(*UNREADABLE):
        content = _loaded(path)
        if "algorithm" in content:
            return str(content["algorithm"])
        for entry in reversed(content.get("defaults", [])):
            name = str(entry).partition("@")[0]
            folder = path.parent
            if name.startswith("/"):
                folder = config_folder()
            other = folder / f"{name.lstrip('/')}.yaml"
            if other.is_file() and (algorithm := algorithm_of(other)):
                return algorithm
    return ""


def describe_yaml(path: Path) -> str:
    """Return the text of the first comment in a YAML file. For a preset, the number of jobs is added."""
    try:
        text = headline(path)
        sweep = {}
        if "experiment" in path.parts:
            sweep = _loaded(path).get("sweep", {})
        if not sweep:
            return text
        jobs = 1
        for swept in sweep.values():
            if not isinstance(swept, dict):
                swept = str(swept).split(",")
            jobs *= len(swept)
    except UNREADABLE:
        return "cannot be read. Run it to see the error"
    return f"{text} ({counted(jobs, 'job')})"


#: Errors that reading an invalid YAML file raises.
UNREADABLE = (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError, RecursionError)


def _loaded(path: Path) -> Any:
    """Return the content of a YAML file."""
    return LOADER(path.read_text(encoding="utf-8")).get_single_data()
