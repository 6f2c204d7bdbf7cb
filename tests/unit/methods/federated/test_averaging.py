"""FedAvg, FedProx, SCAFFOLD, server optimizers and running statistics: folds against sums written out by hand."""

import numpy as np
import pytest
import torch

from knot_runner.config.settings.methods.federated import ServerSettings
from knot_runner.engine.federated.cohort import Trained
from knot_runner.methods.around.compression import compressed, top_k
from knot_runner.methods.contract import METHODS, Sent
from knot_runner.methods.federated.averaging import SUMMED_AT_ONCE, mean_of
from knot_runner.pipelines.clients import check_sizes
from tests.golden.messages import refuses
from tests.unit.methods.federated.plain import descend, examples
from tests.unit.methods.federated.worlds import SIZES, method_of, normed_world, rounds_of, settings


@pytest.mark.parametrize("aggregation", ["weighted", "uniform"])
def test_fedavg_is_the_mean_of_the_participants(world, aggregation):
    (one,) = rounds_of(world, settings(aggregation=aggregation))
    assert len({request.client for request in one.requests}) == len(one.requests) == 3
    by = np.array([SIZES[r.client] if aggregation == "weighted" else 1.0 for r in one.requests])
    expected = sum(w * t.weights.numpy() for w, t in zip(by / by.sum(), one.trained, strict=True))
    np.testing.assert_allclose(one.after["weights"].numpy(), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("clients", [1, 8, 19])
@pytest.mark.parametrize("size", [0, 5, SUMMED_AT_ONCE, SUMMED_AT_ONCE + 1, 2 * SUMMED_AT_ONCE + 7])
def test_mean_in_parts_equals_whole_mean(size, clients):
    draws = torch.Generator().manual_seed(size)
    sent = [
        Sent(k, k + 1, {"update": torch.randn(size, generator=draws), "counts": torch.randn(2, 3, generator=draws)})
        for k in range(clients)
    ]
    for aggregation, unweighted in (("weighted", ()), ("uniform", ()), ("weighted", ("counts",))):
        mean = mean_of(iter(sent), aggregation, unweighted)
        assert set(mean) == {"update", "counts"}
        for name, actual in mean.items():
            uniform = aggregation == "uniform" or name in unweighted
            by = [1.0 if uniform else one.examples for one in sent]
            expected = sum(weight * one.parts[name].double() for weight, one in zip(by, sent, strict=True)) / sum(by)
            assert actual.dtype == torch.float64 and actual.shape == sent[0].parts[name].shape
            torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-15)


def test_top_k_sends_largest_entries_with_their_places():
    """Of four values of 8 bytes two, and 4 bytes for each one's place; the statistics whole."""
    update, statistics = torch.tensor([1.0, -5.0, 0.5, 3.0]).double(), torch.ones(3).double()
    sent = top_k(Sent(0, 1, {"update": update, "statistics": statistics}), 0.5)
    assert sent.parts["update"].tolist() == [0.0, -5.0, 0.0, 3.0] and sent.parts["statistics"] is statistics
    assert sent.bytes == 2 * (8 + 4) + 3 * 8
    assert top_k(Sent(0, 1, {"update": update}), 0.01).parts["update"].tolist() == [0.0, -5.0, 0.0, 0.0]
    whole = top_k(Sent(0, 1, {"update": update}), 0.75)  # 3 * 12 bytes are more than 4 * 8
    assert whole.parts["update"] is update and whole.bytes == 32


def test_fedavg_with_top_k_adds_mean_of_largest_entries(world):
    config = settings(aggregation="uniform", top_k=0.2)
    method = compressed(METHODS["fedavg"], config.top_k)
    (one,) = rounds_of(world, config, method=method)
    start = one.before["weights"]
    count = round(0.2 * len(start))
    total = torch.zeros_like(start)
    for result in one.trained:
        move = result.weights - start
        for place in sorted(range(len(move)), key=lambda place: -abs(float(move[place])))[:count]:
            total[place] += move[place]
    torch.testing.assert_close(one.after["weights"], start + total / 3, rtol=0, atol=1e-14)
    assert one.row["bytes_up"] == 3 * count * 12 and one.row["bytes_down"] == 3 * len(start) * 8


def test_participants_are_drawn_by_seed_and_round(world):
    draws = [tuple(world.federation.drawn(round)) for round in range(40)]
    assert draws == [tuple(world.federation.drawn(round)) for round in range(40)]
    assert len(set(draws)) > 5 and all(list(d) == sorted(set(d)) for d in draws)
    counts = np.bincount([c for d in draws for c in d], minlength=5)
    assert counts.min() > 10  # 24 expected of each
    pair = world.federation.cluster([4, 1])
    assert pair.drawn(0) == [1, 4] and len(pair) == 2
    assert world.with_training(clients_per_round=0.5).federation.cluster([4, 1]).participants == 1


@pytest.mark.parametrize("optimizer", ["none", "momentum", "adam"])
def test_server_optimizers_follow_their_formulas(world, optimizer):
    config = settings(server=ServerSettings(optimizer, 0.5, 0.9, 0.99, 1e-2), aggregation="uniform")
    w = world.federation.model.weights
    vectors = [w + 0.1, w - 0.3 * w]
    method = method_of(config)
    state = method.init(config, world.federation)
    velocity = first = second = torch.zeros_like(w)
    for _ in range(3):
        requests = method.plan(config, state, world.federation, 0)[:2]
        pairs = zip(requests, vectors, strict=True)
        trained = [Trained(r.client, v, w.new_empty(0), 1, 0.0, 0, 0, finite=True) for r, v in pairs]
        delta = (vectors[0] + vectors[1]) / 2 - state["weights"]
        if optimizer == "none":
            expected = state["weights"] + 0.5 * delta
        elif optimizer == "momentum":
            velocity = 0.9 * velocity + delta
            expected = state["weights"] + 0.5 * velocity
        else:
            first, second = 0.9 * first + 0.1 * delta, 0.99 * second + 0.01 * delta**2
            expected = state["weights"] + 0.5 * first / (second.sqrt() + 1e-2)
        state, _, _ = method.fold(config, state, world.federation, 0, requests, trained, None)
        torch.testing.assert_close(state["weights"], expected, rtol=1e-13, atol=1e-15)


def test_fedprox_by_hand(linear):
    """Three full-batch steps of one client: w - lr (grad CE + mu (w - w_start)) (Li et al. 2020, eq. 2)."""
    small = linear.with_training(local_epochs=3, batch_size=24, small_clients="allow", clients_per_round=1)
    (one,) = rounds_of(small, settings("fedprox", mu=0.7))
    start = one.requests[0].start.weights
    expected = descend(start, *examples(small, one.requests[0]), 0.1, 3, anchor=start, pull=0.7)
    torch.testing.assert_close(one.trained[0].weights, expected, rtol=1e-12, atol=1e-14)


def test_settings_that_clients_cannot_fulfil(world):
    with refuses():
        METHODS["scaffold"].init(settings("scaffold"), world.with_training(momentum=0.5).federation)
    with refuses():
        check_sizes(world.with_training(batch_size=10).federation)
    allowed = world.with_training(batch_size=10, small_clients="allow").federation
    (note,) = check_sizes(allowed)
    assert note.startswith("training.batch_size=10 is too large for 1 of the clients; ")
    with refuses():
        check_sizes(world.with_training(batch_size=10, small_clients="allow", drop_last=True).federation)
    assert check_sizes(world.federation) == []


@pytest.mark.parametrize("how", ["averaged", "local", "frozen"])
def test_batchnorm_setting_decides_where_statistics_are_kept(world, how):
    normed = normed_world(world)
    config, federation = settings(batchnorm=how), normed.federation
    method = method_of(config)
    start = state = method.init(config, federation)
    for round in range(2):
        requests = method.plan(config, state, federation, round)
        for request in requests:
            own = state.get(f"client/{request.client}/statistics")
            assert torch.equal(request.start.buffers, state["buffers"] if own is None else own)
        trained = normed.engine.train(requests)
        state, _, _ = method.fold(config, state, federation, round, requests, trained, None)
    mean = sum(len(r.rows) * t.buffers for r, t in zip(requests, trained, strict=True))
    mean = mean / sum(len(r.rows) for r in requests)
    torch.testing.assert_close(state["buffers"], mean, rtol=1e-13, atol=1e-15)
    assert not torch.equal(state["weights"], start["weights"])
    if how == "frozen":
        assert torch.equal(state["buffers"], start["buffers"])
    else:
        assert not torch.equal(state["buffers"], start["buffers"])
    kept = [key for key in state if key.endswith("/statistics")]
    assert (len(kept) >= 3) == (how == "local")
    for result in trained:
        model = method.deployed(config, state, federation, result.client)
        assert torch.equal(model.buffers, result.buffers if how == "local" else state["buffers"])


@pytest.mark.parametrize("how", ["averaged", "local"])
def test_batchnorm_last_head_round_keeps_statistics_in_place(world, how):
    normed = normed_world(world)
    config = settings("fedper", batchnorm=how, final_head_epochs=1)
    method = method_of(config)
    federation = normed.federation
    start = method.init(config, federation)
    requests = method.plan(config, start, federation, federation.training.rounds)
    trained = normed.engine.train(requests)
    state, _, _ = method.fold(config, start, federation, federation.training.rounds, requests, trained, None)
    assert torch.equal(state["buffers"], start["buffers"])
    for result in trained:
        assert not torch.equal(result.buffers, start["buffers"])
        wanted = result.buffers if how == "local" else start["buffers"]
        assert torch.equal(method.deployed(config, state, federation, result.client).buffers, wanted)


def test_scaffold_follows_algorithm_1_option_2(world):
    config, federation = settings("scaffold", aggregation="uniform"), world.federation
    control = torch.zeros_like(federation.model.weights)
    own = {k: torch.zeros_like(control) for k in range(len(federation))}
    for one in rounds_of(world, config, 3):
        changes = []
        for request, result in zip(one.requests, one.trained, strict=True):
            torch.testing.assert_close(request.control, control - own[request.client], rtol=1e-13, atol=1e-15)
            moved = (one.before["weights"] - result.weights) / (result.steps * 0.1)
            changes.append(moved - control)
            own[request.client] = own[request.client] + changes[-1]
        control = control + sum(changes) / len(federation)
        torch.testing.assert_close(one.after["control"], control, rtol=1e-12, atol=1e-14)
        mean = sum(result.weights for result in one.trained) / len(one.trained)
        torch.testing.assert_close(one.after["weights"], mean, rtol=1e-13, atol=1e-15)
