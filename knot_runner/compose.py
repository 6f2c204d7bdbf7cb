"""From the command line to jobs: overrides, presets with their grid, one checked set of settings per job."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from knot_runner.errors import UserError, nearest
from knot_runner.listing import config_folder
from knot_runner.settings import Settings, build_run, run_id


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


def expand_preset(arguments: list[str], config_dir: str | None) -> list[str]:
    """``arguments`` with the grid of their preset (``sweep:`` in its YAML) added, less what they set themselves."""
    if not any(a.startswith("experiment=") for a in arguments):
        return list(arguments)
    fixed = [o.input_line for o in _parse(arguments) if not o.is_sweep_override()]
    grid = _compose(fixed, config_dir).get("sweep") or {}
    given = {o.key_or_group.lstrip("+~") for o in _parse(arguments)}
    return [*arguments, *(f"{key}={values}" for key, values in grid.items() if key not in given)]


def compose_jobs(arguments: list[str], config_dir: str | None) -> list[ComposedJob]:
    """Every job of a (multi)run, composed and checked; nothing heavy is loaded. Raises :class:`UserError`."""
    overrides = _parse(arguments)
    choices = [list(o.sweep_string_iterator()) if o.is_sweep_override() else None for o in overrides]
    swept = [o.key_or_group for o, values in zip(overrides, choices, strict=True) if values and len(values) > 1]
    axes = [
        [f"{o.get_key_element()}={value}" for value in values] if values else [o.input_line]
        for o, values in zip(overrides, choices, strict=True)
    ]
    return [_make_job(list(picked), swept, config_dir) for picked in itertools.product(*axes)]


def _make_job(overrides: list[str], swept: list[str], config_dir: str | None) -> ComposedJob:
    config = _compose(overrides, config_dir)
    settings, method = build_run(config)
    apart = [key for key in swept if key not in ("method", "seed", "task")]
    label = ", ".join(o for o in overrides if o.split("=", 1)[0].lstrip("+") in apart)
    return ComposedJob(overrides, config, settings, method, label)


def plain_config(config: Any) -> dict[str, Any]:
    """An OmegaConf config as plain, resolved values. Raises :class:`UserError` for an interpolation that fails."""
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as problem:
        raise UserError(_one_line(str(problem))) from None


def _parse(arguments: list[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(arguments)
    except HydraException as problem:
        raise UserError(f"command line: {_one_line(str(problem))}") from None


def _compose(overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    search = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    try:
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            return plain_config(compose("config", overrides=[*search, *overrides]))
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
    if key is None or "not in struct" not in text:
        return _one_line(text)
    path = key.group(1).split("=", 1)[0]
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        groups = [o for o in overrides if "." not in o.split("=", 1)[0] and o.split("=", 1)[0] != path]
        node: Any = compose("config", overrides=[*search, *groups])
    parts = path.split(".")
    for depth, part in enumerate(parts):
        if not OmegaConf.is_dict(node) or part not in node:
            known = list(node) if OmegaConf.is_dict(node) else []
            prefix = ".".join(parts[:depth])
            return f"{path}: there is no such setting{nearest(part, known)}" + (f" in {prefix}" if prefix else "")
        node = node[part]
    return _one_line(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())
