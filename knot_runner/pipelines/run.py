"""Execution of one run. If the run is already finished, its result is returned without computation."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from safetensors.numpy import load_file

from knot_runner import provenance
from knot_runner.config.devices import is_host
from knot_runner.config.plugins import load, load_plugins
from knot_runner.config.settings.families import family_of
from knot_runner.config.strict import build
from knot_runner.engine.hardware import prepare_device
from knot_runner.pipelines.context import PREDICTIONS_FILE, RunContext, RunInputs, RunRecord, elapsed
from knot_runner.records import clear_states, lock_of, read_result, result_problem, write_result
from knot_runner.results import ONE_CLASS, SEVERAL_MACHINES, RunResult, diverged_result
from knot_runner.util.errors import DivergedError, UserError
from knot_runner.util.files import disk_errors, locked, removal, remove_temporaries

if TYPE_CHECKING:
    from knot_runner.engine.tracker import Tracker


def complete_run(context: RunContext) -> RunResult:
    """Lock the run's folder, and run the job; see :func:`run_locked`.

    If another process has the lock, wait until that process has finished. For a finished run, only read the result.
    """
    finished = read_result(context.folder)
    if finished is not None:  # read without a lock, which a read-only disk does not allow
        return finished
    with locked(lock_of(context.settings.paths.output_dir, context.run_id)):
        return run_locked(context)


def run_locked(context: RunContext) -> RunResult:
    """Run one job while holding the lock of its folder; return the result.

    The result of a finished run is returned at once. An unfinished run resumes from its last commit.

    Raises:
        UserError: The settings do not fit the data or the hardware.
    """
    finished = finished_result(context)
    if finished is not None:
        return finished
    if problem := result_problem(context.folder):
        context.note(f"{problem.partition('. Repeat')[0]}. The run starts from the beginning")
    load_plugins(context.settings.plugins)
    with disk_errors(Path(context.settings.paths.output_dir)):
        remove_temporaries(context.folder)
        result = _execute(context)
        result = write_result(context.folder, result)
    with removal():
        clear_states(context.folder)
    return result


def finished_result(context: RunContext) -> RunResult | None:
    """Return the result of a finished run; None if the run is not finished.

    Raises:
        UserError: The run's files or the data in ``paths.data_dir`` have changed, and ``--stale=keep`` is not set.
    """
    result = read_result(context.folder)
    changes = []
    if result and not context.keep:
        changes = provenance.CurrentData(context.settings.paths.data_dir).changes(context.folder, result)
    if changes:
        raise UserError(provenance.refusal([(context.run_id, context.folder, changes)], 1))
    return result


def _execute(context: RunContext) -> RunResult:
    """Run the job, and send the log and the result to the tracker."""
    hardware = context.settings.hardware
    family = family_of(context.method)
    # The device is prepared before data are read, because this sets the number of threads.
    if not (is_host(prepare_device(hardware).type) or family.on_gpu):
        context.note(f"hardware.device={hardware.device}: methods of kind {family.name!r} run on the CPU")
    with _tracker(context) as tracker:
        if tracker is None:
            return _computed(context)
        result = _computed(replace(context, log=tracker.log))
        tracker.finish(result)
    return result


def _computed(context: RunContext) -> RunResult:
    """Read the data, import and run the pipeline of the method's family, and return the result.

    Raises:
        UserError: The settings do not fit the data or the hardware.
    """
    began = time.monotonic()
    family = family_of(context.method)
    record = RunRecord(context.note)
    divergence = None
    machines: list[str] = []

    def note(text: str) -> None:
        if text.startswith(SEVERAL_MACHINES):
            machines.append(text)
        record.show(text)

    context = replace(context, note=note)
    inputs: RunInputs = load(family.inspect)(context)
    for line in inputs.notes:
        record.note(line)
    record.add(**context.describe(inputs))
    try:
        load(family.run)(context, inputs, record)
    except DivergedError as problem:
        divergence = problem
        record.note(str(problem))
    context.begin()  # for families that do not write the config themselves
    seconds = {"total": elapsed(began), **record.seconds}
    record.notes += dict.fromkeys(machines)
    predictions = context.folder / PREDICTIONS_FILE
    if divergence is None and predictions.exists() and (name := _only_class(predictions, inputs.task.classes)):
        record.note(f"{ONE_CLASS} {name}")
    content = {**record.facts, "notes": record.notes, "seconds": seconds}
    if divergence is not None:
        return diverged_result({**content, "status": "diverged", "diverged": divergence.where})
    return build(load(family.result), {**content, "status": "done"}, "")


def _only_class(path: Path, classes: list[str]) -> str | None:
    """Return the class that a run predicts for all test examples, if the examples have several labels; otherwise None.

    ``path``: the run's predictions; ``classes``: the names of the classes.
    """
    predicted: set[int] = set()
    labels: set[int] = set()
    for key, array in load_file(path).items():
        if key.startswith("before/"):
            continue
        if key.endswith(".probabilities"):
            predicted.update(array.argmax(1).tolist())
        else:
            labels.update(array.tolist())
    if len(predicted) != 1 or len(labels) == 1:
        return None
    return classes[predicted.pop()]


def _tracker(context: RunContext) -> AbstractContextManager[Tracker | None]:
    """Return the run's tracker, or None for ``tracker=none``.

    The tracker receives the config with string keys, as in JSON.
    """
    settings = context.settings
    if settings.tracker.name == "none":
        return nullcontext()
    from knot_runner.engine.tracker import TrackedRun, Tracker

    config = json.loads(json.dumps(yaml.safe_load(context.config_yaml), default=str))
    names = settings.task.name, settings.method.name
    run = TrackedRun(settings.tracker, config, context.folder, context.run_id, *names, settings.seed, context.family)
    return Tracker(run, context.note)
