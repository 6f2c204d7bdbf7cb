"""Create the engine that ``hardware.engine`` selects. If this engine cannot be used, an error is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from torch import Tensor

from knot_runner.config.devices import DEVICES, is_host
from knot_runner.config.settings.groups import HardwareSettings
from knot_runner.engine.examples import ClientData, ImageData
from knot_runner.engine.federated.cohort import Engine, EngineInputs, Inference, LocalTraining, Trained, ordered, silent
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.hardware import prepare_device, worker_count
from knot_runner.models.network import Network
from knot_runner.util.errors import UserError

Asked = TypeVar("Asked", LocalTraining, Inference)


def make_engine(
    hardware: HardwareSettings, networks: Sequence[Network], data: ClientData, test: ClientData,
    note: Callable[[str], None] = silent, plugins: Sequence[str] = (),
) -> Engine:  # fmt: skip
    """Return an engine that trains models of ``networks`` on ``data`` and evaluates these models on ``test``.

    With ``hardware.engine=auto``, the device determines the engine, with one exception: The engine ``loop`` replaces
    the engine ``stacked`` if a network is a text model or a custom model.

    Raises:
        UserError: The engine does not support the device, the precision or a network.
    """
    inputs = EngineInputs(hardware, networks, data, test, prepare_device(hardware), note, plugins)
    name = hardware.engine
    if name == "auto":
        name = DEVICES[inputs.device.type].engine
        if name == "stacked" and not inputs.has_only_image_models:
            name = "loop"
    return ENGINES[name](inputs)


def make_loop(inputs: EngineInputs) -> Engine:
    """Return the reference engine (``hardware.engine=loop``), which supports every device and every network.

    Raises:
        UserError: ``hardware.precision`` is ``tf32`` or ``bf16``.
    """
    from knot_runner.engine.federated.loop import Loop

    if inputs.hardware.precision in ("tf32", "bf16"):
        raise UserError(
            "hardware.engine=loop computes only in float32 and float64",
            "hardware.precision",
            inputs.hardware.precision,
            hint="Use hardware.precision=float32",
        )
    data, test = inputs.data.to(inputs.device), inputs.test.to(inputs.device)  # moved once, for all networks
    return _per_network([Loop(network, data, test, inputs.device, inputs.dtype) for network in inputs.networks])


def make_lean(inputs: EngineInputs) -> Lean:
    """Return the engine that trains clients in worker processes on CPUs (``hardware.engine=lean``).

    Raises:
        UserError: The device is not a CPU.
    """
    if not is_host(inputs.device.type):
        raise UserError(
            f"this engine runs only on a CPU, but the device is {inputs.device}",
            "hardware.engine",
            "lean",
            hint="Use hardware.engine=auto",
        )
    workers = worker_count(inputs.hardware)
    threads = inputs.hardware.threads
    return Lean(inputs.networks, inputs.data, inputs.test, inputs.dtype, workers, threads, inputs.plugins)


def make_stacked(inputs: EngineInputs) -> Engine:
    """Return the engine that trains many clients at once, on any device (``hardware.engine=stacked``).

    Raises:
        UserError: A network is a text model or a custom model.
    """
    from knot_runner.engine.federated.stacked.engine import Stacked

    hardware = inputs.hardware
    device = inputs.device
    if not inputs.has_only_image_models:
        raise UserError(
            "trains only the package's image models, not text or custom models. Use hardware.engine=auto",
            "hardware.engine",
            "stacked",
        )
    data, test = inputs.data.to(device), inputs.test.to(device)  # moved once, for all networks
    assert isinstance(data, ImageData) and isinstance(test, ImageData)
    engines = [
        Stacked(network, data, test, device, inputs.dtype, hardware.stack, hardware.precision, inputs.note)
        for network in inputs.networks
    ]
    return _per_network(engines)


#: ``hardware.engine`` -> its constructor.
ENGINES: dict[str, Callable[[EngineInputs], Engine]] = {
    "loop": make_loop,
    "lean": make_lean,
    "stacked": make_stacked,
}


def _per_network(engines: Sequence[Engine]) -> Engine:
    return engines[0] if len(engines) == 1 else PerNetwork(engines)


class PerNetwork:
    """An engine for several networks. It passes the requests for network k to ``engines[k]``."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.name = engines[0].name
        self.device = engines[0].device
        self._engines = engines

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """Train every client of ``cohort``; return the results in the same order (:meth:`Engine.train`)."""
        results: dict[int, Trained] = {}
        for engine, positions, requests in self._divided(cohort):
            results.update(zip(positions, engine.train(requests), strict=True))
        return ordered(results)

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Return the logits or features of every request, in order (:meth:`Engine.logits`)."""
        results: dict[int, Tensor] = {}
        for engine, positions, part in self._divided(requests):
            results.update(zip(positions, engine.logits(part), strict=True))
        return ordered(results)

    def close(self) -> None:
        """Close all engines (:meth:`Engine.close`)."""
        for engine in self._engines:
            engine.close()

    def _divided(self, requests: list[Asked]) -> Iterator[tuple[Engine, list[int], list[Asked]]]:
        """Yield (engine, positions in ``requests``, requests for this engine) for each engine that has requests."""
        for number, engine in enumerate(self._engines):
            positions = [position for position, request in enumerate(requests) if request.network == number]
            if positions:
                yield engine, positions, [requests[position] for position in positions]
