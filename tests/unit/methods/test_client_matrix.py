"""The K x K record of personalized models, and aggregation by label similarity, against loops typed out by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.config.settings.methods.personalization import CossimSettings
from knot_runner.methods.personalization import PERSONALIZATIONS, cossim
from knot_runner.methods.personalization.matrix import TestRows as Rows
from knot_runner.methods.personalization.matrix import count, matrix_measures
from tests.changed_settings import built
from tests.unit.methods.personal_world import after_rounds, run_kind

KIND = PERSONALIZATIONS["cossim"]
FORMS = ("weighted", "indicator", "unnormalized")


def spec(**changes):
    return built(CossimSettings, "base/personalization/cossim.yaml", **{"lr": 0.1, "rounds": 2, **changes})


def by_hand(federation):
    counts = [np.bincount(federation.train_labels[rows], minlength=3) for rows in federation.rows("train")]
    return [[one @ other / math.sqrt((one @ one) * (other @ other)) for other in counts] for one in counts]


def weights_by_hand(similarities, form, cutoff):
    actual = []
    for k, row in enumerate(similarities):
        kept = [value if value > cutoff or i == k else 0.0 for i, value in enumerate(row)]
        if form == "indicator":
            kept = [float(value > 0) for value in kept]
        total = 1.0 if form == "unnormalized" else sum(kept)
        actual.append([value / total for value in kept])
    return np.array(actual)


def test_similarities_are_cosines_of_the_training_labels():
    federation, _ = after_rounds()
    actual = cossim.label_similarities(federation)
    assert np.allclose(actual, by_hand(federation), atol=1e-12)
    assert torch.equal(actual.diagonal(), torch.ones(5, dtype=torch.float64))
    labels = federation.train_labels.clone()
    labels[federation.clients[0].valid] = 0  # held-out labels say nothing
    other = dataclasses.replace(federation, train_labels=labels)
    assert torch.equal(cossim.label_similarities(other), actual)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cutoff", [0.0, 0.7, 0.95, 0.999])
def test_aggregation_weights_by_hand(form, cutoff):
    similarities = torch.tensor([[1, 0.7, 0.95], [0.7, 1, 0], [0.95, 0, 1]], dtype=torch.float64)
    actual = cossim.aggregation_weights(similarities, spec(form=form, cutoff=cutoff))
    assert np.allclose(actual, weights_by_hand(similarities.tolist(), form, cutoff), atol=1e-15)


@pytest.mark.parametrize("form", FORMS)
def test_cossim_rounds_by_hand(form):
    """Train, then aggregate and train, twice; every model of every point."""
    federation, engine = after_rounds(starts=2)
    config = spec(form=form, cutoff=0.8)
    state, measured, rows = run_kind(KIND, config, federation, engine)
    matrix = weights_by_hand(by_hand(federation), form, 0.8)
    assert 0 < (matrix == 0).sum() < 20  # the cut-off leaves some out
    models = [federation.start(client).weights for client in range(5)]
    for round in range(3):
        if round:
            models = [sum(matrix[k][i] * models[i] for i in range(5)) for k in range(5)]
            for client in range(5):
                assert torch.allclose(measured[2 * round - 1][client].weights, models[client], atol=1e-12)
        requests = []
        for asked, weights in zip(KIND.plan(config, {}, federation, 0), models, strict=True):
            start = dataclasses.replace(asked.start, weights=weights)
            later = federation.training.rounds + 1 + round
            requests.append(dataclasses.replace(asked, round=later, start=start))
        models = [one.weights for one in engine.train(requests)]
        for client in range(5):
            assert torch.allclose(measured[2 * round][client].weights, models[client], atol=1e-12)
    assert len(rows) == 3 and all(row["train_loss"] > 0 for row in rows)
    arrays, recorded = KIND.finish(config, federation, state, None)
    facts, similarities = recorded["similarity"], np.array(by_hand(federation))
    others = similarities[~np.eye(5, dtype=bool)]
    assert (facts["least"], facts["mean"]) == (pytest.approx(others.min()), pytest.approx(others.mean()))
    assert facts["kept"] == pytest.approx((matrix > 0).sum() / 5)
    assert facts["sums"] == pytest.approx(matrix.sum(1).mean()) and facts["leaves"] == ["model", "label histogram"]
    assert np.allclose(arrays["aggregation"], matrix) and np.allclose(arrays["similarity"], similarities)


#: Clients 0 and 1 share test row 7; client 2 has one of its own; client 3 has none.
TEST = [torch.tensor([3, 7]), torch.tensor([7, 9, 11]), torch.tensor([20]), torch.tensor([], dtype=torch.int64)]


def test_test_rows_counts_shared_rows_as_own_only():
    tests = Rows.of(TEST)
    assert tests.rows.tolist() == [3, 7, 9, 11, 20]
    assert [tests.own(client).tolist() for client in range(4)] == [[0, 1], [1, 2, 3], [4], []]
    assert tests.examples().tolist() == [[2, 2, 1, 0], [1, 3, 1, 0], [2, 3, 1, 0], [2, 3, 1, 0]]


def test_counts_and_losses_by_hand():
    tests, labels = Rows.of(TEST), torch.tensor([0, 1, 0, 1, 1])
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [0.0, 0.5], [1.0, 0.0]])
    correct, loss = count(tests, logits, labels, 0)
    assert correct.tolist() == [2, 1, 0, 0]  # of rows 9 and 11 of client 1, the first is wrong
    expected = [math.log(1 + math.exp(margin)) for margin in (-2, -1, 3, -0.5)]
    assert loss[:2].tolist() == pytest.approx([expected[0] + expected[1], expected[2] + expected[3]], abs=1e-7)
    assert count(tests, logits, labels, 1)[0].tolist() == [1, 2, 0, 0]


def test_measures_by_hand():
    examples = torch.tensor([[10, 20, 5], [10, 20, 5], [10, 20, 5]])
    correct = torch.tensor([[9, 10, 1], [5, 16, 2], [2, 4, 5]])
    loss = torch.tensor([[1.0, 20.0, 5.0], [5.0, 4.0, 5.0], [10.0, 20.0, 0.5]])
    actual = matrix_measures(examples, correct, loss, [0, 1, 2], torch.tensor([9, 18, 6]))
    assert actual["id_accuracy"] == pytest.approx((0.9 + 0.8 + 1.0) / 3)
    assert actual["ood_accuracy"] == pytest.approx(((0.5 + 0.2) / 2 + (0.5 + 0.4) / 2 + (0.2 + 0.2) / 2) / 3)
    assert actual["ood_weighted"] == pytest.approx((11 / 25 + 7 / 15 + 6 / 30) / 3)
    assert actual["all_accuracy"] == pytest.approx(((0.9 + 0.5 + 0.2) + (0.5 + 0.8 + 0.4) + (0.2 + 0.2 + 1)) / 9)
    assert actual["worst_decile"] == pytest.approx(0.8)
    assert actual["clients_hurt"] == pytest.approx(1 / 3)  # client 1 lost two examples; one is no harm
    assert actual["id_loss"] == pytest.approx((0.1 + 0.2 + 0.1) / 3)
    assert actual["ood_loss"] == pytest.approx(1 / 6 * (1 + 1 + 0.5 + 1 + 1 + 1))
    assert "unseen_accuracy" not in actual


def test_matrix_measures_handle_unseen_and_untested_clients():
    examples = torch.tensor([[4, 4, 0, 8]] * 4)
    correct = torch.tensor([[4, 2, 0, 8], [1, 3, 0, 0], [2, 1, 0, 8], [0, 0, 0, 6]])
    actual = matrix_measures(examples, correct, torch.zeros(4, 4), [0, 1, 2])
    assert actual["id_accuracy"] == pytest.approx((1 + 0.75) / 2)  # client 2 has none
    assert actual["ood_accuracy"] == pytest.approx((0.5 + 0.25 + (0.5 + 0.25) / 2) / 3)  # client 3 is unseen
    assert actual["all_accuracy"] == pytest.approx((0.75 + 0.5 + 0.375) / 3)
    assert actual["unseen_accuracy"] == pytest.approx(0.75)
    assert "clients_hurt" not in actual
    actual = matrix_measures(torch.tensor([[4, 4, 2, 0]] * 4), torch.ones(4, 4), torch.zeros(4, 4), [0, 1])
    assert actual["unseen_accuracy"] == pytest.approx(0.5)


@given(st.integers(2, 25), st.integers(0, 2**31))
def test_matrix_measures_worst_decile_averages_worst_tenth(clients, seed):
    draw = np.random.default_rng(seed)
    examples = torch.full((clients, clients), 10)
    correct = torch.from_numpy(draw.integers(0, 11, (clients, clients)))
    actual = matrix_measures(examples, correct, torch.zeros(clients, clients), range(clients))
    worst = sorted(correct.diagonal().tolist())[: -(-clients // 10)]
    assert actual["worst_decile"] == pytest.approx(sum(worst) / len(worst) / 10)
    off = [correct[k, j] / 10 for k in range(clients) for j in range(clients) if k != j]
    assert actual["ood_accuracy"] == pytest.approx(float(np.mean(off))) == pytest.approx(actual["ood_weighted"])
