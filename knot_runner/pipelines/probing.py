"""The temperature probe as a run: arrays for the figures and metrics, from one model."""

from __future__ import annotations

import time

from knot_runner.config.strict import build
from knot_runner.data.counts import of_all_images
from knot_runner.engine.hardware import choose_device
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.methods.temperature_probe import probe_arrays
from knot_runner.models.network import Network
from knot_runner.pipelines.clients.setup import resident
from knot_runner.pipelines.context import RunContext, RunInputs, elapsed
from knot_runner.pipelines.runs.kept_images import read_images
from knot_runner.results.training import ProbeResult
from knot_runner.util.files import write_atomic


def run_probing(context: RunContext) -> ProbeResult:
    """Reads the images, probes the model, saves the arrays. Raises :class:`UserError`."""
    began = time.monotonic()
    settings = context.settings
    seen = inspect_probing(context)
    task = seen.task
    for note in seen.notes:
        context.note(note)
    device = choose_device(settings.hardware.device)
    network = Network(settings.model, task.shape, len(task.classes))
    context.begin([])
    data, test = resident(task, task.train), resident(task, task.test)
    arrays = probe_arrays(context.hp, settings, data, test, network, device, context.progress, context.note)
    write_atomic(context.folder / "probe.safetensors", tensor_parts(arrays))
    temperatures = context.hp.temperatures
    for place, temperature in enumerate(temperatures):
        row = {"temperature": temperature}
        for name, array in arrays.items():
            if len(array) == len(temperatures) and name != "temperatures":
                row[name] = float(array[place].double().mean())
        context.log(row)
    content = {
        **context.describe(task.digest, task.source, device, task.files),
        "kind": "probe",
        "status": "done",
        "model": settings.model.name,
        "temperatures": temperatures,
        "labels": {"names": task.classes, "coordinates": task.coordinates},
        "label_counts": seen.counts.record(),
        "notes": seen.notes,
        "seconds": {"total": elapsed(began)},
    }
    return build(ProbeResult, content, "")


def inspect_probing(context: RunContext) -> RunInputs:
    """Returns the run's inputs and notes on them. Raises :class:`UserError`."""
    task = read_images(context)
    counts = of_all_images(task)
    return RunInputs(task, None, counts, [*task.notes, *counts.warnings()])
