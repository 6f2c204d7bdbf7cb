"""The choice of the hardware.

``hardware=auto``, the default, is the first device that is found if the run computes on it, else the CPU:
``conf/hardware/auto.yaml`` composes to the CPU's settings, so nothing changes on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from knot_runner.config.devices import first_device, is_host
from knot_runner.config.settings.families import Family, family_of_algorithm


def composed_family(config: DictConfig) -> Family:
    """Return the family of the method of a composed ``config``."""
    method = node_of(config, "method")
    algorithm = node_of(method, "algorithm") if OmegaConf.is_dict(method) else None
    return family_of_algorithm(str(algorithm))


def node_of(config: DictConfig, key: str) -> Any:
    """The value of ``config`` at ``key``; None if missing or an interpolation, which is resolved later."""
    if key not in list(config) or OmegaConf.is_interpolation(config, key):
        return None
    return config.get(key)


#: Overrides that select the CPU without naming a file of ``hardware``.
CPU_VALUES = ("hardware.device=cpu", "hardware.engine=lean")


def chosen_hardware(config: DictConfig, typed: Sequence[str]) -> tuple[str, str]:
    """Return (the override that replaces ``auto`` in ``config``, a line for the log); "" for no override or line.

    ``config``: composed, with the ``hydra`` part; ``typed``: the overrides of the command line.
    """
    if config.hydra.runtime.choices.get("hardware") != "auto":
        return "", ""
    device = first_device()
    if is_host(device):
        return "", "hardware: CPU (no GPU found)"
    family = composed_family(config)
    if not family.on_gpu:
        return "", f"hardware: CPU ({family.name} computes nothing on {device.upper()})"
    for value in CPU_VALUES:
        if value in typed:
            return "", f"hardware: CPU ({value})"
    return f"hardware={device}", f"hardware: {device.upper()}"
