"""Buffered asynchronous aggregation (FedBuff) against steps typed out by hand, and FedAvg where both are one."""

import dataclasses

import pytest
import torch

from knot_runner import METHODS
from knot_runner.config.settings.methods.federated import ServerSettings
from knot_runner.methods.around.fleet import devices
from knot_runner.methods.around.fleet.asynchronous import state_at_start, version_entries
from knot_runner.methods.federated import own_models
from tests.feddf_runs import distill
from tests.golden.messages import refuses
from tests.unit.methods.federated.fleets import WHOLE, Played, buffered, fleet_of
from tests.unit.methods.federated.plain import examples, gradient, linear_logits
from tests.unit.methods.federated.worlds import SIZES


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
    for state in played.states:  # only the versions from which a client trains are kept
        versions = sorted({version for _, version in state["fleet/in_flight"].tolist()})
        kept = sorted(name for name in state if name.startswith("fleet/sent/"))
        assert kept == [f"fleet/sent/{version}/{name}" for version in versions for name in ("buffers", "weights")]
    assert torch.equal(played.states[2]["fleet/sent/0/weights"], start)
    assert torch.equal(played.states[2]["fleet/sent/2/weights"], weights[1])
    assert played.states[2]["fleet/in_flight"].tolist() == [[2, 0], [0, 2]]
    assert played.states[2]["fleet/arrivals"].tolist() == pytest.approx([10.0, 3.0])


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


@pytest.mark.parametrize("algorithm", ["fedper", "apfl", "fedala", "own"])
def test_async_step_keeps_own_models_as_trained(algorithm, paced, monkeypatch):
    """Client 1 began with w_0 and is two steps late. ``own``: FedAvg, whose clients also keep what they trained."""
    monkeypatch.setitem(METHODS, "own", dataclasses.replace(METHODS["fedavg"], keep=own_models.keep))
    paced(1 / 16, 2.5 / 24, 10 / 32)
    played = Played(buffered(), algorithm, hidden=(5,))
    (request,), (stale,) = played.seen[2]
    state, before = played.states[2], played.states[1]
    head = played.federation.layout.mask("head")
    shared = ~head if algorithm == "fedper" else torch.ones_like(head)
    if algorithm == "fedper":
        assert torch.equal(state["client/1/unshared"], stale.weights[head])
    else:
        assert torch.equal(state["client/1/weights"], stale.kept["weights"] if algorithm == "apfl" else stale.weights)
    moved = before["weights"] + 3**-0.5 * (stale.weights - request.start.weights)
    assert torch.allclose(state["weights"][shared], moved[shared], atol=1e-14)
    assert not torch.allclose(moved, stale.weights)


def test_async_fedsoup_starts_soups_by_the_version_of_the_model(paced):
    """Clients of 1, 2.5 and 10 s: soups begin with the third version, which only the last update began with."""
    paced(1 / 10, 2.5 / 16, 10 / 20)
    later = Played(buffered(), "fedsoup", changes={"start": 0.5}, held=True)
    assert [request.program is not None for (request,), _ in later.seen] == [False, False, False, True]
    assert "client/1/weights" in later.states[2] and "client/1/pool" not in later.states[2]
    assert "client/0/pool" in later.states[3]


def test_late_parts_count_less_where_they_are_changes_of_the_model(paced, monkeypatch):
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


def test_async_server_waits_for_available_client(paced, monkeypatch):
    paced(1 / 16, 2.5 / 24, 10 / 32)
    monkeypatch.setattr(devices, "available_clients", lambda fleet, federation, at: [at >= 7] * 5)
    monkeypatch.setattr(devices, "await_clients", lambda fleet, federation, clients, at: max(at, 7.0))
    assert Played(buffered()).column("clock") == pytest.approx([8.0, 9.0, 9.5, 10.0])


def test_async_fleet_ends_when_method_plans_nothing(paced, monkeypatch):
    paced(1 / 16, 2.5 / 24, 10 / 32)
    fedavg = METHODS["fedavg"]
    short = dataclasses.replace(fedavg, plan=lambda *inputs: fedavg.plan(*inputs) if inputs[-1] < 2 else [])
    monkeypatch.setitem(METHODS.data, "fedavg", short)
    assert len(Played(buffered()).rows) == 2


def test_async_fleet_refuses_unfillable_buffer():
    with refuses():
        Played(buffered(4), members=range(5))
    Played(buffered(3), members=range(5), rounds=1)


#: Client and version of each server step, where clients take 1, 2.6 and 10 s and every update makes a step.
BEGUN = [(0, 0), (0, 1), (1, 0), (0, 2), (0, 4), (0, 5), (1, 3), (0, 6)]
CONSENSUS = {"server_distillation": distill(ensemble="logits", optimizer="sgd", lr=0.5)}
#: name -> (algorithm, settings, hidden layers)
CASES = {
    "scaffold": ("scaffold", {}, ()),
    "fedgen": ("fedgen", {}, (5,)),
    "feddistill": ("feddistill", {}, ()),
    "fedmd": ("fedmd", CONSENSUS, ()),
    "local": ("local", {}, ()),
    "feddf": ("fedavg", CONSENSUS, ()),
    "feddf of scaffold": ("scaffold", {**CONSENSUS, "aggregation": "uniform"}, ()),
    "feddf of fedgen": ("fedgen", CONSENSUS, (5,)),
    "feddf of ditto": ("ditto", CONSENSUS, ()),
    "fedadam": ("fedavg", {"server": ServerSettings("adam", 0.1, 0.9, 0.99, 1e-3)}, (5,)),
    "own statistics": ("fedavg", {"aggregation": "uniform", "batchnorm": "local"}, (5,)),
    **{name: (name, {}, (5,)) for name in ("fedavg", "fedper", "ditto", "apfl", "fedala")},
}


@pytest.fixture
def spread(paced):
    paced(1 / 16, 2.6 / 24, 10 / 32, 3.3 / 40, 4.7 / 48)


@pytest.mark.parametrize(("case", "participants"), [("scaffold", 3), ("ditto", 3), *((case, 5) for case in CASES)])
def test_async_full_buffer_equals_rounds_at_equal_speeds(case, participants, paced):
    paced(*(1 / size for size in SIZES))
    algorithm, changes, hidden = CASES[case]
    own = {"members": range(5), "hidden": hidden, "changes": changes, "clients_per_round": participants, "rounds": 2}
    sync, played = Played(None, algorithm, **own), Played(buffered(participants), algorithm, **own)
    assert played.column("participants") == sync.column("participants") and played.column("staleness") == [0.0] * 2
    waited = Played(fleet_of(), algorithm, **own)
    assert played.column("clock") == pytest.approx(waited.column("clock"), rel=1e-12)
    assert all(torch.equal(played.state[name], tensor) for name, tensor in sync.state.items())
    assert all(own.items() <= row.items() for own, row in zip(sync.rows, played.rows, strict=True))


@pytest.mark.parametrize("exponent", [0.5, 0.0])
def test_async_scaffold_corrects_by_starting_control(exponent, spread):
    played = Played(buffered(staleness_exponent=exponent), "scaffold", rounds=len(BEGUN), **WHOLE)
    versions, control = [played.federation.model.weights], [torch.zeros(15, dtype=torch.float64)]
    own = {client: torch.zeros(15, dtype=torch.float64) for client in range(3)}
    for index, (client, version) in enumerate(BEGUN):
        ((request,), _), state = played.seen[index], played.states[index]
        assert (request.client, request.round) == (client, version)
        weights = versions[version]
        x, y = examples(played.world, request)
        for _ in range(2):
            weights = weights - 0.1 * (gradient(weights, x, y) + control[version] - own[client])
        change = (versions[version] - weights) / (2 * 0.1) - control[version]
        own[client] = own[client] + change
        control.append(control[-1] + change / 3)
        versions.append(versions[-1] + (1 + index - version) ** -exponent * (weights - versions[version]))
        torch.testing.assert_close(state["weights"], versions[-1], rtol=0, atol=1e-13)
        torch.testing.assert_close(state["control"], control[-1], rtol=0, atol=1e-12)
        torch.testing.assert_close(state[f"client/{client}/control"], own[client], rtol=0, atol=1e-12)


def test_async_fleet_replaces_only_clients_that_arrived(spread):
    played = Played(buffered(2), members=range(5), clients_per_round=2, rounds=8)
    assert max(len(state["fleet/in_flight"]) for state in played.states) == 1


def test_async_feddf_distills_from_buffered_clients(spread):
    played = Played(buffered(2), members=range(5), clients_per_round=4, changes=CONSENSUS, rounds=8)
    assert max(played.column("staleness")) > 1
    versions = [played.federation.model.weights, *(state["weights"] for state in played.states)]
    for index, (requests, trained) in enumerate(played.seen):
        *inferences, training = played.after[index]
        assert [id(one.model.weights) for one in inferences] == [id(result.weights) for result in trained]
        x = played.world.engine.data.pixels[torch.arange(30, 62)].flatten(1)
        told = [linear_logits(one.weights, x) for one in trained]
        (actual,) = training.inputs.values()
        torch.testing.assert_close(actual, torch.stack(told).mean(0), rtol=0, atol=1e-12)
        stepped, sizes = versions[index], [len(request.rows) for request in requests]
        for request, result, size in zip(requests, trained, sizes, strict=True):
            assert torch.equal(request.start.weights, versions[request.round])  # distilled, too
            discount = (1 + index - request.round) ** -0.5
            stepped = stepped + size / sum(sizes) * discount * (result.weights - request.start.weights)
        torch.testing.assert_close(training.start.weights, stepped, rtol=0, atol=1e-13)
        assert not torch.equal(versions[index + 1], training.start.weights)
        flying = {version for _, version in played.states[index]["fleet/in_flight"].tolist()}
        for version in flying:
            assert torch.equal(played.states[index][f"fleet/sent/{version}/weights"], versions[version])


@pytest.mark.parametrize("algorithm", ["local", "fedmd"])
def test_async_fleet_takes_no_time_to_send_own_models(algorithm, spread):
    changes = CONSENSUS if algorithm == "fedmd" else {}
    network = {"down": 1e-6, "up": 1e-6, "sigma": 0.0}
    played = Played(buffered(network=network), algorithm, changes=changes)
    assert played.column("clock") == pytest.approx([1.0, 2.0, 2.6, 3.0], rel=1e-12)
    assert played.column("staleness") == [0, 0, 2, 1]
    for (_, (result,)), state in zip(played.seen, played.states, strict=True):
        kept_as_trained = torch.equal(state[f"client/{result.client}/weights"], result.weights)
        assert kept_as_trained == (algorithm == "local")
    plain = Played(buffered(network=network))
    assert plain.rows[0]["clock"] == pytest.approx(1.0 + 2 * 15 * 32, rel=1e-12)


def test_version_entries_hold_all_but_what_clients_and_server_keep():
    old, new = torch.zeros(1), torch.ones(1)
    names = ("client/1/weights", "server/first", "fleet/clock", "fleet/sent/1/weights")
    kept = version_entries({"weights": old, "shared/a": old, **dict.fromkeys(names, old)}, 2, 2)
    assert kept.keys() == {"fleet/sent/2/weights", "fleet/sent/2/shared/a"}
    assert all(tensor is not old for tensor in kept.values())  # a commit holds no tensor under two names
    now = {**kept, "weights": new, "shared/b": new, "fleet/sent/22/weights": new, **dict.fromkeys(names, new)}
    actual = state_at_start(now, 2, 4)
    assert actual["weights"] is kept["fleet/sent/2/weights"] and actual["shared/a"] is kept["fleet/sent/2/shared/a"]
    assert "shared/b" not in actual and all(actual[name] is new for name in names)
    assert state_at_start(now, 4, 4) is now and version_entries(now, 2, 4) == kept
