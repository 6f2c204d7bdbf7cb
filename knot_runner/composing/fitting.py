"""Automatic choices that make task and method of a composed config fit together."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from knot_runner.config.settings import fitting_choices
from knot_runner.config.settings.families import family_of_algorithm

#: Keys of the groups that decide whether they fit together, and their names.
DECISIVE_KEYS = (
    "kind",
    "algorithm",
    "rounds",
    "name",
    "loss",
    "solver",
    "geometry",
    "coordinates",
    "teachers",
    "terms",
    "sinkhorn",
    "distil",
)


def chosen_to_fit(config: DictConfig, typed: set[str]) -> tuple[list[str], str]:
    """Return (overrides that make task and method of ``config`` fit, a line for the log).

    ``typed``: groups and keys set on the command line, which are not changed.
    """
    groups = {group: _decisive(node_of(config, group)) for group in ("task", "method", "training", "partition")}
    chosen = [f"{key}={value}" for key, value in fitting_choices(groups).items() if key not in typed]
    if not chosen:
        return [], ""
    names = f"method={groups['method'].get('name')} on task={groups['task'].get('name')}"
    return chosen, f"{' '.join(chosen)}: chosen for {names}"


def deals_nothing(config: DictConfig) -> bool:
    """Whether the method of a composed ``config`` trains on one pool of all examples, without a partition."""
    method = node_of(config, "method")
    algorithm = node_of(method, "algorithm") if OmegaConf.is_dict(method) else None
    return not family_of_algorithm(str(algorithm)).clients


def _decisive(group: Any) -> Any:
    """The ``DECISIVE_KEYS`` of a composed group and of its subgroups as plain values; other values unchanged."""
    if not OmegaConf.is_dict(group):
        return group
    return {key: _decisive(node_of(group, key)) for key in DECISIVE_KEYS if key in group}


def node_of(config: DictConfig, key: str) -> Any:
    """The value of ``config`` at ``key``; None if missing or an interpolation, which is resolved later."""
    if key not in list(config) or OmegaConf.is_interpolation(config, key):
        return None
    return config.get(key)
