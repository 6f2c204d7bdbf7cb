"""The kind of run that computes one federated Wasserstein distance by FedWaD.

For comparison, the run also computes the exact distance.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import torch

from knot_runner.data.splits import named_rng
from knot_runner.engine.seeds import numpy_generator
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.papers.fedwad.settings import GaussiansSettings
from knot_runner.pipelines.context import Progress, RunContext, RunInputs, RunRecord
from knot_runner.transport.federated.fedwad import FederatedDistance, distance_between
from knot_runner.transport.federated.measure import Measure, wasserstein
from knot_runner.util.files import digest_of_parts, write_atomic

#: Maximum number of coordinates for which the measure after every iteration is saved (the toy has 8,400). Longer runs
#: save only the measures at the start, after the first iteration and after the last iteration.
MAX_KEPT = 50_000
Value = TypeVar("Value")


def inspect_distance(context: RunContext) -> RunInputs:
    """Draw the samples of two Gaussians. Return the run's inputs, with a note if FedWaD uses differential privacy."""
    task = draw_gaussians(context.settings.task, context.settings.seed)
    notes = []
    if context.method.fedwad.privacy is not None:
        notes.append("The curve is from a traced run, which releases more than the epsilon of the run itself covers.")
    return RunInputs(task, None, None, notes)


def run_distance(context: RunContext, inputs: RunInputs, record: RunRecord) -> None:
    """Compute FedWaD's distance and the exact distance between the two samples. Save the interpolating measures.

    The file ``measures.safetensors`` holds the samples ``mu`` [n, d] and ``nu`` [m, d]. The interpolating measure after
    iteration k has the points ``xi/<k>`` [S, d] and the weights ``weights/<k>`` [S]. For the initial measure, k is 0.
    """
    task = inputs.task
    spec = context.settings.task
    fedwad = context.method.fedwad
    context.begin()
    with warnings.catch_warnings(record=True, action="always", category=RuntimeWarning) as raised:
        bare, traced, exact, record.seconds = _measured(context, task)
    for text in dict.fromkeys(str(warning.message) for warning in raised):
        record.note(text)
    columns = {"value": traced.values, "sum": traced.sums, "support": traced.supports}
    if traced.server_only:
        columns |= {"server_only": traced.server_only}
    for k, row in enumerate(zip(*columns.values(), strict=True), 1):
        context.log({"iteration": k, **dict(zip(columns, row, strict=True))})
    measures = traced.measures
    is_short = sum(measure.points.size for measure in measures) <= MAX_KEPT
    arrays = {"mu": task.first, "nu": task.second}
    for k, measure in enumerate(measures):
        if is_short or k in (0, 1, len(measures) - 1):
            arrays |= {f"xi/{k}": measure.points, f"weights/{k}": measure.masses()}
    tensors = {name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()}
    write_atomic(context.folder / "measures.safetensors", tensor_parts(tensors))
    if bare.spent is not None:
        epsilon, delta = bare.spent
        record.add(spent={"epsilon": epsilon, "delta": delta})
    record.add(
        mode=fedwad.mode,
        iterations=fedwad.iterations,
        samples=[len(task.first), len(task.second)],
        ratio=spec.ratio,
        dimension=spec.dimension,
        value=bare.value,
        exact=exact,
        closed_form=task.distance,
        server_only=traced.server_only,
        sums=traced.sums,
        values=traced.values,
        support=traced.supports,
    )


def _measured(
    context: RunContext, task: Gaussians
) -> tuple[FederatedDistance, FederatedDistance, float, dict[str, float]]:
    """Return FedWaD's results without and with a trace (values by iteration), the exact distance, and computing times.

    The times are those of FedWaD and of the exact distance, in seconds. In approximate mode, the trace doubles the
    computing time, so FedWaD runs twice with the same draws: once for the trace and once for the time. In exact mode,
    the trace takes no extra time, and a single computation gives both.
    """
    samples = Measure(task.first), Measure(task.second)
    options = context.method.fedwad
    if options.mode == "exact":
        # the measure starts with as many points as the first sample, as in the paper
        options = replace(options, support=samples[0].size)
    draws = partial(numpy_generator, context.settings.seed, "federated distance")
    federated = partial(distance_between, *samples, options, draws)
    wasserstein(Measure(task.first[:1]), samples[1])  # warm-up: a first call is slower
    traced, seconds = _timed(context.progress, "federated distance", partial(federated, trace=True))
    bare = traced
    if options.mode == "approximate" or options.privacy:
        bare, seconds = _timed(context.progress, "federated distance, bare", federated)
    exact, central = _timed(context.progress, "exact distance", partial(wasserstein, *samples))
    return bare, traced, exact, {"federated": seconds, "exact": central}


def _timed(watch: Progress, stage: str, work: Callable[[], Value]) -> tuple[Value, float]:
    watch(stage, 0, 1, "")
    began = time.perf_counter()
    value = work()
    seconds = time.perf_counter() - began
    watch(stage, 1, 1, "done")
    return value, seconds


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Samples of two Gaussians, and the 2-Wasserstein ``distance`` between the Gaussians.

    The sample ``first``, float64 [n, d], is from ``N(0, c I)``. The sample ``second``, float64 [m, d], is from
    ``N(mean, c I)``. Because both covariances are c I, ``distance`` is the Euclidean distance between the means.
    """

    first: np.ndarray
    second: np.ndarray
    distance: float
    source: str = "generated"

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 digest of both samples, in hexadecimal."""
        parts = []
        for sample in (self.first, self.second):
            parts += [f"{sample.shape}".encode(), np.ascontiguousarray(sample).tobytes()]
        return digest_of_parts(parts)


def draw_gaussians(settings: GaussiansSettings, seed: int) -> Gaussians:
    """Return samples of two Gaussians, drawn with ``seed``.

    The first sample has ``settings.samples`` points, and the second has ``settings.samples // settings.ratio`` points.
    The first Gaussian has mean 0. The mean of the second Gaussian is at distance ``settings.offset`` from 0, in the
    direction (1, ..., 1).
    """
    n = settings.samples
    d = settings.dimension
    spread = settings.covariance**0.5
    first = spread * named_rng(f"{seed}/gaussians/first").standard_normal((n, d))
    second = named_rng(f"{seed}/gaussians/second").standard_normal((n // settings.ratio, d))
    return Gaussians(first, settings.offset / d**0.5 + spread * second, settings.offset)
