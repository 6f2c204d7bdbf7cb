"""One job, composed: its config, its settings, where it lies, and its name for a person."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_omega_conf_dumper

from knot_runner.config.settings import Settings, run_id

#: Settings that a job's title says in words of its own (:func:`job_variant`).
TOLD = ("method.temperature", "method.lr_control", "method.clustering.graph", "method.fedwad.support")


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

    @property
    def title(self) -> str:
        """Its name for a person: task, method, seed, and whatever else sets it apart from the others of its grid."""
        settings = self.settings
        name = f"{settings.task.name} {settings.method['name']}{job_variant(settings.method)} seed {settings.seed}"
        others = [part for part in self.label.split(", ") if part and part.split("=")[0] not in TOLD]
        return " ".join([name, *others])


class _Dumper(get_omega_conf_dumper()):
    """OmegaConf's own, for plain values: to make an OmegaConf config of them first takes four times as long."""

    def ignore_aliases(self, data: Any) -> bool:
        """Values may be shared, but each is written out."""
        return True


def as_yaml(config: dict[str, Any]) -> str:
    """A composed, plain config as ``config.yaml`` has it: less a preset's grid and how it is shown."""
    plain = own_config(config)
    return yaml.dump(plain, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


def own_config(config: dict[str, Any]) -> dict[str, Any]:
    """A composed, plain config less a preset's grid and how it is shown: what a run reads."""
    return {key: value for key, value in config.items() if key not in ("sweep", "report")}


def run_folder(settings: Settings, name: str) -> Path:
    """``<out>/<task>/<method>/<run id>``."""
    return Path(settings.paths.out) / settings.task.name / settings.method["name"] / name


def job_variant(method: dict[str, Any]) -> str:
    """What a sweep would otherwise not show: the temperature of a chilled method, the graph, the measures."""
    parts = []
    if method.get("temperature") not in (None, 1):
        parts.append(f"T={method['temperature']:g}" + (" (in the rate)" if method["lr_control"] else ""))
    if method.get("clustering"):
        parts.append(method["clustering"]["graph"])
    if method.get("fedwad") and method.get("distance") != "exact":
        mode, support = method["fedwad"]["mode"], method["fedwad"]["support"]
        parts.append(mode if mode == "exact" else f"S={support}")
    return "".join(f" {part}" for part in parts)
