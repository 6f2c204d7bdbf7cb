"""Select the configured device and set the switches that make results reproducible."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from knot_runner.config.devices import DEVICES, first_device
from knot_runner.config.settings.groups import HardwareSettings
from knot_runner.util.errors import UserError, counted
from knot_runner.util.processes import cores

#: Name of the device that this process computes on; "" for the CPU.
_name = ""


def choose_device(name: str) -> torch.device:
    """Return the device that ``hardware.device=name`` selects.

    Raises:
        UserError: The device is not available.
    """
    if name == "auto":
        name = first_device()
    device = torch.device(name)
    entry = DEVICES[device.type]
    count = entry.count()
    if count <= (device.index or 0):
        problem = f"no {entry.title} available"
        if count:
            problem = f"only {count} available (the first is {device.type}:0)"
        raise UserError(problem, "hardware.device", name, hint="Use hardware=cpu or hardware=auto")
    return device


def prepare_device(hardware: HardwareSettings) -> torch.device:
    """Set the thread count and deterministic kernels in this process, and return the device.

    The thread count is a setting, because it changes the order of sums and therefore the rounding of results.

    Raises:
        UserError: The device is not available, or does not support ``hardware.precision``.
    """
    global _name
    device = choose_device(hardware.device)
    entry = DEVICES[device.type]
    if hardware.precision not in entry.precisions:
        hint = f"Use {' or '.join(entry.precisions)}"
        raise UserError(f"not available on {device}", "hardware.precision", hardware.precision, hint=hint)
    torch.set_num_threads(hardware.threads)
    _name = entry.prepare()
    return device


def machine() -> str:
    """Return a description of everything on this machine that affects the rounding of a run's results.

    The description lists CPU instructions, threads, torch version and GPU.
    """
    threads = counted(torch.get_num_threads(), "thread")
    parts = [torch.backends.cpu.get_cpu_capability(), threads, f"torch {torch.__version__}", _name]
    return ", ".join(filter(None, parts))


def all_machines(records: Iterable[dict]) -> list[str]:
    """Return all machines in the ``machines`` entries of ``records``, and the current machine, without duplicates."""
    return list(dict.fromkeys([*(name for record in records for name in record.get("machines", [])), machine()]))


def worker_count(hardware: HardwareSettings) -> int:
    """Return ``hardware.num_workers``, or the number of cores if this setting is 0."""
    return hardware.num_workers or cores()
