"""Distances between all pairs of several sets of labeled samples, computed in parallel.

- Preparation, once per set: the class statistics, and the set's part of FedWaD's iteration 1.
- Tiles: FedWaD of at most 100 pairs at a time by batched matrix products (tile_distances.py), or exact OTDD of one pair
  after another.
- Processes: each tile goes to a worker process with one thread, and all workers share the samples in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy import ndarray
from threadpoolctl import threadpool_limits

from knot_runner.config.settings.methods.transport import OtddSettings
from knot_runner.transport.federated.plan import check_finite, optimal_plan, squared_distances
from knot_runner.transport.otdd.first_iteration import (
    FirstIteration,
    LabelProducts,
    Tile,
    about_mean,
    augmented_rows,
    centered,
    cut_tiles,
    draw_times,
    first_iteration,
    first_points,
    mean_products,
    mean_terms,
)
from knot_runner.transport.otdd.statistics import ClassTable, LabeledSamples, class_table
from knot_runner.transport.otdd.tile_distances import tile_distances
from knot_runner.util.errors import UserError
from knot_runner.util.workers import Handler, Send, SharedArrays, TaskPool

#: If more plan entries than this must be computed (about ten seconds of work), worker processes are started. For less
#: work, the start takes more time than the processes save.
PARALLEL_FROM = 5e7

SetPair = tuple[int, int]
#: Function ``(task, shared arrays) -> result`` that a worker calls.
Work = Callable[[Any, list[ndarray]], Any]


def computed_distances(
    sets: list[LabeledSamples], options: OtddSettings, seed: int, workers: int, known: dict[SetPair, float]
) -> Iterator[dict[SetPair, float]]:
    """Yield a dict for each finished tile (group of pairs). The dict maps pairs (i, j), i < j, to squared distances.

    ``known`` holds distances that are already computed. These distances are not yielded. ``known`` and ``workers`` do
    not affect the values, not even by rounding. Random interpolation times t depend only on ``seed`` and the pair.

    Raises:
        UserError: The sets have different numbers of features, or values are too large for finite distances.
    """
    features = {samples.points.shape[1] for samples in sets}
    if len(features) > 1:
        raise UserError(f"all data sets must have the same number of features, got {sorted(features)}", "samples")
    largest = max(samples.size for samples in sets)
    tiles = cut_tiles(len(sets), options.fedwad.support, features.pop(), largest)
    # If one pair of a tile is missing, all pairs of the tile are computed again, in a few seconds.
    # Distances are therefore bitwise equal for any ``known``.
    tiles = [pairs for pairs in tiles if not known.keys() >= set(pairs)]
    if not tiles:
        return
    rows, means = _rows(sets, options)
    with threadpool_limits(1, "blas"):
        tables = [_class_table(own, samples.labels, options) for own, samples in zip(rows, sets, strict=True)]
        if options.solver == "exact":
            work = _exact
            tasks = ((pairs, _of_sets(tables, pairs)) for pairs in tiles)
        else:
            # All pairs start from the same support points, so iteration 1 is computed once per set, not once per pair.
            openings = [
                first_iteration(own, about_mean(table), options, seed) for own, table in zip(rows, tables, strict=True)
            ]
            work = tile_distances
            tasks = _tasks(tables, openings, means, tiles, options, seed)
    if _plan_entries(largest, sum(map(len, tiles)), options) <= PARALLEL_FROM:
        workers = 1
    for index, values in run_tasks(work, tasks, rows, min(workers, len(tiles))):
        check_finite(values)
        yield {pair: value for pair, value in zip(tiles[index], values.tolist(), strict=True) if pair not in known}


def run_tasks(work: Work, tasks: Iterable[Any], arrays: list[ndarray], workers: int) -> Iterator[tuple[int, Any]]:
    """Yield (index of the task, ``work(task, arrays)``) for every task, in order of completion.

    The tasks run in ``workers`` processes that share ``arrays``. With one worker, the tasks run in this process.
    An exception in ``work`` is raised to the caller.

    Raises:
        UserError: A worker process died.
    """
    if workers == 1:
        with threadpool_limits(1, "blas"):  # as in a worker: the thread count changes the last digits
            yield from ((index, work(task, arrays)) for index, task in enumerate(tasks))
        return
    shared = SharedArrays(arrays)
    with closing(TaskPool(workers, ["knot_runner.transport.otdd.matrix"], _prepare, work, shared)) as pool:
        shared.memory.close()
        for index, error, result in pool.run(tasks):
            if error is not None:
                raise error
            yield index, result


def _prepare(_: Send, work: Work, shared: SharedArrays) -> Handler:
    """Limit a worker to one thread, and return the function that runs a task."""
    threadpool_limits(1, "blas")
    arrays = shared.arrays()
    return lambda task: work(task, arrays)


def _rows(sets: list[LabeledSamples], options: OtddSettings) -> tuple[list[ndarray], ndarray]:
    """Return the rows of every set (first_iteration.py), and the means [N, d] of the sets' features in float64.

    For FedWaD, the rows are in ``options.precision``, relative to each set's mean. The exact solver always uses
    float64, and centers each pair separately.
    """
    dtype = np.dtype(options.precision)
    with np.errstate(over="ignore", invalid="ignore"):  # _class_table raises for values that are not finite
        means = np.stack([samples.points.mean(0, dtype=np.float64) for samples in sets])
        centers = means
        if options.solver == "exact":
            dtype = np.dtype("float64")
            centers = np.zeros_like(means)
        return [augmented_rows(samples, dtype, mean) for samples, mean in zip(sets, centers, strict=True)], means


def _plan_entries(samples: int, pairs: int, options: OtddSettings) -> int:
    """Return the approximate number of entries of the transport plans of all pairs."""
    if options.solver == "exact":
        return pairs * samples**2
    return pairs * samples * 2 * options.fedwad.iterations * options.fedwad.support


def _class_table(rows: ndarray, labels: ndarray, options: OtddSettings) -> ClassTable:
    """Return the class statistics of one set."""
    with np.errstate(over="ignore"):
        check_finite(np.vdot(rows, rows))
    samples = LabeledSamples(rows[:, : -len(np.unique(labels))], labels)
    return class_table(samples, options.covariance, options.part)


def _of_sets(values: Sequence[Any], pairs: list[SetPair]) -> dict[int, Any]:
    """Return the ``values`` of the sets in ``pairs``, by the number of the set."""
    return {number: values[number] for number in np.unique(pairs)}


def _tasks(
    tables: Sequence[ClassTable],
    openings: Sequence[FirstIteration],
    means: ndarray,
    tiles: list[list[SetPair]],
    options: OtddSettings,
    seed: int,
) -> Iterator[Tile]:
    """Yield one task per tile, created on demand. ``means`` [N, d]: the mean features of every set."""
    features = means.shape[1]
    start = first_points(features, options, seed)
    of_features, of_labels = np.split(centered(start), [features], axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        between = mean_products(start, means, tables)
        labels = LabelProducts(list(map(about_mean, tables)), of_labels)
    check_finite(labels.gram)
    check_finite(between)
    for listed in tiles:
        pairs = np.array(listed)
        times = np.stack([draw_times(i, j, options.fedwad, seed) for i, j in listed])
        gram = labels.of_pairs(pairs).astype(options.precision)
        yield Tile(pairs, times, of_features, _of_sets(openings, listed), gram, mean_terms(pairs, times, between))


def _exact(tile: tuple[list[SetPair], dict[int, ClassTable]], rows: list[ndarray]) -> ndarray:
    """Return exact squared distances [m] of m pairs, given the class tables of their sets."""
    pairs, tables = tile
    points = {number: rows[number][:, : -len(table.labels)] for number, table in tables.items()}
    with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite raise below
        return np.array([least_cost(points[i], points[j], tables[i], tables[j]) for i, j in pairs])


def least_cost(x: ndarray, y: ndarray, first: ClassTable, second: ClassTable) -> float:
    """Return the exact squared OTDD between two labeled sets of points: the minimum cost of transport.

    ``x`` [n, d] and ``y`` [m, d] are the points of the two sets. ``first`` and ``second`` are the class tables of the
    two sets. The cost of moving a point u of class a to a point v of class b is

        ||u - v||^2 + ||m_a - m_b||^2 + ||B_a - B_b||_F^2

    where m_a is the mean of class a, and the matrix B_a represents the covariance of class a (statistics.py). The total
    mass of each set is 1.

    This cost equals eq. 13 of FedWaD if d(x, x') in eq. 13 is the squared distance. microsoft/otdd multiplies the point
    distance and the label distance by 1/2; this function does not.
    """
    between = squared_distances(first.vectors, second.vectors)
    return optimal_plan(squared_distances(x, y) + between[first.of[:, None], second.of])[1]
