"""The engine named in ``hardware``, without fallback; for clients of several architectures one per network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.examples import ClientData
from knot_runner.engine.federated.cohort import Engine, Inference, LocalTraining, Trained, silent
from knot_runner.engine.hardware import prepare_device, worker_count
from knot_runner.models.network import Network
from knot_runner.util.errors import UserError

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "float64": torch.float64}


def make_engine(
    hardware: HardwareSettings, network: Network, data: ClientData, test: ClientData,
    note: Callable[[str], None] = silent, plugins: Sequence[str] = (), others: Sequence[Network] = (),
) -> Engine:  # fmt: skip
    """The engine, ready to train. ``native`` is lean with compiled passes. ``auto`` is lean on a CPU; on a GPU
    stacked, or loop for a text model or one's own.

    ``note`` prints a line for the user. ``plugins``: of the run. ``others``: further networks, which requests name
    from 1 on.
    Raises :class:`UserError` naming the key for a device, engine and precision that do not go together.
    """
    device = prepare_device(hardware)
    networks = [network, *others]
    name = hardware.engine
    if name == "auto":
        on_gpu = "stacked" if all(one.is_ours for one in networks) else "loop"
        name = "lean" if device.type == "cpu" else on_gpu
    if name == "stacked" and not all(one.is_ours for one in networks):
        what = "a text model" if network.reads_texts else "a model of one's own"
        raise UserError(f"hardware.engine: stacked does not train {what}; lean (CPU) or loop would fit")
    if name in ("lean", "native") and device.type != "cpu":
        raise UserError(f"hardware.engine: {name} is for the CPU; stacked is for a GPU, loop runs on both")
    if name == "ray" and device.type != "cpu":
        raise UserError("hardware.engine: ray trains on the CPUs of a cluster; hydra/launcher=ray gives each job a GPU")
    _check_precision(hardware.precision, name, device)
    dtype = DTYPES[hardware.precision]
    workers = worker_count(hardware)
    if name == "lean":
        from knot_runner.engine.federated.lean.client import make_client
        from knot_runner.engine.federated.lean.engine import Lean

        if hardware.precision == "bf16":
            from knot_runner.engine.federated.lean.half import make_half_client as make_client
        return Lean(network, data, test, dtype, workers, hardware.threads, plugins, others, make_client)
    if name == "native":
        from knot_runner.engine.federated.native.engine import Native, has_passes

        if not any(map(has_passes, networks)):
            kinds = "mlp, cnn, resnet, wrn and vgg"
            note(f"hardware.engine: native has passes for model.kind={kinds} alone; this model trains as with lean")
        return Native(network, data, test, dtype, workers, hardware.threads, plugins, others)
    if name == "ray":
        from knot_runner.engine.federated.ray_engine import RayEngine

        return RayEngine(
            network, data, test, dtype, hardware.workers, hardware.threads, note=note, plugins=plugins, others=others
        )
    data, test = data.to(device), test.to(device)  # once for all networks
    engines = [_in_process(name, hardware, one, data, test, device, note) for one in networks]
    return engines[0] if len(engines) == 1 else PerNetwork(engines)


def _check_precision(precision: str, engine: str, device: torch.device) -> None:
    """Raises :class:`UserError` for a precision that ``engine`` does not have on ``device``."""
    if precision not in ("tf32", "bf16") or (device.type == "cuda" and engine == "stacked"):
        return
    if precision == "bf16" and engine == "lean":
        from knot_runner.engine.federated.lean.half import has_fast_bfloat16

        if has_fast_bfloat16():
            return
        raise UserError(
            "hardware.precision: bf16 is for engine=stacked on CUDA, or engine=lean on a CPU with AMX, which this one "
            "lacks; float32 runs anywhere"
        )
    also = ", or engine=lean on a CPU with AMX" if precision == "bf16" else ""
    raise UserError(f"hardware.precision: {precision} is for engine=stacked on CUDA{also}; float32 runs anywhere")


def _in_process(
    name: str, hardware: HardwareSettings, network: Network, data: ClientData, test: ClientData, device: torch.device,
    note: Callable[[str], None],
) -> Engine:  # fmt: skip
    """The stacked engine or the loop, of one network."""
    dtype = DTYPES[hardware.precision]
    if name == "stacked":
        from knot_runner.engine.federated.stacked.engine import Stacked

        autocast = "bf16" if hardware.precision == "bf16" else "none"
        return Stacked(network, data, test, device, dtype, hardware.stack, autocast, hardware.precision == "tf32", note)
    from knot_runner.engine.federated.loop import Loop

    return Loop(network, data, test, device, dtype)


class PerNetwork:
    """``engines``, one of each network, in this process; requests of network k go to the k-th. They compute one after
    another, on one device and the same data. (The lean engine's workers train any network themselves.)"""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.name, self.device = engines[0].name, engines[0].device
        self._engines = engines

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`Engine`."""
        return self._by_network(cohort, lambda engine, own: engine.train(own))

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`Engine`."""
        return self._by_network(requests, lambda engine, own: engine.logits(own))

    def close(self) -> None:
        """See :class:`Engine`."""
        for engine in self._engines:
            engine.close()

    def _by_network(
        self, requests: list[LocalTraining] | list[Inference], compute: Callable[[Engine, list], list]
    ) -> list[Trained] | list[Tensor]:
        """Runs ``compute`` on each engine's requests; returns the results in the order of all requests."""
        found = [None] * len(requests)
        for number, engine in enumerate(self._engines):
            places = [place for place, request in enumerate(requests) if request.network == number]
            results = compute(engine, [requests[place] for place in places]) if places else []
            for place, result in zip(places, results, strict=True):
                found[place] = result
        return found
