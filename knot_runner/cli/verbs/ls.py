"""``knot-runner ls``: lists everything that can be composed, ours and the user's own.

Descriptions are read from the heads of the YAML files only, so that it answers at once.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from knot_runner.composing.override_errors import GROUPS, message_text
from knot_runner.config.settings.checks.fit import FITTING_METHODS
from knot_runner.config.settings.families import FAMILIES, METHOD_SETTINGS, family_of_algorithm
from knot_runner.report.render.terminal import TerminalColumn, listing, output, text_line
from knot_runner.util.config_yaml import config_folder, headline, yaml_files
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.messages import counted

LS_HELP = """\
knot-runner ls [GROUP ...] [--config-dir=DIR] [plugins=[FILE.py]]: tasks, models, methods, presets and what they are

  --config-dir=DIR     YAML of your own, too
  plugins=[...]        what these modules or files add, too; they are imported

  knot-runner ls method experiment
  knot-runner ls --config-dir=mine plugins=[mine/losses.py]"""

LS_FLAGS = ("--config-dir=DIR",)


def ls_command(arguments: list[str]) -> int:
    """Print each group with its choices and their descriptions. Raises :class:`UserError`."""
    from knot_runner.composing.overrides import config_dir_of, parse_overrides, split_flags

    flags, words = split_flags(arguments)
    folder = config_dir_of(flags, LS_FLAGS)
    named = [word for word in words if "=" not in word]
    for word in named:
        if word not in GROUPS:
            raise UserError(f"{message_text(word)}: ls has no such group{nearest(word, GROUPS)}")
    overrides = parse_overrides([word for word in words if "=" in word])
    plugins = [name for override in overrides for name in _plugins(override.key_or_group, override.value())]
    added = _added(plugins) if plugins else []
    for group in [group for group in GROUPS if group in named] or GROUPS:
        _print(group, [(name, _described(path, folder)) for name, path in yaml_files(group, folder).items()])
    if not named or "method" in named:
        _print_compositions(folder)
    for path in hidden(folder):
        output().print(text_line(f"{path}: is not used, since there is one of that name; another name is right"))
    if plugins:
        _print("from plugins", added)
    return 0


def _print_compositions(folder: str | None) -> None:
    """Print which methods run on which kinds of task, by family."""
    methods: dict[str, list[str]] = {}
    for path in yaml_files("method", folder).values():
        algorithm = algorithm_of(path)
        if algorithm in METHOD_SETTINGS:
            methods.setdefault(family_of_algorithm(algorithm).name, []).append(path.stem)
    columns = [TerminalColumn(kind, no_wrap=True) for kind in FITTING_METHODS]
    rows = []
    for family, names in methods.items():
        marks = ["yes" if kind in FAMILIES[family].tasks else "-" for kind in FITTING_METHODS]
        rows.append([*marks, ", ".join(names)])
    output().print(listing([*columns, TerminalColumn("methods", overflow="fold")], rows, "task x method"))
    output().print()


def _plugins(key: str, value: object) -> list[str]:
    if key != "plugins":
        raise UserError(f"{key}: ls takes names of groups, --config-dir=DIR and plugins=[FILE.py]")
    names = value if isinstance(value, list) else [value]
    return [str(getattr(name, "text", name)) for name in names]


def _described(path: Path, folder: str | None) -> str:
    own = folder is not None and path.is_relative_to(folder)
    return describe_yaml(path) + (f" ({path})" if own else "")


def _added(plugins: list[str]) -> list[tuple[str, str]]:
    """(``key=name``, "") of each entry that plug-ins add to the extensible tables, or one row saying there is none."""
    from knot_runner.config.plugins import load_plugins
    from knot_runner.data.images.load import IMAGE_READERS
    from knot_runner.data.images.partition import PARTITIONS
    from knot_runner.data.readers import TEXT_READERS
    from knot_runner.engine.tracker import TRACKERS
    from knot_runner.methods.contract import METHODS
    from knot_runner.methods.distil.term import TERMS
    from knot_runner.methods.losses import LOSSES
    from knot_runner.methods.weighting import WEIGHTINGS
    from knot_runner.metrics import METRICS
    from knot_runner.report.claims.measures import CLAIM_MEASURES
    from knot_runner.report.figures.registry import FIGURES
    from knot_runner.report.tables.build import TABLE_KINDS

    tables: list[tuple[str, dict]] = [
        *(("method.algorithm", table) for table in (METHOD_SETTINGS, METHODS)),
        ("method.loss.name", LOSSES),
        ("method.weighting", WEIGHTINGS),
        ("metric", METRICS),
        *(("report.kind", table) for table in (FIGURES, TABLE_KINDS)),
        ("report.claims.measure", CLAIM_MEASURES),
        ("partition.kind", PARTITIONS),
        ("method.terms", TERMS),
        ("tracker.name", TRACKERS),
        *(("local.format", table) for table in (TEXT_READERS, IMAGE_READERS)),
    ]
    before = [set(table) for _, table in tables]
    load_plugins(plugins)
    new = []
    for (key, table), names in zip(tables, before, strict=True):
        new += [(f"{key}={name}", "") for name in table if name not in names]
    return new or [(", ".join(plugins), "adds nothing to the tables of methods, losses, metrics, figures, ...")]


def _print(group: str, choices: list[tuple[str, str]]) -> None:
    columns = (TerminalColumn(no_wrap=True, style="bold"), TerminalColumn(overflow="fold"))
    output().print(listing(columns, choices, group))
    output().print()


# ----------------------------------------------------------------------------------------------- the files


def hidden(config_dir: str | None) -> list[Path]:
    """Files of ``config_dir`` that are shadowed by ours of the same name."""
    own = Path(config_dir or "")
    paths = [path for group in GROUPS for path in (own / group).rglob("*.yaml")] if config_dir else []
    return [path for path in paths if (config_folder() / path.relative_to(own)).is_file()]


def algorithm_of(path: Path, seen: tuple[Path, ...] = ()) -> str:
    """``algorithm`` of a method's YAML file or of those in its defaults; "" if none sets it or the file is not a
    method's. ``seen``: files already visited through defaults, which are not read again."""
    try:
        content = _loaded(path, path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    if "algorithm" in content:
        return str(content["algorithm"])
    defaults = content.get("defaults")
    for entry in reversed(defaults if isinstance(defaults, list) else []):
        name = str(entry).partition("@")[0]
        folder = config_folder() if name.startswith("/") else path.parent
        other = folder / f"{name.lstrip('/')}.yaml"
        if other not in (*seen, path) and (found := algorithm_of(other, (*seen, path))):
            return found
    return ""


def _loaded(path: Path, text: str) -> Any:
    """The content of a YAML file. Ours are parsed by libyaml if PyYAML has it, ten times as fast; a user's never, since
    deeply nested brackets crash the process there."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if path.is_relative_to(config_folder()) else yaml.SafeLoader
    reader = loader(text)
    try:
        return reader.get_single_data()
    finally:
        reader.dispose()


def describe_yaml(path: Path) -> str:
    """Description of a YAML file, for a preset with its number of jobs."""
    try:
        text, said = path.read_text(encoding="utf-8"), headline(path)
        whole = _loaded(path, text) if "experiment" in path.parts else None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return "cannot be read: a run says where it is wrong"
    sweep = whole.get("sweep") if isinstance(whole, dict) else None
    if isinstance(sweep, dict):
        jobs = math.prod(len(one if isinstance(one, dict) else str(one).split(",")) for one in sweep.values())
        said += f" ({counted(jobs, 'job')})"
    return said
