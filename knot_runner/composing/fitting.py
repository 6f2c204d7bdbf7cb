"""Choices that nobody typed, made so that task and method of a composed config fit together."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from knot_runner.config.settings import fitting_choices
from knot_runner.config.settings.families import family_of_algorithm

#: Of the groups: what decides whether they fit together, and names.
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
)


def chosen_to_fit(config: DictConfig, typed: set[str]) -> tuple[list[str], str]:
    """(Overrides that task and method of ``config`` ask for together, what to say of them).

    ``typed``: groups and keys that the command line sets, which stay as they are.
    """
    groups = {group: _decisive(node_of(config, group)) for group in ("task", "method", "training", "partition")}
    chosen = [f"{key}={value}" for key, value in fitting_choices(groups).items() if key not in typed]
    if not chosen:
        return [], ""
    names = f"method={groups['method'].get('name')} on task={groups['task'].get('name')}"
    return chosen, f"{' '.join(chosen)}: chosen for {names}"


def deals_nothing(config: DictConfig) -> bool:
    """Whether the method of a composed ``config`` trains on all examples as one pool, so that there is no partition."""
    method = node_of(config, "method")
    algorithm = node_of(method, "algorithm") if OmegaConf.is_dict(method) else None
    return not family_of_algorithm(str(algorithm)).clients


def _decisive(group: Any) -> Any:
    """The ``DECISIVE_KEYS`` of a composed group, and of its groups, as plain values; what is no group as it is."""
    if not OmegaConf.is_dict(group):
        return group
    return {key: _decisive(node_of(group, key)) for key in DECISIVE_KEYS if key in group}


def node_of(config: DictConfig, key: str) -> Any:
    """What ``config`` has under ``key``; None where there is nothing, or an interpolation, which is resolved later."""
    if key not in list(config) or OmegaConf.is_interpolation(config, key):
        return None
    return config.get(key)
