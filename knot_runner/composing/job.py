"""One composed job: its config, settings, folder and title."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from knot_runner.config.settings import Settings, build_run, run_id
from knot_runner.config.settings.run_id import settings_record
from knot_runner.config.strict import without
from knot_runner.util.config_yaml import Config

#: Settings that :func:`job_variant` describes in a job's title.
TOLD = ("method.temperature", "method.lr_control", "method.clustering.graph", "method.fedwad.support")


class _Dumper(yaml.SafeDumper):
    """Writes plain values, as OmegaConf does in four times the time: without aliases, and with quotes around strings
    that some readers take for numbers (``1e-3``)."""

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
    """One job, from composing to reporting: its config (plain, with the values of its settings) and settings.

    A launcher sends only the config, from which :func:`job_of` rebuilds the job.
    """

    config: Config
    settings: Settings
    #: as typed
    overrides: list[str] = field(default_factory=list)
    #: what distinguishes it from the preset's other jobs, beyond method and seed
    label: str = ""
    #: its arm, "" for none
    arm: str = ""

    @property
    def method(self) -> Any:
        """Settings of the method."""
        return self.settings.method

    @functools.cached_property
    def run_id(self) -> str:
        return run_id(self.config)

    @property
    def folder(self) -> Path:
        """``<out>/<task>/<method>/<run id>``."""
        settings = self.settings
        return Path(settings.paths.output_dir) / settings.task.name / settings.method.name / self.run_id

    @property
    def own_config(self) -> Config:
        """The part of the config that a run reads: all but a preset's grid and report settings."""
        return without(self.config, "sweep", "report")

    @functools.cached_property
    def config_yaml(self) -> str:
        """The content of the run's ``config.yaml``."""
        return plain_yaml(self.own_config)

    @property
    def title(self) -> str:
        """The job's display name: task, method, seed, and the settings that distinguish it within its grid."""
        settings, variant = self.settings, job_variant(self.config["method"])
        name = f"{settings.task.name} {settings.method.name}{variant} seed {settings.seed}"
        others = [part for part in self.label.split(", ") if part and part.split("=")[0] not in TOLD]
        return " ".join([name, *others])


def plain_yaml(config: Config) -> str:
    """Return a plain ``config`` as YAML."""
    return yaml.dump(config, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


def job_of(config: Config) -> ComposedJob:
    """Build the job of a composed, plain ``config``, which its record replaces. Raises :class:`UserError`."""
    settings = build_run(config)
    return ComposedJob({**config, **settings_record(settings)}, settings)


def job_variant(method: Config) -> str:
    """Title words for settings that are otherwise not shown: temperature of a chilled method, graph, measures."""
    text = ""
    if method.get("temperature") not in (None, 1):
        text += f" T={method['temperature']:g}" + (" (in the rate)" if method["lr_control"] else "")
    if method.get("clustering"):
        text += f" {method['clustering']['graph']}"
    if method.get("fedwad") and method.get("distance") != "exact":
        is_exact = method["fedwad"]["mode"] == "exact"
        text += " exact" if is_exact else f" S={method['fedwad']['support']}"
    return text
