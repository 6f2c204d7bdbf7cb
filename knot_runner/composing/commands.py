"""From the command line to jobs: overrides, presets with their grid, one checked set of settings per job."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra import initialize_config_dir
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf

from knot_runner.composing import hydra_compose
from knot_runner.composing.arms import Arms, arm_overrides, read_arms, without_arm
from knot_runner.composing.fitting import node_of
from knot_runner.composing.hydra_keys import LAUNCHER_GROUP, is_hydras
from knot_runner.composing.job import ComposedJob
from knot_runner.composing.job_grid import JobGrid
from knot_runner.composing.override_errors import GROUPS, message_text
from knot_runner.composing.overrides import (
    check_count,
    config_dir_of,
    last_counts,
    parse_overrides,
    split_flags,
    values_of,
)
from knot_runner.config.settings.run import ARM
from knot_runner.util.config_yaml import config_folder
from knot_runner.util.errors import UserError
from knot_runner.util.messages import LOGGER


@dataclass(frozen=True)
class Command:
    """The jobs of one preset of a command line, or of a command line without presets.

    ``arguments``: the typed arguments, with this preset only. ``hydra``: the composed config's ``hydra`` part, with the
    launcher. ``sweep``: whether a grid was requested, even if of one job. ``grid``: what composed the jobs.
    """

    preset: str | None
    arguments: list[str]
    jobs: list[ComposedJob]
    hydra: DictConfig
    sweep: bool
    grid: JobGrid | None = None


def compose_all(arguments: list[str], first: bool = False) -> tuple[list[ComposedJob], list[Command]]:
    """Return (all jobs, one command per preset with the jobs of its grid). Raises :class:`UserError`.

    Logs keys that are given twice. ``first``: the first job of each grid is enough.
    """
    flags, words = split_flags(arguments)
    config_dir = config_dir_of(flags)
    overrides, notes = last_counts(parse_overrides(words))
    for note in notes:
        LOGGER.warning("%s", note)
    commands = [_command(flags, own, config_dir, first) for own in _by_preset(overrides, config_dir)]
    return [job for command in commands for job in command.jobs], commands


def _by_preset(overrides: Sequence[Override], config_dir: str | None) -> list[list[str]]:
    """The overrides as typed, one list per preset in them."""
    names = [(at, values_of(o, config_dir)) for at, o in enumerate(overrides) if o.key_or_group == "experiment"]
    words = [override.input_line for override in overrides]
    if not names or names[0][1] is None:
        return [words]
    at, values = names[0]
    return [[*words[:at], f"experiment={value}", *words[at + 1 :]] for value in values]


def _command(flags: list[str], words: list[str], config_dir: str | None, first: bool) -> Command:
    preset = next((word.partition("=")[2] for word in words if word.startswith("experiment=")), None)
    jobs, grid = _composed(*expand_preset(words, config_dir), config_dir, first)
    multirun = "--multirun" in flags or any(word.startswith(f"{LAUNCHER_GROUP}=") for word in words)
    return Command(preset, [*flags, *words], jobs, grid.hydra, grid.size > 1 or bool(multirun), grid)


def expand_preset(arguments: list[str], config_dir: str | None) -> tuple[list[str], Arms]:
    """Return (``arguments`` plus the grid of their preset (``sweep:`` in its YAML), without keys that they set
    themselves; the preset's arms)."""
    if not any(a.startswith("experiment=") for a in arguments):
        return list(arguments), {}
    overrides = parse_overrides(arguments)
    fixed = [o.input_line for o in overrides if not (o.is_sweep_override() or _sets_a_value(o))]
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        grid = node_of(hydra_compose.hydra_config(without_arm(fixed), config_dir), "sweep")
    given = {o.key_or_group for o in overrides}
    if grid is not None and not OmegaConf.is_dict(grid):
        raise UserError("sweep: is not a mapping. Use 'seed: 0,1,2' in it")
    values = OmegaConf.to_container(grid) if grid is not None else {}
    arms = read_arms(values.pop("arms")) if "arms" in values else {}
    if arms:
        values = {ARM: ",".join(arms), **values}
    if wrong := next((key for key, value in values.items() if value is None or isinstance(value, list | dict)), None):
        raise UserError(f"sweep.{wrong}: is not values separated by commas, as in {wrong}: '0,1,2'")
    return [*arguments, *(f"{key}={value}" for key, value in values.items() if key not in given)], arms


def compose_jobs(arguments: list[str], config_dir: str | None) -> list[ComposedJob]:
    """Compose and check every job of a (multi)run; imports nothing heavy. Raises :class:`UserError`."""
    return _composed(arguments, {}, config_dir)[0]


def composed_config(command: Command) -> dict[str, Any]:
    """Return the config of the first job of ``command`` with unresolved interpolations and the ``hydra`` part."""
    assert command.grid is not None
    return command.grid.unresolved(command.jobs[0].overrides)


def _composed(
    arguments: list[str], arms: Arms, config_dir: str | None, first: bool = False
) -> tuple[list[ComposedJob], JobGrid]:
    """Return (jobs, or the ``first`` of them; their grid). Hydra composes once per choice of groups; swept values are
    inserted."""
    overrides = parse_overrides(arguments)
    values = [values_of(override, config_dir) for override in overrides]
    _check_grid(overrides, values)
    swept = [o for o, own in zip(overrides, values, strict=True) if own and len(own) > 1]
    axes = [_axis(o, own, arms, overrides) for o, own in zip(overrides, values, strict=True)]
    of_arms = [override for own in arms.values() for override in own]
    late = {o.get_key_element() for o in (*overrides, *of_arms) if _sets_a_value(o)}
    label_keys = {o.get_key_element() for o in swept} - {"method", "seed", "task"} | {ARM}
    chosen = any("glob(" in o.input_line for o in swept)
    grid = JobGrid(config_dir, late, label_keys, [o.input_line for o in overrides])
    size = math.prod(map(len, axes))
    wanted = itertools.islice(itertools.product(*axes), 1 if first and not chosen else size)
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        lines = (list(itertools.chain(*picked)) for picked in wanted)
        jobs = [job for picked in lines if (job := grid.job(picked, chosen)) is not None]
    grid.size = size - grid.left_out
    if grid.left_out:
        globs = " ".join(message_text(o.input_line) for o in swept if "glob(" in o.input_line)
        if not jobs:
            raise UserError(f"{globs}: none fits; {grid.misfit}")
        LOGGER.warning("%s: %d that do not fit are left out (%s)", globs, grid.left_out, grid.misfit)
    return jobs, grid


def _axis(override: Override, values: list[str] | None, arms: Arms, overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of a job for each of the ``values`` of one override; those of an arm are several."""
    key = override.get_key_element()
    if key == ARM:
        return arm_overrides(values or [str(override.value())], arms, overrides)
    return [[f"{key}={value}"] for value in values] if values else [[override.input_line]]


def _sets_a_value(override: Override) -> bool:
    """Whether an override sets an existing key; others choose a group's file, add, delete, or set Hydra's keys."""
    key = override.key_or_group
    plain = override.type == OverrideType.CHANGE and override.package is None
    return plain and "/" not in key and key not in (*GROUPS, ARM) and key.partition(".")[0] not in ("hydra", "sweep")


def _check_grid(overrides: Sequence[Override], values: Sequence[list[str] | None]) -> None:
    """Check that the grid is not too large and sweeps none of Hydra's own keys."""
    for override, own in zip(overrides, values, strict=True):
        if own is not None and is_hydras(override.key_or_group):
            raise UserError(f"{message_text(override.input_line)}: Hydra's own keys take one value")
    widths = [len(own) if own else 1 for own in values]
    line = max(zip(widths, overrides, strict=True), key=lambda pair: pair[0])[1].input_line if overrides else ""
    check_count(message_text(line), math.prod(widths))
