"""The configured device, or a refusal; and the switches that make the same command give the same numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import torch

from knot_runner.config.settings import HardwareSettings
from knot_runner.util.errors import UserError
from knot_runner.util.processes import cores


def choose_device(name: str) -> torch.device:
    """``cpu``, ``cuda``, ``cuda:N`` or ``auto`` (cuda if there is one). Never another device than configured.

    Raises :class:`UserError` naming ``hardware.device``.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if count else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and count == 0:
        raise UserError(
            f"{name} was asked for, but this machine has no CUDA GPU (hardware=cpu runs)", "hardware.device"
        )
    if device.type == "cuda" and (device.index or 0) >= count:
        raise UserError(f"{name} was asked for, but there are {count} GPUs (cuda:0 is the first)", "hardware.device")
    return device


def prepare_device(hardware: HardwareSettings) -> torch.device:
    """Set threads and deterministic kernels in this process and return the device.

    Threads come from the config, because results change with their number (summation order).
    """
    device = choose_device(hardware.device)
    torch.set_num_threads(hardware.threads)
    if device.type == "cuda":
        torch.cuda.init()  # :func:`machine` names the GPU from the first commit on
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return device


def machine() -> str:
    """Return what of this machine and process decides a run's bits, beyond its settings: CPU instructions, threads,
    torch and GPU."""
    threads = torch.get_num_threads()
    parts = [torch.backends.cpu.get_cpu_capability(), f"{threads} thread{'s' if threads > 1 else ''}"]
    parts.append(f"torch {torch.__version__}")
    if torch.cuda.is_initialized():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


def all_machines(records: Iterable[dict]) -> list[str]:
    """Return the ``machines`` of records of finished work, and this one, each once."""
    return list(dict.fromkeys([*(one for record in records for one in record.get("machines", [])), machine()]))


def worker_count(hardware: HardwareSettings) -> int:
    """``hardware.num_workers``, or one per core."""
    return hardware.num_workers or cores()


def prepare_cpu_device(hardware: HardwareSettings, note: Callable[[str], None]) -> torch.device:
    """:func:`prepare_device` for work that always runs on the CPU; ``note`` prints it if another is configured."""
    if prepare_device(hardware).type != "cpu":
        note(f"hardware.device={hardware.device}: optimal transport and encoders run on the CPU")
    return torch.device("cpu")
