"""Automatic choices: what makes task and method of a composed config fit together, and the hardware.

``hardware=auto``, the default, is CUDA if there is a device and the run computes on it, else the CPU:
``conf/hardware/auto.yaml`` composes to the CPU's settings, so nothing changes on a machine without a CUDA device.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from knot_runner.config.settings import fitting_choices
from knot_runner.config.settings.families import family_of_algorithm
from knot_runner.config.settings.run_id import kind_of

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
    "server_distillation",
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


#: Overrides that select the CPU without naming a file of ``hardware``.
CPU_VALUES = ("hardware.device=cpu", "hardware.engine=lean")


def chosen_hardware(config: DictConfig, typed: Sequence[str]) -> tuple[list[str], str]:
    """Return (overrides that replace ``auto`` in ``config``, a line for the log); both empty if other hardware is
    chosen.

    ``config``: composed, with the ``hydra`` part; ``typed``: the overrides of the command line.
    """
    if config.hydra.runtime.choices.get("hardware") != "auto":
        return [], ""
    device = cuda_device()
    if device is None:
        return [], "hardware: CPU (no CUDA device)"
    family = family_of_algorithm(str(_value(config, "method", "algorithm")))
    if not family.on_gpu:
        return [], f"hardware: CPU ({family.name} computes nothing on {device})"
    if cpu_words := [value for value in CPU_VALUES if value in typed]:
        return [], f"hardware: CPU ({cpu_words[0]})"
    of_texts = kind_of({"kind": _value(config, "task", "kind")}) == "texts"
    in_a_loop = family.training == "rounds" and (of_texts or _value(config, "model", "kind") == "custom")
    return ["hardware=cuda", *(["hardware.engine=loop"] if in_a_loop else [])], f"hardware: CUDA, {device}"


def _value(config: DictConfig, group: str, key: str) -> object:
    node = node_of(config, group)
    return node_of(node, key) if OmegaConf.is_dict(node) else None


@functools.cache
def cuda_device() -> str | None:
    """The name of the first CUDA device; None if torch can use none.

    Queries the driver first, so that torch, which takes seconds to import, is imported only if there is a device.
    """
    name = driver_device()
    if name is None:
        return None
    import torch

    return name if torch.cuda.is_available() else None


def driver_device() -> str | None:
    """The name of the first device by the CUDA driver API; None without a driver or device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        failed = (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), 0)
            or driver.cuDeviceGetName(name, len(name), device)
        )
    except (OSError, AttributeError):  # no such library, or one without these functions
        return None
    return None if failed else name.value.decode(errors="replace")
