"""Composed jobs, and the composition of a grid of jobs."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from knot_runner.composing import hydra_compose
from knot_runner.composing.hydra_compose import plain_config
from knot_runner.composing.named_values import (
    PART_TAGS,
    chosen_hardware,
    composed_family,
    with_named_values,
    without_arm,
)
from knot_runner.composing.overrides import one_line, parse_overrides, preset_in
from knot_runner.config.settings.run import ARM, Settings, build_run
from knot_runner.config.settings.run_id import run_id, settings_record
from knot_runner.config.strict import without
from knot_runner.util.config_yaml import Config, choices
from knot_runner.util.errors import LOGGER, UserError, unknown


class _Dumper(yaml.SafeDumper):
    """Writer of plain values as YAML, four times as fast as OmegaConf.

    It writes no aliases, and quotes strings that some readers take for numbers (``1e-3``).
    """

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        try:
            float(text)
        except ValueError:
            return self.represent_str(text)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="'")


_Dumper.add_representer(str, _Dumper.represent_text)


@dataclass(frozen=True)
class ComposedJob:
    """One composed job. ``config`` has the values of all settings as plain data, and ``settings`` has them as objects.

    :func:`job_of` can rebuild the job from ``config`` alone, for example in another process.
    """

    config: Config
    settings: Settings
    #: overrides as the user typed them
    overrides: list[str] = field(default_factory=list)
    #: overrides that distinguish this job from other jobs of its grid, without task, method and seed
    label: str = ""
    #: name of the job's arm; "" without arms
    arm: str = ""

    @property
    def method(self) -> Any:
        """Return the settings of the method."""
        return self.settings.method

    @functools.cached_property
    def run_id(self) -> str:
        """Return the run id, a digest of the settings that can change results."""
        return run_id(self.config)

    @property
    def out(self) -> Path:
        """Return ``paths.output_dir``."""
        return Path(self.settings.paths.output_dir)

    @property
    def folder(self) -> Path:
        """Return the folder of the run, ``<out>/<task>/<method>/<run id>``."""
        return self.out / self.settings.task.name / self.settings.method.name / self.run_id

    @property
    def own_config(self) -> Config:
        """Return the config without its parts ``sweep`` and ``report``."""
        return without(self.config, "sweep", "report")

    @functools.cached_property
    def config_yaml(self) -> str:
        """Return the content of the run's ``config.yaml``."""
        return plain_yaml(self.own_config)

    @property
    def title(self) -> str:
        """Return a title for display: task, method, seed, and the settings that distinguish the job within its grid."""
        name = f"{self.settings.task.name} {self.settings.method.name} seed {self.settings.seed}"
        return f"{name} {self.label.replace(', ', ' ')}".strip()


def plain_yaml(config: Config) -> str:
    """Return ``config`` as the text of a YAML file. All values in ``config`` are plain."""
    return yaml.dump(config, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


def job_of(config: Config) -> ComposedJob:
    """Check a composed config of plain values, and return its job.

    The config of the job has the values of all settings, including those that are missing in ``config``.

    Raises:
        UserError: A setting is wrong.
    """
    settings = build_run(config)
    return ComposedJob({**config, **settings_record(settings)}, settings)


# ---------------------------------------------------------------------------------------------------------- job grid


@dataclass
class JobGrid:
    """A grid of jobs. The method :meth:`job` composes one of them."""

    config_dir: str | None
    #: keys whose overrides set single values. These values are set after Hydra has composed the groups
    late: set[str]
    #: keys that a job's label shows
    label_keys: set[str]
    #: all overrides as typed
    words: list[str]
    #: number of jobs in the grid
    size: int
    #: the ``hydra`` part of the last job
    hydra: DictConfig = field(default_factory=lambda: DictConfig({}))
    _bases: dict[tuple[str, ...], tuple[DictConfig, DictConfig]] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=lambda: {""})
    _choices: dict[str, Config] = field(default_factory=dict)

    def job(self, picked: list[str]) -> ComposedJob:
        """Compose one job of the grid. Each override in ``picked`` has a single value. Raises :class:`UserError`."""
        groups = []
        late = []
        label = []
        arm = ""
        for override in picked:
            key, _, value = override.partition("=")
            if key in self.late:
                late.append(override)
            else:
                groups.append(override)
            if key in self.label_keys:
                label.append(override)
            if key == ARM:
                arm = value
        base, self.hydra = self._composed(tuple(groups))
        if "{" in "".join(self.words):  # a mapping sets several keys, also with values that all jobs share
            base = copy.deepcopy(base)
        try:
            config = plain_config(with_values(base, parse_overrides(late)))
        except (OmegaConfBaseException, RecursionError) as problem:
            raise UserError(one_line(str(problem))) from None
        config = with_named_values(config, self._values, self._base_values)
        job = job_of(_under_preset(config, self.words))
        for note in job.settings.notes:
            self._note(note)
        return dataclasses.replace(job, overrides=picked, label=", ".join(label), arm=arm)

    def _note(self, note: str) -> None:
        """Log ``note`` once."""
        if note not in self._noted:
            self._noted.add(note)
            LOGGER.info("%s", note)

    def _values(self, group: str, name: str) -> Config:
        """Return the settings in ``conf/GROUP/NAME.yaml``."""
        choice = f"{group}/{name}"
        if choice not in self._choices:
            names = choices(group, self.config_dir)
            if name not in names:
                raise unknown(group, name, names, f"knot-runner ls {group}")
            composed = hydra_compose.choice_config(choice, self.config_dir)
            self._choices[choice] = plain_config(OmegaConf.select(composed, group.replace("/", ".")))
        return self._choices[choice]

    def _base_values(self, group: str, name: str) -> Config:
        """Return the settings in ``conf/base/GROUP/NAME.yaml``; {} if there is no such file."""
        group = f"base/{group}"
        if name not in choices(group, self.config_dir):
            return {}
        return self._values(group, name)

    def _composed(self, groups: tuple[str, ...]) -> tuple[DictConfig, DictConfig]:
        """Return the config that Hydra composes for a choice of groups, and its ``hydra`` part."""
        if groups not in self._bases:
            self._bases[groups] = self._compose(without_arm(groups))
        return self._bases[groups]

    def _compose(self, groups: list[str]) -> tuple[DictConfig, DictConfig]:
        config = hydra_compose.hydra_config(groups, self.config_dir)
        chosen, note = chosen_hardware(config, self.words)
        if chosen:  # instead of hardware=auto
            others = [override for override in groups if _key(override) != "hardware"]
            config = hydra_compose.hydra_config([chosen, *others], self.config_dir)
        self._note(note)
        typed = {_key(override).lstrip("+~").partition(".")[0] for override in (*groups, *self.late)}
        with open_dict(config):
            hydra = config.pop("hydra")
            if not composed_family(config).clients and "partition" not in typed:
                config.pop("partition", None)  # the task's default, for methods that have clients
        return config, hydra


def with_values(config: DictConfig, overrides: Sequence[Override]) -> DictConfig:
    """Set the values of ``overrides`` in ``config``, which is changed in place and returned.

    A key that does not exist is added, as by ``++KEY=VALUE`` in Hydra. Overrides that select a part of the method, such
    as ``method.loss=sinkhorn``, are applied before all other overrides.

    Raises:
        OmegaConfBaseException: A key such as ``a.b`` is to be set, but the value of ``a`` is not a mapping.
    """
    # The name of a part replaces the part's settings. It must therefore be set before them, even if it is typed later.
    for override in sorted(overrides, key=lambda override: override.key_or_group not in PART_TAGS):
        key = override.key_or_group
        value = override.value()
        is_name = key in PART_TAGS and isinstance(value, str)
        if is_name:  # selects another part, whose settings are in a file
            value = {PART_TAGS[key]: value}
        OmegaConf.update(config, key, value, merge=not is_name, force_add=True)
    return config


def _under_preset(config: Config, words: Sequence[str]) -> Config:
    """Return a composed ``config`` in which the tracker, if any, groups the run by the preset.

    ``words``: the overrides, which may contain a preset. Run ids do not depend on the tracker.
    """
    tracker: Config = config.get("tracker") or {}
    preset = preset_in(words)
    if preset is None or tracker.get("name", "none") == "none" or tracker.get("group") is not None:
        return config
    return {**config, "tracker": {**tracker, "group": preset}}


def _key(override: str) -> str:
    return override.split("=", 1)[0]
