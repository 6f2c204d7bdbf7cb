"""The kind of run that executes the temperature probe."""

from __future__ import annotations

import torch

from knot_runner.config.strict import without
from knot_runner.data.counts import of_all_images
from knot_runner.engine.hardware import choose_device
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.models.network import Network
from knot_runner.papers.chill.probe import probe_part
from knot_runner.pipelines.clients import resident
from knot_runner.pipelines.context import RunContext, RunInputs, RunRecord
from knot_runner.pipelines.rounds import Advanced, State, run_rounds
from knot_runner.util.files import LogRow, write_atomic

#: Arrays with one row per temperature, shape [K, ...]; the mean of each row is logged.
LOGGED = ("gradients.norm", "boundary.after", "boundary.right")


def inspect_probing(context: RunContext) -> RunInputs:
    """Return the run's inputs: the images, their class counts, and notes for the user.

    Raises:
        UserError: The images cannot be read.
    """
    task = context.images()
    counts = of_all_images(task)
    return RunInputs(task, None, counts, [*task.notes, *counts.warnings()])


def run_probing(context: RunContext, inputs: RunInputs, record: RunRecord) -> None:
    """Run the temperature probe and write its arrays to ``probe.safetensors``.

    The experiment tracker receives one row per temperature. The row holds the mean of each array in :data:`LOGGED`
    at this temperature.
    """
    settings = context.settings
    task = inputs.task
    temperatures = context.method.temperatures
    device = choose_device(settings.hardware.device)
    network = Network(settings.model, task.shape, len(task.classes))
    record.add(device=str(device), model=settings.model.name, temperatures=temperatures)
    context.begin()
    data, _ = resident(task)

    def _advance(state: State, number: int, rows: list[LogRow]) -> Advanced:
        part = probe_part(number, state, context, network, data, device)
        if part is None:
            return None
        return state | part, {}

    state, _ = run_rounds(_advance, context.commits(task.digest), dict)
    arrays = without(state, "model.weights", "model.buffers")
    arrays |= {"temperatures": torch.tensor(temperatures, dtype=torch.float64)}
    write_atomic(context.folder / "probe.safetensors", tensor_parts(arrays))
    for i, temperature in enumerate(temperatures):
        means = {name: float(arrays[name][i].double().mean()) for name in LOGGED}
        context.log({"temperature": temperature, **means})
