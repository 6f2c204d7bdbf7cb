"""Aggregation by label similarity: cosines, weights and rounds against loops typed out by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from knot_runner.config.settings import CossimSettings
from knot_runner.methods.personalization import PERSONALIZATIONS, cossim
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
    found = []
    for k, row in enumerate(similarities):
        kept = [value if value > cutoff or i == k else 0.0 for i, value in enumerate(row)]
        if form == "indicator":
            kept = [float(value > 0) for value in kept]
        total = 1.0 if form == "unnormalized" else sum(kept)
        found.append([value / total for value in kept])
    return np.array(found)


def test_similarities_are_cosines_of_the_training_labels():
    federation, _ = after_rounds()
    found = cossim.label_similarities(federation)
    assert np.allclose(found, by_hand(federation), atol=1e-12)
    assert torch.equal(found.diagonal(), torch.ones(5, dtype=torch.float64))
    labels = federation.train_labels.clone()
    labels[federation.clients[0].valid] = 0  # held-out labels say nothing
    other = dataclasses.replace(federation, train_labels=labels)
    assert torch.equal(cossim.label_similarities(other), found)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cutoff", [0.0, 0.7, 0.95, 0.999])
def test_aggregation_weights_by_hand(form, cutoff):
    similarities = torch.tensor([[1, 0.7, 0.95], [0.7, 1, 0], [0.95, 0, 1]], dtype=torch.float64)
    found = cossim.aggregation_weights(similarities, spec(form=form, cutoff=cutoff))
    assert np.allclose(found, weights_by_hand(similarities.tolist(), form, cutoff), atol=1e-15)
    assert (found.diagonal() > 0).all()
    if form != "unnormalized":
        assert torch.allclose(found.sum(1), torch.ones(3, dtype=torch.float64), atol=1e-15)


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
        for asked, weights in zip(KIND.method.plan(config, {}, federation, 0), models, strict=True):
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
