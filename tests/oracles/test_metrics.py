"""Measures against scikit-learn, the paper's worked example, and the deduced ALL column."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, log_loss

from knot_runner import metrics

LINE = np.arange(1.0, 6)[:, None]


def value(name, probabilities, labels, points=None):
    """The metric on probabilities [N, C]."""
    return metrics.METRICS[name].value(metrics.TestSet(probabilities, probabilities, labels, points))


def test_semantic_distance_of_the_introductions_two_models():
    """KNOT section 1: the text says 1.97 for m1, but its distribution gives 1.996; m2's 2.80 is right."""
    m1, m2 = [0.2, 0.7, 0.033, 0.033, 0.033], [0.4, 0.1, 0.1, 0.1, 0.3]
    truth = np.array([0])
    assert 1 + value("sd", np.array([m1]), truth, LINE) == pytest.approx(1.996)
    assert 1 + value("sd", np.array([m2]), truth, LINE) == pytest.approx(2.80)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_f1_and_accuracy_equal_scikit_learns(pairs):
    truth, predicted = np.array(pairs).T
    votes = np.eye(5)[predicted]
    assert value("f1", votes, truth) == pytest.approx(f1_score(truth, predicted, average="macro", zero_division=0))
    assert value("accuracy", votes, truth) == pytest.approx(accuracy_score(truth, predicted))


def test_measure_all_pools_scores_but_averages_sd():
    draw = np.random.default_rng(0)
    parts = {name: (draw.dirichlet(np.ones(5), n), draw.integers(5, size=n)) for name, n in (("A", 30), ("B", 300))}
    table = metrics.measure_all(parts, LINE)
    truth = np.concatenate([y for _, y in parts.values()])
    predicted = np.concatenate([p.argmax(1) for p, _ in parts.values()])
    assert table["f1"]["ALL"] == pytest.approx(f1_score(truth, predicted, average="macro"))
    assert table["accuracy"]["ALL"] == pytest.approx(accuracy_score(truth, predicted))
    assert table["sd"]["ALL"] == pytest.approx((table["sd"]["A"] + table["sd"]["B"]) / 2)


def test_cross_entropy_at_a_temperature_by_hand():
    logits, truth = np.array([[2.0, 0.0, -2.0], [0.0, 4.0, 0.0]]), np.array([0, 2])
    first = np.log(np.exp(1) + 1 + np.exp(-1)) - 1
    second = np.log(1 + np.exp(2) + 1) - 0
    found, huge = (metrics.measured(metrics.of_logits(x, truth, temperature=2.0)) for x in (logits, logits * 1e4))
    assert found["tempered_loss"] == pytest.approx((first + second) / 2)
    assert huge["tempered_loss"] == pytest.approx(1e4)  # (0 + 2e4) / 2, and no overflow
    probabilities = metrics.of_logits(logits, truth).probabilities
    assert found["loss"] == pytest.approx(log_loss(truth, probabilities, labels=[0, 1, 2]))


def test_losses_need_logits_and_a_temperature():
    assert "loss" not in metrics.measured(metrics.TestSet(np.eye(2), np.eye(2), np.arange(2)))
    assert "tempered_loss" not in metrics.measured(metrics.of_logits(np.eye(2), np.arange(2)))


def test_softmax_handles_large_logits():
    found = metrics.of_logits(np.array([[1e4, 1e4, 0.0], [0.0, np.log(3), 0.0]]), np.arange(2)).probabilities
    np.testing.assert_allclose(found, [[0.5, 0.5, 0], [0.2, 0.6, 0.2]], atol=1e-15)


@pytest.mark.parametrize(
    ("target", "expected"), [(0.5, 3), (0.4999, 3), (0.1, 1), (0.51, 9), (0.9, None), (None, None)]
)
def test_rounds_to_target_returns_first_round_at_target(target, expected):
    """Rounds count from 1, so that a round's number is that of the rounds trained."""
    assert metrics.reached_at([(1, 0.1), (3, 0.5), (5, 0.5), (9, 0.51)], target) == expected


def test_confusion_counts_truth_rows_and_prediction_columns():
    test = metrics.TestSet(np.eye(3)[[1, 1, 2]], np.eye(3)[[1, 1, 2]], np.array([0, 1, 1]))
    assert test.confusion.tolist() == [[0, 1, 0], [0, 1, 1], [0, 0, 0]]


def test_metrics_of_no_examples_are_0():
    none = np.zeros((0, 3)), np.zeros(0, dtype=int)
    assert value("accuracy", *none) == 0 and value("f1", *none) == 0
