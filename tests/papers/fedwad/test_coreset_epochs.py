"""Epochs of a coreset by hand: who takes part, with what draws, in which direction, and what is measured at the end."""

from types import SimpleNamespace

import numpy as np
import ot
import pytest

from knot_runner.papers.fedwad import coreset
from knot_runner.papers.fedwad import descent as descent
from tests.golden.messages import refuses

POINTS = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0.0, 0.0], [4.0, 0.0], [0.0, 9.0]], 20, 0)
CLIENTS = coreset.Clients(POINTS, [np.arange(0, 20), np.arange(20, 40), np.arange(40, 60)])
HP = SimpleNamespace(
    points=3, participants=2, samples=None, distance="exact", aggregation="mean", optimizer="sgd", lr=0.5,
    start_scale=2.0, epochs=3, fedwad=None,
)  # fmt: skip


def changed(**values):
    return SimpleNamespace(**(vars(HP) | values))


def begun(seed=0):
    return coreset.begin(HP, 2, seed, "coreset")


def w2(x, y):
    return ot.emd2([], [], ot.dist(x, y)) ** 0.5


@pytest.mark.parametrize("aggregation", ["mean", "sum"])
def test_advance_epoch_steps_against_participants_gradients(aggregation):
    state, row = coreset.advance_epoch(changed(aggregation=aggregation), 0, begun(), CLIENTS, 0)
    first, second = row["participants"]
    assert first < second
    parts = [descent.exact_gradient(begun().points, POINTS[CLIENTS.rows[client]]) for client in (first, second)]
    together = (parts[0][1] + parts[1][1]) / (2 if aggregation == "mean" else 1)
    np.testing.assert_allclose(state.points, begun().points - 0.5 * together, rtol=1e-12)
    assert row["loss"] == pytest.approx((parts[0][0] + parts[1][0]) / 2)
    assert parts[0][0] == pytest.approx(w2(begun().points, POINTS[CLIENTS.rows[first]]))


def test_participants_are_drawn_by_seed_and_epoch():
    def drawn(seed):
        rows = [coreset.advance_epoch(HP, seed, begun(), CLIENTS, epoch)[1] for epoch in range(6)]
        return tuple(tuple(row["participants"]) for row in rows)

    assert all(len(set(drawn(seed))) > 1 for seed in range(3)) and len({drawn(seed) for seed in range(3)}) == 3
    whole = coreset.advance_epoch(changed(participants=3), 0, begun(), CLIENTS, 0)[1]
    assert whole["participants"] == [0, 1, 2]


@pytest.fixture
def asked(monkeypatch):
    """(points, sample, first draw for the name "t") of every federated distance."""
    seen = []

    def federated(points, sample, options, draws):
        seen.append((points, sample.copy(), float(draws("t").random())))
        return float(len(seen)), np.ones_like(points)

    monkeypatch.setattr(descent, "federated_gradient", federated)
    return seen


def test_advance_epoch_draws_afresh_per_client_and_epoch(asked):
    config = changed(distance="federated", participants=3, samples=7)
    for seed in (0, 1):
        for epoch in (0, 1):
            _, row = coreset.advance_epoch(config, seed, begun(), CLIENTS, epoch)
            assert row["loss"] == pytest.approx(np.mean(range(len(asked) - 2, len(asked) + 1)))
    assert len({draw for *_, draw in asked}) == 12
    for at, (_, sample, _) in enumerate(asked):
        own = POINTS[CLIENTS.rows[at % 3]].tolist()
        assert len(sample) == 7 and len({tuple(row) for row in sample.tolist()}) == 7
        assert all(row in own for row in sample.tolist())
    shown = {tuple(map(POINTS.tolist().index, sample.tolist())) for _, sample, _ in asked}
    assert len(shown) == 12 and len({tuple(i % 20 for i in rows) for rows in shown}) == 12


def test_subsample_keeps_the_order():
    rows = np.array([9, 4, 7, 1])
    for most in (None, 4, 5):
        assert coreset.subsample(rows, most, np.random.default_rng(0)) is rows
    drawn = [coreset.subsample(np.arange(10), 9, np.random.default_rng(seed)).tolist() for seed in range(20)]
    assert all(len(set(one)) == 9 and one == sorted(one) for one in drawn) and len(set(map(tuple, drawn))) > 3


def test_own_coreset_descends_on_one_clients_samples(asked):
    config = changed(distance="federated", samples=5)
    points, loss = coreset.own_coreset(config, 0, CLIENTS, 1)
    start = coreset.begin(config, 2, 0, "coreset_knn", 1).points
    np.testing.assert_allclose(points, start - 3 * 0.5)  # three steps against ones
    assert loss == 3.0  # of the last epoch, before its step
    np.testing.assert_allclose(asked[2][0], start - 2 * 0.5)
    coreset.own_coreset(config, 0, CLIENTS, 2)
    coreset.own_coreset(config, 1, CLIENTS, 1)
    assert len({draw for *_, draw in asked}) == 9 and len({one.tobytes() for one, *_ in asked}) == 9
    assert len({sample.tobytes() for _, sample, _ in asked}) == 9
    assert all(row in POINTS[20:40].tolist() for row in asked[0][1].tolist())


def test_labeled_finds_nearest_samples_of_own_client():
    both = [np.array([[0.0, 0.0], [4.0, 0.1]]), np.array([[0.0, 8.9]])]  # the second is nearer to samples of client 1
    found, owners = coreset._labeled(both, coreset.Clients(POINTS, CLIENTS.rows[:2]), np.arange(60))
    asked = (0, both[0][0]), (0, both[0][1]), (1, both[1][0])
    nearest = [min(CLIENTS.rows[k], key=lambda row: float(np.linalg.norm(POINTS[row] - point))) for k, point in asked]
    assert found.tolist() == nearest and owners.tolist() == [0, 0, 1]


def test_client_accuracy_is_over_images_and_over_clients():
    tests = [np.array([0, 1, 2]), np.array([3]), np.array([4]), np.array([], int)]
    found = coreset.client_accuracy(np.array([True, True, False, True, False]), tests)
    assert found == {"weighted": 0.6, "unweighted": pytest.approx((2 / 3 + 1 + 0) / 3)}


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e150, -1e150])
def test_coreset_that_diverges_is_stopped(value):
    coreset.check_points(np.array([[9e149, -9e149]]), 0.1, "epoch 3")
    with refuses():
        coreset.check_points(np.array([[0.0, value]]), 0.1, "epoch 3")


def test_encoder_share_is_rounded_and_drawn():
    config = SimpleNamespace(encoder=SimpleNamespace(epochs=1, name="e"), encoder_share=0.25)
    held, rest = coreset.split_off(config, 10, 0)
    assert len(held) == 2 and sorted([*held, *rest]) == list(range(10))
    assert (np.diff(held) > 0).all() and (np.diff(rest) > 0).all()
    assert coreset.split_off(config, 10, 1)[0].tolist() != held.tolist()
    with refuses():
        coreset.split_off(config, 1, 0)
    for encoder in (None, SimpleNamespace(epochs=0, name="e")):  # clients get all
        assert len(coreset.split_off(SimpleNamespace(encoder=encoder, encoder_share=0.25), 1, 0)[1]) == 1
