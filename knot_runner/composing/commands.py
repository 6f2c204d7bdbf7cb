"""From the command line to jobs: overrides, presets with their grid, one checked set of settings per job."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from knot_runner.composing.catalog import GROUPS, config_folder, yaml_files
from knot_runner.composing.fitting import chosen_to_fit, deals_nothing, node_of
from knot_runner.composing.flags import usual_overrides
from knot_runner.composing.hardware import chosen_hardware
from knot_runner.composing.hydra_keys import LAUNCHER_GROUP, check_hydra, is_hydras
from knot_runner.composing.interpolations import check_growth, plain_config
from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.composing.named_models import with_models
from knot_runner.composing.override_errors import bad_override, message_text, missing_config, one_line
from knot_runner.composing.overrides import (
    check_count,
    config_dir_of,
    last_counts,
    parse_overrides,
    split_flags,
    values_of,
)
from knot_runner.composing.own_yaml import in_a_loop, search_path
from knot_runner.composing.swept import Base
from knot_runner.composing.tracked import under_preset
from knot_runner.config.settings import Misfit
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.messages import LOGGER, messages_to


@dataclass(frozen=True)
class Command:
    """What one preset of a command line, or a command line without one, asks for.

    ``arguments``: what was typed, with this preset alone. ``hydra``: Hydra's part of the composed config, its launcher
    among it. ``sweep``: a grid was asked for, though it may have one job.
    """

    preset: str | None
    arguments: list[str]
    jobs: list[ComposedJob]
    hydra: DictConfig
    sweep: bool


def compose_all(arguments: list[str]) -> tuple[list[ComposedJob], list[Command]]:
    """(All jobs, and they once more by preset: each has its own grid.) Raises :class:`UserError`.

    A key that is given twice is logged.
    """
    flags, words = split_flags(arguments)
    config_dir = config_dir_of(flags)
    overrides, notes = last_counts(parse_overrides(usual_overrides(words)))
    for note in notes:
        LOGGER.warning("%s", note)
    commands = [_command(flags, own, config_dir) for own in _by_preset(overrides, config_dir)]
    return [job for command in commands for job in command.jobs], commands


def _by_preset(overrides: Sequence[Override], config_dir: str | None) -> list[list[str]]:
    """The overrides as they were typed, once per preset that they name."""
    names = [(at, values_of(o, config_dir)) for at, o in enumerate(overrides) if o.key_or_group == "experiment"]
    words = [override.input_line for override in overrides]
    if not names or names[0][1] is None:
        return [words]
    at, values = names[0]
    return [[*words[:at], f"experiment={value}", *words[at + 1 :]] for value in values]


def _command(flags: list[str], words: list[str], config_dir: str | None) -> Command:
    preset = next((word.partition("=")[2] for word in words if word.startswith("experiment=")), None)
    jobs, hydra = _composed(expand_preset(words, config_dir), config_dir)
    asked = {"-m", "--multirun"} & set(flags) or any(word.startswith(f"{LAUNCHER_GROUP}=") for word in words)
    return Command(preset, [*flags, *words], jobs, hydra, len(jobs) > 1 or bool(asked))


def expand_preset(arguments: list[str], config_dir: str | None) -> list[str]:
    """``arguments`` with the grid of their preset (``sweep:`` in its YAML) added, less what they set themselves."""
    if not any(a.startswith("experiment=") for a in arguments):
        return list(arguments)
    overrides = parse_overrides(arguments)
    fixed = [o.input_line for o in overrides if not o.is_sweep_override() and not _sets_a_value(o)]
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        grid = node_of(_compose_here(fixed, config_dir), "sweep")
    given = {o.key_or_group for o in overrides}
    values = plain_config(grid) if OmegaConf.is_dict(grid) else {}
    return [*arguments, *(f"{key}={value}" for key, value in values.items() if key not in given)]


def compose_jobs(arguments: list[str], config_dir: str | None) -> list[ComposedJob]:
    """Every job of a (multi)run, composed and checked; nothing heavy is loaded. Raises :class:`UserError`."""
    return _composed(arguments, config_dir)[0]


def composed_config(job: ComposedJob, config_dir: str | None) -> tuple[dict[str, Any], list[str]]:
    """(The config of ``job`` with its interpolations, as plain values, and Hydra's part in it; the overrides, chosen
    ones among them, that Hydra composes it of.)"""
    late = {o.get_key_element() for o in parse_overrides(job.overrides) if _sets_a_value(o)}
    grid = _Grid(config_dir, late, set(), job.overrides)
    quiet = messages_to(lambda text: None)  # what was chosen has been said when the job was composed
    with quiet, initialize_config_dir(str(config_folder()), version_base="1.3"):
        return grid.unresolved(job.overrides)


def _composed(arguments: list[str], config_dir: str | None) -> tuple[list[ComposedJob], DictConfig]:
    """(The jobs, Hydra's part of the config.) Hydra composes once per choice of groups; swept values are put in."""
    overrides = parse_overrides(arguments)
    values = [values_of(override, config_dir) for override in overrides]
    _check_grid(overrides, values)
    swept = [o for o, own in zip(overrides, values, strict=True) if own and len(own) > 1]
    axes = [
        [f"{o.get_key_element()}={value}" for value in own] if own else [o.input_line]
        for o, own in zip(overrides, values, strict=True)
    ]
    late = {o.get_key_element() for o in overrides if _sets_a_value(o)}
    apart = {o.get_key_element() for o in swept} - {"method", "seed", "task"}
    chosen = any("glob(" in o.input_line for o in swept)
    grid = _Grid(config_dir, late, apart, [o.input_line for o in overrides])
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        jobs = [job for picked in itertools.product(*axes) if (job := grid.job(list(picked), chosen)) is not None]
    if grid.left_out:
        globs = " ".join(message_text(o.input_line) for o in swept if "glob(" in o.input_line)
        if not jobs:
            raise UserError(f"{globs}: none fits; {grid.misfit}")
        LOGGER.warning("%s: %d that do not fit are left out (%s)", globs, grid.left_out, grid.misfit)
    return jobs, grid.hydra


def _sets_a_value(override: Override) -> bool:
    """Whether it sets a key that the config has; others choose a group's file, add, delete, or are Hydra's."""
    key = override.key_or_group
    plain = override.type == OverrideType.CHANGE and override.package is None
    return plain and "/" not in key and key not in GROUPS and key.partition(".")[0] not in ("hydra", "sweep")


def _check_grid(overrides: Sequence[Override], values: Sequence[list[str] | None]) -> None:
    """No more jobs than a command can have, and none over Hydra's own keys."""
    for override, own in zip(overrides, values, strict=True):
        if own is not None and is_hydras(override.key_or_group):
            raise UserError(f"{message_text(override.input_line)}: Hydra's own keys take one value")
    widths = [len(own) if own else 1 for own in values]
    line = max(zip(widths, overrides, strict=True), key=lambda pair: pair[0])[1].input_line if overrides else ""
    check_count(message_text(line), math.prod(widths))


class _Grid:
    """Composes the jobs of one grid, within ``initialize_config_dir``.

    ``late``: keys that choose no group, set once Hydra has composed; ``apart``: those of a job's label; ``words``: all
    overrides, as they were typed. ``left_out``: how many jobs were, ``misfit``: why the last one was.
    """

    def __init__(self, config_dir: str | None, late: set[str], apart: set[str], words: list[str]) -> None:
        self.config_dir, self.late, self.apart, self.words = config_dir, late, apart, words
        self.hydra = DictConfig({})
        self.misfit, self.left_out = "", 0
        self._composed: dict[tuple[str, ...], tuple[Base, Any, list[str]]] = {}
        self._parsed: dict[str, Override] = {}
        self._noted: set[str] = set()
        self._models: dict[str, dict[str, Any]] = {}

    def job(self, picked: list[str], chosen: bool) -> ComposedJob | None:
        """One job; with ``chosen`` (names were found by a glob), None where its groups do not fit together."""
        early = tuple(o for o in picked if _key(o) not in self.late)
        if early not in self._composed:
            self._composed[early] = self._base(list(early))
        base, claims, fitting = self._composed[early]
        try:
            config = base.with_values([self._override(o) for o in picked if _key(o) in self.late])
        except OmegaConfBaseException as problem:
            return self._left_out(self._said(_in_place(fitting, picked), problem), chosen)
        config = under_preset(with_models(config, self._model), self.words)
        if claims is not None:
            config = {**config, "report": {**config["report"], "claims": claims}}
        try:
            return job_of(config, picked, ", ".join(o for o in picked if _key(o) in self.apart))
        except Misfit as problem:
            return self._left_out(problem, chosen)

    def _said(self, overrides: list[str], problem: OmegaConfBaseException) -> UserError:
        """Hydra's own error of ``overrides``, which OmegaConf has refused with ``problem``, in one line."""
        try:
            _compose_here(overrides, self.config_dir)
        except UserError as said:
            return said
        return UserError(one_line(str(problem)))

    def _left_out(self, problem: UserError, chosen: bool) -> None:
        """Raises ``problem``, unless the groups of its job were ``chosen`` by a glob: then the job is left out."""
        if not chosen:
            raise problem from None
        self.misfit, self.left_out = str(problem), self.left_out + 1

    def unresolved(self, picked: list[str]) -> tuple[dict[str, Any], list[str]]:
        """See :func:`composed_config`."""
        base, claims, fitting = self._base([o for o in picked if _key(o) not in self.late])
        config = OmegaConf.to_container(base.composed([self._override(o) for o in picked if _key(o) in self.late]))
        if claims is not None:
            config["report"]["claims"] = claims
        hydra = {key: value for key, value in OmegaConf.to_container(self.hydra).items() if not key.endswith("help")}
        return {"hydra": hydra, **config}, _in_place(fitting, picked)

    def _model(self, name: str) -> dict[str, Any]:
        """The settings of the model in ``conf/model/NAME.yaml``."""
        if name not in self._models:
            names = [path.stem for path in yaml_files("model", self.config_dir)]
            if name not in names:
                raise UserError(f"there is no model {name!r}{nearest(name, names)}")
            composed = _compose_here([f"model={name}"], self.config_dir)
            self._models[name] = plain_config(OmegaConf.masked_copy(composed, ["model"]))["model"]
        return self._models[name]

    def _override(self, text: str) -> Override:
        if text not in self._parsed:
            (self._parsed[text],) = parse_overrides([text])
        return self._parsed[text]

    def _base(self, early: list[str]) -> tuple[Base, Any, list[str]]:
        """(What Hydra composed, its claims, the choices that were added to fit.)"""
        config = _compose_here(early, self.config_dir)
        typed = {_key(override).lstrip("+~") for override in early} | self.late
        fitting, note = chosen_to_fit(config, typed)
        if fitting:
            config = _compose_here([*fitting, *early], self.config_dir)
            self._note(note)
        hardware, note = chosen_hardware(config, self.words)
        if hardware:
            fitting = [*fitting, *hardware]
            config = _compose_here(_in_place(fitting, early), self.config_dir)
        if note:
            self._note(note)
        with open_dict(config):
            self.hydra = config.pop("hydra")
            if deals_nothing(config) and not any(key.partition(".")[0] == "partition" for key in typed):
                config.pop("partition", None)  # the task's own choice, for methods that have clients
        config, claims = _apart_from_claims(config)
        return Base(config), claims, fitting

    def _note(self, text: str) -> None:
        """Log ``text``, once."""
        if text not in self._noted:
            self._noted.add(text)
            LOGGER.info("%s", text)


def _in_place(choices: list[str], typed: list[str]) -> list[str]:
    """``choices``, and the ``typed`` overrides of other keys: of ``hardware=auto`` something is chosen in its place."""
    keys = {_key(choice) for choice in choices}
    return [*choices, *(override for override in typed if _key(override) not in keys)]


def _apart_from_claims(config: DictConfig) -> tuple[DictConfig, Any]:
    """``config`` without its claims, and these: long, the same for all jobs, and slow to resolve hundreds of times."""
    report = node_of(config, "report")
    claims = node_of(report, "claims") if OmegaConf.is_dict(report) else None
    if not OmegaConf.is_config(claims):
        return config, None
    with open_dict(report):
        del report["claims"]
    return config, OmegaConf.to_container(claims)


def _key(override: str) -> str:
    return override.split("=", 1)[0]


def _compose_here(overrides: list[str], config_dir: str | None) -> DictConfig:
    """Inside an ``initialize_config_dir``: the config with Hydra's part, which has nothing in it that we do not honour.

    Every failure is one line that names the key.
    """
    search = search_path(config_dir)
    try:
        config = compose("config", overrides=[*search, *overrides], return_hydra_config=True)
    except MissingConfigException as problem:
        raise UserError(missing_config(str(problem), config_dir)) from None
    except (HydraException, OmegaConfBaseException) as problem:
        raise UserError(bad_override(str(problem), overrides, search)) from None
    except RecursionError:
        where = in_a_loop(config_dir)
        raise UserError(f"{where}: its defaults lead back to it" if where else "a value nested too deep") from None
    check_hydra(config.hydra)
    if config_dir or any("$" in override for override in overrides):
        check_growth(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]))
    return config
