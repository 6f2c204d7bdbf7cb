"""Create the engine that ``hardware.engine`` selects; never fall back to another engine."""

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
    """Return an engine that is ready to train the models ``networks`` on ``data`` and to evaluate them on ``test``.

    With ``hardware.engine=auto``, the device determines the engine. If this engine is ``stacked`` and a network is a
    text model or custom model, ``loop`` is used instead.

    Raises:
        UserError: The device, the engine and the precision are not compatible.
    """
    inputs = EngineInputs(hardware, networks, data, test, prepare_device(hardware), note, plugins)
    name = hardware.engine
    if name == "auto":
        name = DEVICES[inputs.device.type].engine
        if name == "stacked" and not inputs.has_only_image_models:
            name = "loop"
    return ENGINES[name](inputs)


def make_loop(inputs: EngineInputs) -> Engine:
    """Return the reference engine, ``hardware.engine=loop``, which supports every device and model."""
    from knot_runner.engine.federated.loop import Loop

    if inputs.hardware.precision in ("tf32", "bf16"):
        raise UserError(
            "hardware.engine=loop computes only in float32 and float64",
            "hardware.precision",
            inputs.hardware.precision,
            hint="Use float32",
        )
    data, test = inputs.data.to(inputs.device), inputs.test.to(inputs.device)  # moved once, for all networks
    return _per_network([Loop(network, data, test, inputs.device, inputs.dtype) for network in inputs.networks])


def make_lean(inputs: EngineInputs) -> Lean:
    """Return the engine ``hardware.engine=lean``, which trains in worker processes on CPUs."""
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
    """Return the engine ``hardware.engine=stacked``, for any device.

    It supports the package's image models, but no custom models.
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
    """An engine that sends the requests for network k to ``engines[k]``, all in this process.

    The engines run one after another, on the same device and data. The lean engine does not need this class, because
    each of its workers can train every network.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.name = engines[0].name
        self.device = engines[0].device
        self._engines = engines

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """Implement :meth:`Engine.train`."""
        results: dict[int, Trained] = {}
        for engine, positions, requests in self._divided(cohort):
            results.update(zip(positions, engine.train(requests), strict=True))
        return ordered(results)

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Implement :meth:`Engine.logits`."""
        results: dict[int, Tensor] = {}
        for engine, positions, part in self._divided(requests):
            results.update(zip(positions, engine.logits(part), strict=True))
        return ordered(results)

    def close(self) -> None:
        """Implement :meth:`Engine.close`."""
        for engine in self._engines:
            engine.close()

    def _divided(self, requests: list[Asked]) -> Iterator[tuple[Engine, list[int], list[Asked]]]:
        """Yield each engine that has requests, with their positions in ``requests`` and the requests."""
        for number, engine in enumerate(self._engines):
            positions = [position for position, request in enumerate(requests) if request.network == number]
            if positions:
                yield engine, positions, [requests[position] for position in positions]
