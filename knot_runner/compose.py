"""From the command line to jobs: overrides, presets with their grid, one checked set of settings per job."""

from __future__ import annotations

import copy
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from knot_runner.errors import UserError, nearest
from knot_runner.listing import GROUPS, config_folder
from knot_runner.settings import Settings, build_run, run_id

#: What a key that is not in the config selects to (None can be a value).
_ABSENT = object()


@dataclass(frozen=True)
class ComposedJob:
    """One job: its overrides, composed config (plain, resolved), settings, and the method's own settings."""

    overrides: list[str]
    config: dict[str, Any]
    settings: Settings
    method: Any
    #: what sets it apart from the preset's other jobs, beyond method and seed
    label: str

    @property
    def run_id(self) -> str:
        return run_id(self.config)

    @property
    def folder(self) -> Path:
        return run_folder(self.settings, self.run_id)


def run_folder(settings: Settings, name: str) -> Path:
    """``<out>/<task>/<method>/<run id>``."""
    return Path(settings.paths.out) / settings.task.name / settings.method["name"] / name


def compose_all(arguments: list[str]) -> tuple[list[ComposedJob], list[str]]:
    """(All jobs, and the arguments that Hydra gets: the preset's grid included.) Raises :class:`UserError`."""
    flags = [a for a in arguments if a.startswith("-")]
    config_dir = _config_dir(flags)
    overrides = expand_preset([a for a in arguments if not a.startswith("-")], config_dir)
    jobs = compose_jobs(overrides, config_dir)
    return jobs, [*flags, *overrides]


def _config_dir(flags: list[str]) -> str | None:
    folder = None
    for flag in flags:
        if flag.startswith("--config-dir="):
            folder = flag.split("=", 1)[1]
            if not Path(folder).is_dir():
                raise UserError(f"--config-dir: {folder}: is not a folder")
        elif flag not in ("-m", "--multirun"):
            raise UserError(f"{flag}: there is no such flag{nearest(flag, ['-m', '--multirun', '--config-dir=DIR'])}")
    return folder


def expand_preset(arguments: list[str], config_dir: str | None) -> list[str]:
    """``arguments`` with the grid of their preset (``sweep:`` in its YAML) added, less what they set themselves."""
    if not any(a.startswith("experiment=") for a in arguments):
        return list(arguments)
    fixed = [o.input_line for o in _parse(arguments) if not o.is_sweep_override()]
    grid = _compose(fixed, config_dir).get("sweep") or {}
    given = {o.key_or_group.lstrip("+~") for o in _parse(arguments)}
    return [*arguments, *(f"{key}={values}" for key, values in grid.items() if key not in given)]


def compose_jobs(arguments: list[str], config_dir: str | None) -> list[ComposedJob]:
    """Every job of a (multi)run, composed and checked; nothing heavy is loaded. Raises :class:`UserError`.

    Hydra composes once per choice of groups; swept values are put into copies of that, which is what makes a grid of
    hundreds of jobs answer in seconds.
    """
    overrides = _parse(arguments)
    choices = [list(o.sweep_string_iterator()) if o.is_sweep_override() else None for o in overrides]
    swept = [o for o, values in zip(overrides, choices, strict=True) if values and len(values) > 1]
    axes = [
        [f"{o.get_key_element()}={value}" for value in values] if values else [o.input_line]
        for o, values in zip(overrides, choices, strict=True)
    ]
    late = {o.get_key_element() for o in swept if o.type == OverrideType.CHANGE and o.key_or_group not in GROUPS}
    apart = {o.get_key_element() for o in swept} - {"method", "seed", "task"}
    composed: dict[tuple[str, ...], DictConfig] = {}
    jobs = []
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        for picked in itertools.product(*axes):
            early = tuple(o for o in picked if _key(o) not in late)
            if early not in composed:
                composed[early] = _compose_here(list(early), config_dir)
            values = [o for o in picked if _key(o) in late]
            config = _with_values(composed[early], values, list(picked), config_dir)
            settings, method = build_run(config)
            label = ", ".join(o for o in picked if _key(o) in apart)
            jobs.append(ComposedJob(list(picked), config, settings, method, label))
    return jobs


def _key(override: str) -> str:
    return override.split("=", 1)[0]


def _with_values(base: DictConfig, values: list[str], overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    """``base`` with swept values set, resolved. A key that is not there is named as Hydra's own error is.

    All jobs of one ``base`` set the same keys, so it need not be copied, but for mappings, which are merged.
    """
    parsed = _parse(values)
    config = copy.deepcopy(base) if any(isinstance(override.value(), dict) for override in parsed) else base
    for override in parsed:
        if OmegaConf.select(config, override.key_or_group, default=_ABSENT) is _ABSENT:
            _compose_here(overrides, config_dir)  # raises the one-line error
        OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
    return plain_config(config)


def plain_config(config: Any) -> dict[str, Any]:
    """An OmegaConf config as plain, resolved values. Raises :class:`UserError` for an interpolation that fails."""
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as problem:
        raise UserError(_one_line(str(problem))) from None


def _parse(arguments: list[str]) -> list[Override]:
    try:
        overrides = OverridesParser.create().parse_overrides(arguments)
    except HydraException as problem:
        raise UserError(f"command line: {_one_line(str(problem))}") from None
    for override in overrides:
        named = override.is_sweep_override() or override.is_delete() or isinstance(override.value(), str | list)
        if override.key_or_group in GROUPS and not named:
            raise UserError(f"{override.input_line}: is not the name of a {override.key_or_group} ('knot-runner ls')")
    return overrides


def _compose(overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return plain_config(_compose_here(overrides, config_dir))


def _compose_here(overrides: list[str], config_dir: str | None) -> DictConfig:
    """Inside an ``initialize_config_dir``; every failure is one line that names the key."""
    search = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    try:
        return compose("config", overrides=[*search, *overrides])
    except MissingConfigException as problem:
        raise UserError(_missing_config(str(problem))) from None
    except (HydraException, OmegaConfBaseException) as problem:
        raise UserError(_bad_override(str(problem), overrides, search)) from None


def _missing_config(text: str) -> str:
    """``method=sinkhron_e`` and the like."""
    wanted = re.search(r"(?:Could not find|Cannot find primary config|In .*?: Could not find) '([^']*)'", text)
    group, _, name = (wanted.group(1) if wanted else "").rpartition("/")
    folder = config_folder() / group
    if not wanted or not folder.is_dir():
        return _one_line(text)
    return f"{group}={name}: there is no such {group}{nearest(name, [p.stem for p in folder.glob('*.yaml')])}"


def _bad_override(text: str, overrides: list[str], search: list[str]) -> str:
    """One line for an override of a key that is not there, with the nearest one that is."""
    key = re.search(r"Could not (?:override|append to config|delete from config)[^']*'([^']*)'", text)
    if key is None:
        return _one_line(text)
    path = key.group(1).split("=", 1)[0]
    groups = [o for o in overrides if "." not in o.split("=", 1)[0] and o.split("=", 1)[0] != path]
    try:
        node: Any = compose("config", overrides=[*search, *groups])
    except HydraException:  # the YAML itself is at fault
        return _one_line(text)
    parts = path.split(".")
    for depth, part in enumerate(parts):
        if not OmegaConf.is_dict(node) or part not in node:
            known = list(node) if OmegaConf.is_dict(node) else []
            prefix = ".".join(parts[:depth])
            return f"{path}: there is no such setting{nearest(part, known)}" + (f" in {prefix}" if prefix else "")
        node = node[part]
    return f"{path}: cannot take that value; a key that is new in it needs a +, as in +{path}.KEY=VALUE"


def _one_line(text: str) -> str:
    return " ".join(text.split())
