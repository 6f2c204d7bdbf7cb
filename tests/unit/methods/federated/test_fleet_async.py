"""Buffered asynchronous aggregation (FedBuff) against steps typed out by hand, and FedAvg where both are one."""

import dataclasses

import pytest
import torch

from knot_runner import METHODS, ClientModel
from knot_runner.methods.around.fleet import devices
from knot_runner.methods.federated import own_models
from tests.golden.messages import refuses
from tests.unit.methods.federated.fleets import Played, buffered
from tests.unit.methods.federated.worlds import SIZES

EMPTY = torch.empty(0, dtype=torch.float64)


def test_steps_by_hand(paced):
    """Clients of 1, 2.5 and 10 s, a step with every update: at 1 s (client 0), 2 s (0), 2.5 s (1: of two steps ago)."""
    paced(1 / 16, 2.5 / 24, 10 / 32)
    played = Played(buffered())
    assert played.column("clock") == pytest.approx([1.0, 2.0, 2.5, 3.0], rel=1e-12)
    assert played.column("participants") == [[0], [0], [1], [0]]
    assert played.column("staleness") == [0.0, 0.0, 2.0, 1.0]
    start = played.federation.model.weights
    weights = [state["weights"] for state in played.states]
    ((first,), (came,)), ((second,), _), ((slow,), (stale,)), ((last,), (late,)) = played.seen
    assert torch.equal(first.start.weights, start) and torch.allclose(weights[0], came.weights, rtol=0, atol=1e-14)
    assert torch.equal(second.start.weights, weights[0]) and torch.equal(slow.start.weights, start)
    assert torch.allclose(weights[2], weights[1] + (1 + 2) ** -0.5 * (stale.weights - start), atol=1e-14)
    assert torch.equal(last.start.weights, weights[1])  # client 0 began at 2 s, before client 1's update
    assert torch.allclose(weights[3], weights[2] + (1 + 1) ** -0.5 * (late.weights - weights[1]), atol=1e-14)
    assert [request.round for (request,), _ in played.seen] == [0, 1, 0, 2]


def test_async_buffer_of_two_matches_steps_by_hand(paced):
    """At 1 s client 0 is through; it waits, since it has sent what it makes of this model; at 2.5 s client 1 is."""
    paced(1 / 16, 2.5 / 24, 4 / 32)
    played = Played(buffered(2, staleness_exponent=1.0))
    assert played.column("participants") == [[0, 1], [0, 2], [0, 1], [0, 1]]
    assert played.column("clock") == pytest.approx([2.5, 4.0, 5.0, 7.5], rel=1e-12)
    assert played.column("staleness") == [0.0, 0.5, 0.5, 0.0]
    (requests, trained), before = played.seen[1], played.states[0]["weights"]
    changes = [result.weights - request.start.weights for request, result in zip(requests, trained, strict=True)]
    wanted = before + (8 * changes[0] + 16 * changes[1] / 2) / 24
    assert torch.allclose(played.states[1]["weights"], wanted, atol=1e-14)


def test_async_fleet_limits_concurrent_clients_to_participants(paced):
    paced(1 / 8, 1.1 / 12, 1.23 / 16, 1.37 / 20, 1.59 / 24)
    played = Played(buffered(), members=range(5), clients_per_round=2)
    assert [len(state["fleet/in_flight"]) for state in played.states] == [1] * 4


def test_async_state_holds_only_versions_in_flight(paced):
    paced(1 / 16, 2.5 / 24, 10 / 32)
    played = Played(buffered())
    for state, versions in zip(played.states, ([0], [0], [0, 2], [0, 3]), strict=True):
        flying = state["fleet/in_flight"].tolist()
        assert sorted({version for _, version in flying}) == sorted(set(versions) & {v for _, v in flying})
        kept = sorted(name for name in state if name.startswith("fleet/sent/"))
        there = sorted({version for _, version in flying})
        assert kept == [f"fleet/sent/{version}/{name}" for version in there for name in ("buffers", "weights")]
    assert torch.equal(played.states[2]["fleet/sent/0/weights"], played.federation.model.weights)
    assert torch.equal(played.states[2]["fleet/sent/2/weights"], played.states[1]["weights"])
    assert played.states[2]["fleet/in_flight"].tolist() == [[2, 0], [0, 2]]
    assert played.states[2]["fleet/arrivals"].tolist() == pytest.approx([10.0, 3.0])


def test_async_server_takes_joint_arrivals_before_new_starts(paced):
    """Three at a time, of five: all are through at 2 s; a step takes two of them, the next one the third."""
    paced(*(1 / size for size in SIZES))
    played = Played(buffered(2), members=range(5))
    assert played.column("clock") == [2.0, 4.0, 4.0, 6.0] and played.column("staleness")[0] == 0.0
    assert len(played.seen[1][0]) == 2 and played.column("staleness")[1] == 0.5


def test_async_fleet_replaces_client_when_it_fails(paced, failing):
    """Client 1 fails at 1.25 s and client 3 begins then: through at 5.25 s."""
    paced(1 / 16, 2.5 / 24, 10 / 32, 4 / 40, 100.0)
    failing({1: 0.5})
    played = Played(buffered(2), members=range(4), rounds=1, clients_per_round=3)
    assert 1 not in played.rows[0]["participants"]
    drawn = played.federation.in_turn(0)
    first, rest = drawn[:3], drawn[3]
    seconds = {0: 1.0, 1: 1.25, 2: 10.0, 3: 4.0}
    ends = sorted((seconds[client], client) for client in first)
    room = ends[0][0]
    ends = sorted([*ends, (room + seconds[rest], rest)])
    arrived = [(moment, client) for moment, client in ends if client != 1][:2]
    assert played.rows[0]["clock"] == pytest.approx(arrived[1][0])
    assert played.rows[0]["participants"] == sorted(client for _, client in arrived)
    assert played.rows[0]["dropped"] == sum(moment <= arrived[1][0] for moment, client in ends if client == 1)


def test_heads_stay_as_their_clients_trained_them(paced):
    paced(1 / 16, 2.5 / 24, 10 / 32)
    played = Played(buffered(), "fedper", hidden=(5,))
    head = played.federation.layout.mask("head")
    (request,), (stale,) = played.seen[2]
    state, before = played.states[2], played.states[1]
    assert torch.equal(state["client/1/unshared"], stale.weights[head])
    body = before["weights"] + 3**-0.5 * (stale.weights - request.start.weights)
    assert torch.allclose(state["weights"][~head], body[~head], atol=1e-14)


@pytest.mark.parametrize("algorithm", ["apfl", "fedala", "own"])
def test_async_step_keeps_own_models_as_trained(algorithm, paced, monkeypatch):
    """Client 1 began with w_0 and is two steps late: the server moves by a share of its update. ``own``: FedAvg, whose
    clients also keep what they have trained."""
    monkeypatch.setitem(METHODS, "own", dataclasses.replace(METHODS["fedavg"], own=own_models.own))
    paced(1 / 16, 2.5 / 24, 10 / 32)
    played = Played(buffered(), algorithm, hidden=(5,))
    (request,), (stale,) = played.seen[2]
    state, before = played.states[2], played.states[1]
    assert torch.equal(state["client/1/weights"], stale.kept["weights"] if algorithm == "apfl" else stale.weights)
    moved = before["weights"] + 3**-0.5 * (stale.weights - request.start.weights)
    assert torch.allclose(state["weights"], moved, atol=1e-14)
    assert not torch.allclose(moved, stale.weights)


def test_async_fedsoup_mixes_clients_starting_model(paced):
    """Client 1 began with w_0 and is two steps late; then comes client 0, one step late, with a pool of its own."""
    paced(1 / 10, 2.5 / 16, 10 / 20)
    played = Played(buffered(), "fedsoup", changes={"start": 0.0}, held=True, lr=5.0)
    assert played.column("participants") == [[0], [0], [1], [0]] and played.column("staleness") == [0.0, 0.0, 2.0, 1.0]
    grown = 0
    for place, (client, begun) in enumerate([(0, 0), (0, 1), (1, 0), (0, 2)]):
        ((request,), (soup,)), state = played.seen[place], played.states[place]
        before = played.states[place - 1] if place else {"weights": played.federation.model.weights}
        sent = played.states[begun - 1]["weights"] if begun else played.federation.model.weights
        pool = before.get(f"client/{client}/pool", torch.zeros_like(sent))
        size = int(before.get(f"client/{client}/pool_size", 0))
        (theta,) = played.world.engine.train(
            [dataclasses.replace(request, start=ClientModel(sent, EMPTY), program=None)]
        )
        without, larger = (theta.weights + size * pool) / (size + 1), (theta.weights + size * pool + sent) / (size + 2)
        joined = int(state[f"client/{client}/pool_size"]) > size
        grown += joined
        assert torch.allclose(soup.weights, larger if joined else without, atol=1e-14)
        if joined:
            assert torch.allclose(state[f"client/{client}/pool"], (size * pool + sent) / (size + 1), atol=1e-14)
        assert torch.equal(state[f"client/{client}/weights"], soup.weights)  # kept whole
        tau = place - begun
        wanted = before["weights"] + (1 + tau) ** -0.5 * (soup.weights - sent)
        assert torch.allclose(state["weights"], wanted, atol=1e-14)
    assert grown  # a soup with the global model was chosen, too


def test_late_parts_count_less_where_they_are_changes_of_the_model(paced, monkeypatch):
    """Of the parts of a message, the update and the statistics; others arrive as they are."""
    arrived = []

    def message(config, state, federation, work):
        update = work.trained[0].weights - state["weights"]
        return {"update": update, "statistics": 2 * update, "own": 3 * update}

    def fold(config, state, federation, round, mean, share):
        arrived.append(mean)
        return {**state, "weights": state["weights"] + mean["update"]}, {}

    paced(1 / 16, 2.5 / 24, 10 / 32)
    monkeypatch.setitem(METHODS, "own", dataclasses.replace(METHODS["fedavg"], message=message, fold=fold))
    played = Played(buffered(staleness_exponent=1.0), "own")
    assert played.column("staleness") == [0.0, 0.0, 2.0, 1.0]
    for mean, ((request,), (result,)), staleness in zip(arrived, played.seen, (0, 0, 2, 1), strict=True):
        update = result.weights - request.start.weights
        for name, wanted in (("update", 1), ("statistics", 2)):
            torch.testing.assert_close(mean[name], wanted * update / (1 + staleness), rtol=0, atol=1e-14)
        torch.testing.assert_close(mean["own"], 3 * update, rtol=0, atol=1e-14)


def test_soups_begin_with_a_version(paced):
    """From the third server step on: the stale update of version 0 is none, those of versions 2 and 3 are."""
    paced(1 / 10, 2.5 / 16, 10 / 20)
    played = Played(buffered(), "fedsoup", changes={"start": 0.5}, held=True)
    assert [request.program is not None for (request,), _ in played.seen] == [False, False, False, True]
    assert set(played.states[2]) >= {"client/1/weights"} and "client/1/pool" not in played.states[2]
    assert "client/0/pool" in played.states[3]


def test_async_server_waits_for_available_client(paced, monkeypatch):
    paced(1 / 16, 2.5 / 24, 10 / 32)
    monkeypatch.setattr(devices, "available_clients", lambda fleet, federation, at: [at >= 7] * 5)
    monkeypatch.setattr(devices, "await_clients", lambda fleet, federation, clients, at: max(at, 7.0))
    assert Played(buffered()).column("clock") == pytest.approx([8.0, 9.0, 9.5, 10.0])


def test_async_fleet_refuses_unfillable_buffer():
    with refuses():
        Played(buffered(4), members=range(5))
    Played(buffered(3), members=range(5), rounds=1)
