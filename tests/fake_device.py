"""The device ``fake``, whose tensors wrap the CPU's; operations on tensors of two devices fail as on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from knot_runner.config.devices import Device

_setup_privateuseone_for_python_backend("fake")
torch.get_device_module("fake").get_amp_supported_dtype = lambda: [torch.float16]  # asked by checkpoints of other tests
#: Operations that accept tensors on two devices.
MIXED = (torch.ops.aten.copy_.default, torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
FAKE = Device("fake GPU", lambda: 1, prepare=lambda: "a fake")


class OnFake(Tensor):
    """``values``, a tensor of the CPU, as one of the device. Its methods are those that torch asks of a subclass."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> OnFake:
        form = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        made = Tensor._make_wrapper_subclass(cls, values.size(), **form, device="fake:0")
        made.values = values
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values"], None

    def tolist(self) -> Any:
        return self.values.tolist()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return FakeDevice().__torch_dispatch__(operation, types, args, kwargs)


class FakeDevice(TorchDispatchMode):
    """Inside, tensors can be made on the device and moved to it."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, OnFake)]
        others = [tensor for tensor in tensors if tensor.dim() and not isinstance(tensor, OnFake)]
        if ours and others and operation not in MIXED:
            raise RuntimeError(f"{operation}: tensors on two devices")
        device = kwargs.get("device")
        there = bool(ours) if device is None else torch.device(device).type == "fake"
        if operation is torch.ops.aten.copy_.default:
            there = isinstance(args[0], OnFake)
        result = operation(*tree_map(_on_cpu, args), **tree_map(_on_cpu, kwargs))
        changed = [one for one in ours if one.values is result]
        return changed[0] if changed else tree_map(_on_fake, result) if there else result


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "fake":
        return torch.device("cpu")
    return value.values if isinstance(value, OnFake) else value


def _on_fake(value: Any) -> Any:
    return OnFake(value) if isinstance(value, Tensor) else value
