"""The engine that ``hardware`` names; never another one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch

from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.examples import ClientData
from knot_runner.engine.federated.cohort import Engine, silent
from knot_runner.engine.hardware import prepare_device
from knot_runner.models.network import Network
from knot_runner.util.errors import UserError

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "float64": torch.float64}


def make_engine(
    hardware: HardwareSettings, network: Network, data: ClientData, test: ClientData,
    say: Callable[[str], None] = silent, plugins: Sequence[str] = (), shared: bool = False,
) -> Engine:  # fmt: skip
    """The engine, ready to train. ``auto`` is lean on a CPU; on a GPU stacked, or loop for a text model or one's own.

    ``say`` prints a line for the user. ``plugins``: of the run. ``shared``: several threads will use the engine (lean).
    Raises :class:`UserError` naming the key for a device, engine and precision that do not go together.
    """
    device = prepare_device(hardware)
    name = hardware.engine
    if name == "auto":
        on_gpu = "stacked" if network.is_ours else "loop"
        name = "lean" if device.type == "cpu" else on_gpu
    if name == "stacked" and not network.is_ours:
        what = "a text model" if network.reads_texts else "a model of one's own"
        raise UserError(f"hardware.engine: stacked does not train {what}; lean (CPU) or loop would fit")
    if name == "lean" and device.type != "cpu":
        raise UserError("hardware.engine: lean is for the CPU; stacked is for a GPU, loop runs on both")
    if hardware.precision in ("tf32", "bf16") and (device.type != "cuda" or name != "stacked"):
        raise UserError(
            f"hardware.precision: {hardware.precision} is for engine=stacked on CUDA; float32 runs anywhere"
        )
    dtype = DTYPES[hardware.precision]
    if name == "lean":
        from knot_runner.engine.federated.lean import Lean

        return Lean(
            network, data, test, dtype, hardware.workers or os.cpu_count() or 1, hardware.threads, shared, say, plugins
        )
    if name == "stacked":
        from knot_runner.engine.federated.stacked import Stacked

        autocast = "bf16" if hardware.precision == "bf16" else "none"
        return Stacked(network, data, test, device, dtype, hardware.stack, autocast, hardware.precision == "tf32", say)
    from knot_runner.engine.federated.loop import Loop

    return Loop(network, data, test, device, dtype)
