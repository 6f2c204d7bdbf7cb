"""The fast matrix against the plain loop over pairs, and what it must not depend on."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from knot_runner.transport.otdd import LabeledSamples, computed_distances, draw_times, first_points
from knot_runner.transport.otdd import matrix as matrix_module
from knot_runner.transport.otdd.first_iteration import cut_tiles
from knot_runner.transport.otdd.matrix import run_tasks
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.oracles.transport.otdd.pair import FORMS, exact_otdd, pair_distance

SEED = 3


def distance_matrix(sets, options, seed, workers):
    """All distances as a symmetric matrix."""
    matrix = np.zeros((len(sets), len(sets)))
    for values in computed_distances(sets, options, seed, workers, {}):
        for (i, j), value in values.items():
            matrix[i, j] = matrix[j, i] = value
    return matrix


def plain(sets, options):
    matrix = np.zeros((len(sets), len(sets)))
    for i, j in itertools.combinations(range(len(sets)), 2):
        if options.solver == "exact":
            value = exact_otdd(sets[i], sets[j], options)
        else:
            start = first_points(sets[i].points.shape[1], options, SEED)
            value = pair_distance(sets[i], sets[j], options, start, draw_times(i, j, options.fedwad, SEED))
        matrix[i, j] = matrix[j, i] = value
    return matrix


@pytest.mark.parametrize(("form", "changes", "fedwad"), [
    *((form, {}, {"t": "random"}) for form in FORMS), (FORMS[-1], {}, {"t": 0.5}), (FORMS[-1], {}, {"t": 0.2}),
    *((form, {"solver": "exact"}, {}) for form in (FORMS[0], FORMS[-1])),
    *((FORMS[-1], {}, one) for one in (
        {"support": 1}, {"support": 40}, {"support": 90}, {"iterations": 1}, {"start_scale": 10.0},
    )),
], ids=str)  # fmt: skip
def test_matrix_agrees_with_the_plain_loop(sets, with_fedwad, form, changes, fedwad):
    """Also of one point, of more points than samples, of one iteration, and from far away."""
    data, options = sets(4), replace(with_fedwad(**fedwad), covariance=form[0], part=form[1], **changes)
    np.testing.assert_allclose(distance_matrix(data, options, SEED, 1), plain(data, options), rtol=1e-10)


def moved(data, offsets):
    return [LabeledSamples(one.points + offset, one.labels) for one, offset in zip(data, offsets, strict=True)]


@pytest.mark.parametrize(("offsets", "t"), [
    ((0, 0, 0), 0.5), ((30, 30, 30), "random"), ((3000, 3000, 3000), 0.5), ((0, 3000, 3000), "random"),
])  # fmt: skip
def test_distance_matrix_keeps_float32_accuracy_at_any_offset(sets, with_fedwad, offsets, t):
    """To 1e-5, as conf/base/otdd.yaml says, of the plain float64 loop; 12 iterations bring the points to the data."""
    data, options = moved(sets(3), offsets), with_fedwad(iterations=12, t=t)
    actual = distance_matrix(data, replace(options, precision="float32"), SEED, 1)
    np.testing.assert_allclose(actual, plain(data, options), rtol=1e-5)


def test_exact_solver_has_float64_alone(sets, options):
    data, options = moved(sets(3), (3000,) * 3), replace(options, solver="exact")
    matrix = distance_matrix(data, replace(options, precision="float32"), SEED, 1)
    np.testing.assert_allclose(matrix, plain(data, options), rtol=1e-12)


def test_distance_matrix_is_identical_with_workers_or_known(sets, with_fedwad, monkeypatch):
    """In all digits: two processes, and a second call that is given some of the pairs, of (2, 5) a part of a tile."""
    monkeypatch.setattr(matrix_module, "PARALLEL_FROM", 0)
    data, options = sets(10), with_fedwad(t="random")
    whole = distance_matrix(data, options, SEED, 1)
    np.testing.assert_array_equal(distance_matrix(data, options, SEED, 2), whole)
    known = {(0, 1): whole[0, 1], (2, 5): -1.0, (3, 6): whole[3, 6]}
    new = {}
    for values in computed_distances(data, options, SEED, 1, known):
        new |= values
    assert new == {pair: whole[pair] for pair in itertools.combinations(range(10), 2) if pair not in known}
    known = {pair: 2.0 for pair in itertools.combinations(range(3), 2)}
    assert not list(computed_distances(data[:3], options, SEED, 2, known))


def test_first_points_and_times_depend_on_seed_and_pair_alone(with_fedwad):
    near, far = (first_points(6, with_fedwad(start_scale=scale), SEED) for scale in (1.0, 10.0))
    assert near.shape == (5, 18) and 0.7 < near.std() < 1.3
    np.testing.assert_allclose(far, 10 * near, rtol=1e-12)
    assert not np.array_equal(near, first_points(6, with_fedwad(), SEED + 1))
    options = with_fedwad(t="random", iterations=3).fedwad
    np.testing.assert_array_equal(draw_times(1, 2, options, 7), draw_times(1, 2, replace(options, iterations=9), 7)[:3])
    assert not np.array_equal(draw_times(1, 2, options, 7), draw_times(1, 3, options, 7))
    assert not np.array_equal(draw_times(1, 2, options, 7), draw_times(1, 2, options, 8))
    assert (draw_times(1, 2, replace(options, t=0.3), 7) == 0.3).all()


@pytest.mark.parametrize(("sets", "support"), [(1, 10), (2, 10), (7, 10), (23, 100), (100, 10), (4, 1000)])
def test_tiles_hold_every_pair_once(sets, support):
    listed = list(itertools.chain.from_iterable(cut_tiles(sets, support, 784, 3000)))
    assert sorted(listed) == list(itertools.combinations(range(sets), 2))


def test_matrix_of_one_class_and_equal_features(options):
    same = [LabeledSamples(np.full((8, 3), value), np.zeros(8, int)) for value in (1.0, 1.0, 3.0)]
    actual = distance_matrix(same, options, SEED, 1)
    np.testing.assert_allclose(actual, plain(same, options), rtol=1e-10)
    assert np.isfinite(actual).all() and actual[0, 2] >= 2 * 3 * 4.0


@pytest.mark.parametrize(("scale", "covariance"), [(1e200, "sqrt_frobenius"), (1e90, "sigma_frobenius")])
@pytest.mark.parametrize("solver", ["federated", "exact"])
def test_distance_matrix_refuses_huge_values_and_unequal_features(sets, options, scale, covariance, solver):
    data = [LabeledSamples(one.points * scale, one.labels) for one in sets(2)]
    with refuses():
        distance_matrix([*sets(1, features=4), *sets(1)], options, SEED, 1)
    with refuses():
        distance_matrix(data, replace(options, covariance=covariance, part="full", solver=solver), SEED, 1)


def _fails(task, arrays):
    raise UserError(f"task {task} failed: its values sum to {arrays[0].sum()}")


def test_run_tasks_raises_errors_of_workers():
    with refuses():
        list(run_tasks(_fails, ["x"], [np.ones(3)], 2))
