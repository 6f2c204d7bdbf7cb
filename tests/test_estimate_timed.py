"""From what a run reports in its first seconds to what all of it takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.composing.commands import compose_all
from knot_runner.estimate.child import Seen
from knot_runner.estimate.pieces import DISTANCE_MATRICES, PERSONAL_MODELS
from knot_runner.estimate.timed import cost_of, time_piece
from tests.tiny import TINY_IMAGES


def seen_of(stage, moments, total, ended=False, ready=2.0):
    """Reports of 1, 2, ... ``total`` at ``moments``."""
    steps = [(moment, "step", stage, done, total) for done, moment in enumerate(moments, 1)]
    messages = [(ready, "ready"), *steps]
    return Seen(0.0, messages + [(moments[-1] + 0.5, "through")] * ended, ended=ended)


def test_rounds_by_hand():
    """Three seconds to begin, one second a round, once disturbed."""
    cost = cost_of(seen_of("rounds", [6.0, 7.0, 8.0, 12.0, 13.0, 14.0], 300), "rounds")
    assert (cost.start, cost.unit) == (3.0, 1.0)


def test_measures_count_as_often_as_they_will_be():
    """Rounds of 1 s, with measures 4 s; measured every third round here, every tenth in the run."""
    moments = 5.0 + np.cumsum([4.0 if done % 3 == 0 else 1.0 for done in range(1, 10)])
    cost = cost_of(seen_of("rounds", moments.tolist(), 300), "rounds", 3, 10)
    assert cost.unit == pytest.approx((9 * 1.0 + 4.0) / 10)


@given(st.floats(0.01, 5), st.floats(0, 20), st.integers(3, 40), st.integers(40, 5000))
def test_even_work_is_foretold_exactly(each, start, shown, total):
    moments = [2.0 + start + each * done for done in range(1, shown + 1)]
    whole = cost_of(seen_of("distances", moments, total), "distances")
    assert whole.start == 0 and whole.unit == pytest.approx(start + each * total)
    rounds = cost_of(seen_of("rounds", moments, total), "rounds")
    assert rounds.start + rounds.unit * total == pytest.approx(start + each * total)


def test_tiles_of_several_pairs():
    """Ten pairs, then 50 more in 10 s: .2 s a pair, and one second to begin."""
    seen = Seen(0.0, [(0.0, "ready"), (3.0, "step", "distances", 10, 190), (13.0, "step", "distances", 60, 190)])
    assert cost_of(seen, "distances").unit == pytest.approx(1.0 + 190 * 0.2)


def test_too_little_is_nothing_and_a_run_that_ended_is_known():
    assert cost_of(seen_of("rounds", [6.0], 300), "rounds") is None
    assert cost_of(Seen(0.0), "rounds") is None
    assert cost_of(seen_of("anything", [3.0], 1, ended=True), "").unit == pytest.approx(1.5)


def jobs_of(*overrides):
    jobs, _ = compose_all([*TINY_IMAGES, *overrides])
    return jobs


@pytest.mark.thorough
def test_a_real_run_is_timed_and_leaves_nothing(tmp_path):
    (job,) = jobs_of(f"paths.out={tmp_path / 'out'}", "training.rounds=1000", "tracker=wandb")
    cost = time_piece(job, "runs", 0.0, 60)
    assert cost.unit > 0 and cost.disk > 0 and not (tmp_path / "out").exists()


def test_own_models_without_the_rounds_before_them():
    """Two rounds until 9 s; then 3 s a step, of five, and of one alone what is left."""
    rounds = [(2.0, "ready"), (8.0, "step", "rounds", 1, 2), (9.0, "step", "rounds", 2, 2)]
    steps = [(12.0, "step", "personalisation", 1, 5), (15.0, "step", "personalisation", 2, 5)]
    cost = cost_of(Seen(0.0, rounds + steps), "personalisation")
    assert (cost.start, cost.unit) == (0.0, pytest.approx(15.0))
    alone = Seen(0.0, [*rounds, (12.0, "step", "personalisation", 1, 1), (12.5, "through")], ended=True)
    assert cost_of(alone, "personalisation").unit == pytest.approx(3.5)


@pytest.mark.thorough
def test_own_models_of_a_real_run(tmp_path):
    (job,) = jobs_of(
        "method=finetune", "method.personalisation.epochs=5", "partition.valid=0.2", f"paths.out={tmp_path}"
    )
    cost = time_piece(job, PERSONAL_MODELS, 0.0, 60)
    assert not isinstance(cost, str) and cost.start == 0 and cost.unit > 0 and not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_distances_of_a_clustered_run(tmp_path):
    clustered = ["task=mnist_fedwad", "method=clustered_fedavg", "partition.clients=20", "task.limit=400"]
    jobs, _ = compose_all([*clustered, "hardware.workers=1", f"paths.out={tmp_path / 'out'}"])
    cost = time_piece(jobs[0], DISTANCE_MATRICES, 0.0, 60)
    assert not isinstance(cost, str) and cost.start == 0 and cost.unit > 0
