"""The table of the kinds of devices that a run can use, such as CUDA devices and the CPU.

This module imports torch only inside functions, because composing a configuration must stay fast.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from knot_runner.config.plugins import Table


@dataclass(frozen=True)
class Device:
    """A kind of device."""

    #: name of the device in messages
    title: str
    #: function that returns the number of such devices that torch can use
    count: Callable[[], int]
    #: function that returns whether ``auto`` may choose the device; it is called before torch is imported
    is_likely: Callable[[], bool] = lambda: False
    #: function that selects deterministic kernels in this process, and returns the device's name for the record
    prepare: Callable[[], str] = lambda: ""
    #: supported values of ``hardware.precision``; the first one is the default in ``conf/hardware``
    precisions: Sequence[str] = ("float32",)
    #: engine that ``hardware.engine=auto`` selects for the package's image models
    engine: str = "loop"
    #: whether NAME:0, NAME:1, ... are different devices
    numbered: bool = False
    #: whether the device is the machine's CPU, which worker processes share and which uses the host's memory
    host: bool = False


def _cuda_count() -> int:
    import torch

    if not torch.cuda.is_available():
        return 0
    return torch.cuda.device_count()


@functools.cache
def _has_cuda_driver() -> bool:
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuInit(0) == 0)
    except (OSError, AttributeError):  # the library or this function does not exist
        return False


def _prepare_cuda() -> str:
    import torch

    torch.cuda.init()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    deterministic: Any = torch.utils.deterministic  # the type stubs lack this setting
    deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.cuda.get_device_name()


#: Value of ``hardware.device`` (also torch's device type) -> entry. ``auto`` selects the first entry that is likely to
#: exist (``is_likely``) and that torch can use (``count``).
DEVICES: Table[Device] = Table(
    "DEVICES",
    {
        "cuda": Device(
            "CUDA device", _cuda_count, _has_cuda_driver, _prepare_cuda, ("float32", "tf32", "bf16", "float64"),
            engine="stacked", numbered=True,
        ),
        "cpu": Device("CPU", lambda: 1, lambda: True, precisions=("float32", "float64"), engine="lean", host=True),
    },
)  # fmt: skip


def first_device() -> str:
    """Return the name of the device that ``hardware.device=auto`` selects."""
    return next(name for name, device in DEVICES.items() if device.is_likely() and device.count())


def is_host(name: str) -> bool:
    """Return whether the device ``name`` is the machine's CPU."""
    return name in DEVICES and DEVICES[name].host


def device_names() -> list[str]:
    """Return the values that ``hardware.device`` accepts.

    The value ``cuda:0`` in the list stands for ``cuda:N`` with any device number N.
    """
    return ["auto", *DEVICES, *(f"{name}:0" for name in DEVICES if DEVICES[name].numbered)]


def is_device(name: str) -> bool:
    """Return whether ``hardware.device`` accepts the value ``name``."""
    return re.sub(r":\d{1,4}$", ":0", name) in device_names()
