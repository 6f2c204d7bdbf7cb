"""Select the configured device and set the switches that make results reproducible."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import Tensor

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
    device = torch.device(first_device() if name == "auto" else name)
    entry = DEVICES[device.type]
    count = entry.count()
    if count <= (device.index or 0):
        problem = f"only {count} available (the first is {device.type}:0)" if count else f"no {entry.title} available"
        raise UserError(problem, "hardware.device", name, hint="Use hardware=cpu or hardware=auto")
    return device


def prepare_device(hardware: HardwareSettings) -> torch.device:
    """Set the thread count and deterministic kernels in this process, and return the device.

    The thread count is a setting, because results depend on it (summation order).

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


@functools.cache
def float64_device(device: torch.device) -> torch.device:
    """Return the device for float64 computations on values of ``device``: the CPU if ``device`` lacks float64."""
    return device if "float64" in DEVICES[device.type].precisions else torch.device("cpu")


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """Return ``values`` on ``device``. If the device does not support float64, float64 values stay on the CPU."""
    return values.to(float64_device(device) if values.dtype == torch.float64 else device)


def in_float64(values: Tensor) -> Tensor:
    """Return ``values`` in float64, on the device that :func:`float64_device` selects."""
    return values.to(float64_device(values.device)).double()


def zero_sum(device: torch.device, *shape: int) -> Tensor:
    """Return zeros for summing losses on ``device``, in float64 if the device supports it, otherwise in float32."""
    dtype = torch.float64 if float64_device(device) == device else torch.float32
    return torch.zeros(shape, dtype=dtype, device=device)


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
    """Return ``hardware.num_workers``; 0 stands for one per core."""
    return hardware.num_workers or cores()
