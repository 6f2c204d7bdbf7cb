"""Select the device, and configure torch so that results are reproducible."""

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
    """Return the device for the value ``name`` of the setting ``hardware.device``.

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
            problem = f"expected an index below {count} (the number of {device.type} devices)"
        raise UserError(problem, "hardware.device", name, hint="Use hardware=cpu or hardware=auto")
    return device


def prepare_device(hardware: HardwareSettings) -> torch.device:
    """Set the number of threads and enable deterministic kernels in this process; return the device.

    Raises:
        UserError: The device is not available, or does not support ``hardware.precision``.
    """
    global _name
    device = choose_device(hardware.device)
    entry = DEVICES[device.type]
    if hardware.precision not in entry.precisions:
        hint = f"Use {' or '.join(entry.precisions)}"
        raise UserError(f"not available on {device}", "hardware.precision", hardware.precision, hint=hint)
    # The number of threads is a setting, because it changes the order of sums and thus the rounding of results.
    torch.set_num_threads(hardware.threads)
    _name = entry.prepare()
    return device


def machine() -> str:
    """Return a description of this machine: CPU instruction set, threads, torch version and GPU.

    All of these affect the rounding of results.
    """
    threads = counted(torch.get_num_threads(), "thread")
    parts = [torch.backends.cpu.get_cpu_capability(), threads, f"torch {torch.__version__}", _name]
    return ", ".join(filter(None, parts))


def all_machines(records: Iterable[dict]) -> list[str]:
    """Return the descriptions of all machines in ``records`` and of the current machine, without duplicates.

    A record lists descriptions (:func:`machine`) under the key ``machines``.
    """
    return list(dict.fromkeys([*(name for record in records for name in record.get("machines", [])), machine()]))


def worker_count(hardware: HardwareSettings) -> int:
    """Return ``hardware.num_workers``, or the number of cores if this setting is 0."""
    return hardware.num_workers or cores()
