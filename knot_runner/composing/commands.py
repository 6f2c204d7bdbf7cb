"""Composition of a command line into jobs.

Presets and grids are expanded, and the settings of each job are checked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf

from knot_runner.composing import hydra_compose
from knot_runner.composing.hydra_compose import read_flags
from knot_runner.composing.job import ComposedJob, JobGrid
from knot_runner.composing.named_values import Arms, arm_overrides, node_of, read_arms, without_arm
from knot_runner.composing.overrides import (
    CONFIG_NAME,
    GROUPS,
    LAUNCHER_GROUP,
    check_count,
    is_hydras,
    last_counts,
    message_text,
    parse_overrides,
    preset_in,
    typed_line,
    values_of,
)
from knot_runner.config.settings.run import ARM
from knot_runner.util.config_yaml import unquoted
from knot_runner.util.errors import UserError


@dataclass(frozen=True)
class Command:
    """The jobs of one preset, or of a command line without a preset.

    Attributes:
        preset: Name of the preset; None without a preset.
        arguments: The flags and overrides that compose these jobs.
        jobs: The jobs.
        hydra: The part ``hydra`` of the composed config. It has the settings of the launcher.
        sweep: Whether the jobs run as a sweep. A single job may also run as a sweep.
    """

    preset: str | None
    arguments: list[str]
    jobs: list[ComposedJob]
    hydra: DictConfig
    sweep: bool


def compose_all(arguments: list[str], first: bool = False) -> tuple[list[ComposedJob], list[Command]]:
    """Compose and check the jobs of a command line.

    Args:
        arguments: Flags and overrides.
        first: Whether to compose only the first job of each preset's grid.

    Returns:
        A list of all jobs, and a list with one :class:`Command` per preset. Without presets, the second list has one
        item.

    Raises:
        UserError: A flag, an override or a setting is wrong.
    """
    options = read_flags(arguments)
    words = list(options.words)
    if options.config_name:
        words = [f"{CONFIG_NAME}={options.config_name}", *words]
    flags = [flag for flag in options.flags if not flag.startswith("--config-name=")]
    overrides = last_counts(parse_overrides(words))
    commands = []
    for typed in _by_preset(overrides, options.config_dir):
        jobs, grid = _composed(*expand_preset(typed, options.config_dir), options.config_dir, first)
        multirun = options.multirun or any(word.startswith(f"{LAUNCHER_GROUP}=") for word in typed)
        commands.append(Command(preset_in(typed), [*flags, *typed], jobs, grid.hydra, multirun or grid.size > 1))
    return [job for command in commands for job in command.jobs], commands


def _by_preset(overrides: Sequence[Override], config_dir: str | None) -> list[list[str]]:
    """Return the overrides as typed, one list per preset in them."""
    words = list(map(typed_line, overrides))
    preset = preset_in(words)
    if preset is None:
        return [words]
    at = words.index(f"experiment={preset}")
    values = values_of(overrides[at], config_dir) or [preset]
    return [[*words[:at], f"experiment={unquoted(value)}", *words[at + 1 :]] for value in values]


def expand_preset(arguments: list[str], config_dir: str | None) -> tuple[list[str], Arms]:
    """Add the overrides of the preset's grid to ``arguments``. Return the resulting list, and the preset's arms.

    Arms are named sets of overrides. An override is not added if ``arguments`` set the same key. Without a preset, the
    section ``sweep:`` in a user's YAML file may define the grid.
    """
    if config_dir is None and not any(a.lstrip("+").startswith(("experiment=", "sweep")) for a in arguments):
        return list(arguments), {}
    fixed = []
    given = set()
    for override in parse_overrides(arguments):
        given.add(override.key_or_group)
        if not override.is_sweep_override() and not _sets_a_value(override):
            fixed.append(typed_line(override))
    grid = node_of(hydra_compose.hydra_config(without_arm(fixed), config_dir), "sweep")
    if grid is None:
        return list(arguments), {}
    if not OmegaConf.is_dict(grid):
        raise UserError("expected keys with values, such as seed: 0,1,2", "sweep")
    values = hydra_compose.plain_content(grid)
    arms = read_arms(values.pop("arms", {}))
    if arms:
        values = {ARM: ",".join(arms), **values}
    words = list(arguments)
    for key, value in values.items():
        if value is None or isinstance(value, list | dict):
            hint = ""
            if isinstance(value, dict):
                hint = "Only sweep.arms accepts a mapping"
            raise UserError(f"expected values separated by commas, such as {key}: '0,1,2'", f"sweep.{key}", hint=hint)
        if key not in given:
            words.append(f"{key}={value}")
    return words, arms


def _composed(
    arguments: list[str], arms: Arms, config_dir: str | None, first: bool = False
) -> tuple[list[ComposedJob], JobGrid]:
    """Return (all jobs of a grid, or only the ``first`` one; the grid).

    Hydra composes once for each combination of group choices. Swept values are then inserted.
    """
    overrides = parse_overrides(arguments)
    values = [values_of(override, config_dir) for override in overrides]
    _check_grid(overrides, values)
    late = {o.get_key_element() for o in itertools.chain(overrides, *arms.values()) if _sets_a_value(o)}
    label_keys = {ARM}
    axes = []
    for override, listed in zip(overrides, values, strict=True):
        key = override.get_key_element()
        if listed and len(listed) > 1 and key not in ("method", "seed", "task"):
            label_keys.add(key)
        if key == ARM:
            axes.append(arm_overrides(map(unquoted, listed or [str(override.value())]), arms, overrides))
        elif listed:
            axes.append([[f"{key}={value}"] for value in listed])
        else:
            axes.append([[typed_line(override)]])
    size = math.prod(map(len, axes))
    grid = JobGrid(config_dir, late, label_keys, list(map(typed_line, overrides)), size)
    jobs = []
    for picked in itertools.product(*axes):
        jobs.append(grid.job(list(itertools.chain(*picked))))
        if first:
            break
    return jobs, grid


def _sets_a_value(override: Override) -> bool:
    """Return whether an override sets an existing key.

    Other overrides select a file, add or delete a key, or configure Hydra.
    """
    key = override.key_or_group
    plain = override.type == OverrideType.CHANGE and override.package is None
    return plain and "/" not in key and key not in (*GROUPS, ARM) and key.partition(".")[0] not in ("hydra", "sweep")


def _check_grid(overrides: Sequence[Override], values: Sequence[list[str] | None]) -> None:
    """Check that the grid is not too large, and does not sweep Hydra's keys or ``sweep`` itself."""
    widths = {}
    for override, listed in zip(overrides, values, strict=True):
        line = message_text(typed_line(override))
        key = override.key_or_group
        if listed is None:
            continue
        if is_hydras(key):
            raise UserError("expected one value, since Hydra's keys cannot be swept", line)
        if key.startswith("sweep."):
            raise UserError("sweep keys are supported only in YAML files", line, hint=f"Use {key[6:]}=VALUE,VALUE")
        widths[line] = len(listed)
    check_count(max(widths, key=widths.__getitem__, default=""), math.prod(widths.values()))
