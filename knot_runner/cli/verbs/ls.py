"""``knot-runner ls``: lists everything that can be composed, ours and the user's own."""

from __future__ import annotations

from pathlib import Path

from knot_runner.composing import catalog
from knot_runner.config.settings.checks.fit import FITTING_METHODS
from knot_runner.config.settings.families import FAMILIES, METHOD_SETTINGS, family_of_algorithm
from knot_runner.report.render.terminal import TerminalColumn, listing, output, text_line
from knot_runner.util.errors import UserError, nearest

LS_HELP = """\
knot-runner ls [GROUP ...] [--config-dir=DIR] [plugins=[FILE.py]]: tasks, models, methods, presets and what they are

  --config-dir=DIR     YAML of your own, too
  plugins=[...]        what these modules or files add, too; they are imported

  knot-runner ls method experiment
  knot-runner ls --config-dir=mine plugins=[mine/losses.py]"""

LS_FLAGS = ("--config-dir=DIR",)


def ls_command(arguments: list[str]) -> int:
    """Print each group with its choices and their descriptions. Raises :class:`UserError`."""
    from knot_runner.composing.override_errors import message_text
    from knot_runner.composing.overrides import config_dir_of, parse_overrides, split_flags

    flags, words = split_flags(arguments)
    folder = config_dir_of(flags, LS_FLAGS)
    named = [word for word in words if "=" not in word]
    for word in named:
        if word not in catalog.GROUPS:
            raise UserError(f"{message_text(word)}: ls has no such group{nearest(word, catalog.GROUPS)}")
    overrides = parse_overrides([word for word in words if "=" in word])
    plugins = [name for override in overrides for name in _plugins(override.key_or_group, override.value())]
    added = _added(plugins) if plugins else []
    for group in [group for group in catalog.GROUPS if group in named] or catalog.GROUPS:
        _print(group, [(path.stem, _described(path, folder)) for path in catalog.yaml_files(group, folder)])
    if not named or "method" in named:
        _print_compositions(folder)
    for path in catalog.hidden(folder):
        output().print(text_line(f"{path}: is not used, since there is one of that name; another name is right"))
    if plugins:
        _print("from plugins", added)
    return 0


def _print_compositions(folder: str | None) -> None:
    """Print which methods run on which kinds of task, by family."""
    methods: dict[str, list[str]] = {}
    for path in catalog.yaml_files("method", folder):
        algorithm = catalog.algorithm_of(path)
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
    return catalog.describe_yaml(path) + (f" ({path})" if own else "")


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
