"""A fleet's rounds: clocks, deadlines, failures and absences against sums typed out by hand."""

import dataclasses
import math

import pytest
import torch

from knot_runner.config.settings.methods.federated import Stragglers
from knot_runner.engine.federated.cohort import Phase
from knot_runner.engine.seeds import generator
from knot_runner.methods.around.clusters import cluster_state, joint_row, per_cluster
from knot_runner.methods.around.fleet import devices, on_fleet
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federated.chilling import stragglers
from knot_runner.methods.party import Party
from tests.golden.messages import refuses
from tests.unit.methods.federated.fleets import WHOLE, Played, buffered, fleet_of, played_rounds
from tests.unit.methods.federated.plain import descend, examples
from tests.unit.methods.federated.worlds import SIZES, make_world, settings

LATE, ALL_FAIL = {"deadline": 20.0}, {0: 0.5, 1: 0.5, 2: 0.25}
#: Of clients that need 16, 48 and 16 s (8, 12, 16 examples, 2 epochs): the fleet, the share of its work after which a
#: client fails, and of every round its seconds, participants, and how many were (dropped, late, partial).
ROUNDS = [
    ({}, {}, 48.0, [0, 1, 2], (0, 0, 0)),
    ({"deadline": 48.0}, {}, 48.0, [0, 1, 2], (0, 0, 0)),  # in time, exactly
    (LATE, {}, 20.0, [0, 2], (0, 1, 0)),  # for client 1 the server waits
    ({"deadline": 30.0, "late": "partial"}, {}, 24.0, [0, 1, 2], (0, 0, 1)),
    ({**LATE, "late": "partial"}, {}, 20.0, [0, 2], (0, 1, 0)),  # not one epoch of 24 s
    ({"dropout": 0.1}, {1: 0.5}, 24.0, [0, 2], (1, 0, 0)),
    ({}, {1: 0.25}, 16.0, [0, 2], (1, 0, 0)),  # before the others are through
    (LATE, {1: 0.9}, 20.0, [0, 2], (0, 1, 0)),  # after the deadline
    ({}, ALL_FAIL, 24.0, [], (3, 0, 0)),
    ({"mode": "async", "buffer": 2}, ALL_FAIL, 24.0, [], (3, 0, 0)),
]


@pytest.mark.parametrize(("fleet", "shares", "seconds", "participants", "counts"), ROUNDS)
def test_fleet_rounds_match_clock_and_counts_by_hand(fleet, shares, seconds, participants, counts, paced, failing):
    paced(1.0, 2.0, 0.5)
    failing(shares)
    played = Played(fleet_of(**fleet))
    assert played.column("clock") == [seconds * number for number in (1, 2, 3, 4)]
    assert played.column("participants") == [participants] * 4
    assert [(row["dropped"], row["late"], row["partial"]) for row in played.rows] == [counts] * 4
    assert played.column("bytes_up") == played.column("bytes_down") == [15 * 8 * len(participants)] * 4
    requests, trained = played.seen[0]
    mean = played.federation.model.weights
    if participants:
        sizes = [len(request.rows) for request in requests]
        mean = sum(size * one.weights for size, one in zip(sizes, trained, strict=True)) / sum(sizes)
    assert torch.allclose(played.states[0]["weights"], mean, rtol=0, atol=1e-12)
    assert [one.recipe.epochs for one in requests] == [1 if counts[2] and one.client == 1 else 2 for one in requests]
    if len(participants) == 3 and not counts[2]:
        assert torch.equal(played.state["weights"], Played(None).state["weights"])


def test_partial_work_is_cut_phase_after_phase():
    (request, *_), _ = Played(None, "fedrep", hidden=(5,), local_epochs=3).seen[0]
    assert [(phase.epochs, phase.trains) for phase in request.recipe.phases] == [(1, "head"), (2, "body")]
    for epochs, wanted in ((1, [(1, "head")]), (2, [(1, "head"), (1, "body")]), (3, [(1, "head"), (2, "body")])):
        cut = devices.shortened(request, epochs)
        assert [(phase.epochs, phase.trains) for phase in cut.recipe.phases] == wanted
    longer = dataclasses.replace(request.recipe, phases=(Phase(2, "head"), Phase(2, "body")))
    cut = devices.shortened(dataclasses.replace(request, recipe=longer), 3)
    assert cut.recipe.phases == (Phase(2, "head"), Phase(1, "body"))


#: Algorithm, its settings, hidden layers, how many numbers a client receives and sends (4 pixels, 3 classes).
NUMBERS = [
    ("fedavg", {}, (), 15, 15),
    ("fedavg", {"top_k": 0.1}, (), 15, 2 * 1.5),  # two of 64 bits; 32 for the place of each are half a number
    ("scaffold", {}, (), 30, 30),  # controls are as many again
    ("fedper", {}, (5,), 25, 25),  # the body
    ("fedgen", {}, (5,), 43, 43 + 3),  # and shares of labels; no generator is trained yet
    ("local", {}, (), 0, 0),
    ("ditto", {}, (), 15, 15),  # clients keep their own models
]


@pytest.mark.parametrize(("algorithm", "changes", "hidden", "down", "up"), NUMBERS)
def test_fleet_clock_of_sent_numbers(algorithm, changes, hidden, down, up, paced):
    """Numbers of 32 bits down at 3e-6 Mbit/s and up at 1e-6."""
    paced(1.0, 2.0, 0.5)
    network = {"down": 3e-6, "up": 1e-6, "sigma": 0.0}
    played = Played(fleet_of(network=network), algorithm, hidden=hidden, changes=changes)
    training = 96 if algorithm == "ditto" else 48  # of two models
    assert played.rows[0]["clock"] == pytest.approx(training + down * 32 / 3 + up * 32, rel=1e-12)
    if algorithm == "fedgen":
        generator = sum(own.numel() for name, own in played.state.items() if name.startswith("generator/model."))
        seconds = played.rows[1]["clock"] - 2 * played.rows[0]["clock"]
        assert seconds == pytest.approx((generator + 3) * 32 / 3, rel=1e-12)


def test_work_times_include_second_model_of_program(paced):
    paced(2.0)
    config, federation, method = settings("apfl"), make_world([5]).federation, METHODS["apfl"]
    requests = method.plan(config, method.init(config, federation), dataclasses.replace(federation, chosen=(0,)), 0)
    (time,) = devices.work_times(fleet_of(network=None), federation, requests, 0, 0).values()
    assert requests[0].program.further == 2
    assert (time.epochs, time.total) == (2, 2 * 2 * len(requests[0].rows) * 2.0)


def test_work_times_omit_dropped_last_batch_and_count_whole_epochs():
    four = devices.WorkTime(4, 2.0, 2.0)  # epochs of 2 s, and 2 s for sending
    assert [four.epochs_until(deadline) for deadline in (10.0, 9.9, 6.0, 4.0, 3.9)] == [4, 3, 2, 1, 0]
    (request,) = Played(None, members=[1], clients_per_round=1, batch_size=5, drop_last=True).seen[0][0]
    (time,) = devices.work_times(fleet_of(), make_world([]).federation, [request], 0, 0).values()
    assert time.epoch == 10.0


def test_fleet_refuses_a_deadline_that_nobody_meets(paced):
    paced(1.0, 2.0, 0.5)  # 16, 48, 16 s
    Played(fleet_of(deadline=16.0)), Played(fleet_of(deadline=8.0, late="partial"))
    for changes in ({"deadline": 15.0}, {"deadline": 7.9, "late": "partial"}):
        with refuses():
            Played(fleet_of(**changes))


def test_stragglers_by_speed_chills_the_slowest_clients(paced):
    speeds = (1.0, 2.0, 0.5, 3.0, 1.5)
    paced(*speeds)
    slow = Stragglers(share=0.4, temperature=0.25, epochs=1, by="speed")
    played = Played(fleet_of(), members=range(5), changes={"stragglers": slow}, clients_per_round=5)
    requests, _ = played.seen[0]
    assert [request.objective.settings["temperature"] for request in requests] == [1.0, 0.25, 1.0, 0.25, 1.0]
    seconds = [s * n * e for s, n, e in zip(speeds, SIZES, (2, 1, 2, 1, 2), strict=True)]
    assert played.rows[0]["clock"] == max(seconds) == 72.0  # of client 4; client 3 has 60 of its 120
    federation = dataclasses.replace(played.federation, seconds_per_example=torch.tensor(speeds))
    assert stragglers(played.config, federation) == {1, 3}
    seeded = settings(stragglers=dataclasses.replace(slow, by="seed"))
    order = torch.randperm(5, generator=generator(3, "stragglers"))
    assert stragglers(seeded, federation) == set(order[:2].tolist())


def test_fleet_last_head_round_includes_all_clients(paced, failing):
    paced(1.0, 2.0, 0.5)
    changes = {"final_head_epochs": 3}
    played = Played(fleet_of(), "fedper", members=range(5), hidden=(5,), changes=changes, clients_per_round=2)
    assert played.column("participants")[-1] == [0, 1, 2, 3, 4] and len(played.rows) == 5
    assert played.rows[-1]["clock"] - played.rows[-2]["clock"] == 3 * max(8, 24, 8, 20, 24)
    plain = Played(None, "fedper", members=range(5), hidden=(5,), changes=changes, clients_per_round=2)
    assert torch.equal(plain.state["weights"], played.state["weights"])
    failing({3: 0.5})
    lost = Played(fleet_of(), "fedper", members=range(5), hidden=(5,), changes=changes, clients_per_round=2)
    assert lost.column("participants")[-1] == [0, 1, 2, 4]


def test_clusters_have_clocks_of_their_own(paced, failing):
    paced(1.0, 2.0, 0.5)
    failing({3: 0.5, 4: 0.25})
    world, fleet, config = make_world([]), fleet_of(), settings()
    method, _ = on_fleet(METHODS["fedavg"], config, fleet, world.federation)
    clusters = [world.federation.cluster(members) for members in ([0, 1, 2], [3, 4])]
    both = per_cluster(method, clusters)
    everyone = world.federation
    state, rows = played_rounds(both, config, everyone, world.engine)
    alone = [Played(fleet), Played(fleet, members=(3, 4), clients_per_round=2)]
    for number, one in enumerate(alone):
        own = cluster_state(state, number)
        assert all(torch.equal(own[name], tensor) for name, tensor in one.state.items())
    for row, first, second in zip(rows, alone[0].rows, alone[1].rows, strict=True):
        assert row["clock"] == max(first["clock"], second["clock"]) > 0 and second["dropped"] == 2
        assert row["dropped"] == first["dropped"] + second["dropped"]
        assert (row["bytes_down"], second["bytes_down"]) == (first["bytes_down"], 0)
    failing(dict.fromkeys(range(5), 0.5))
    assert len(played_rounds(both, config, everyone, world.engine)[1]) == 4  # nobody is ever through
    parts = [
        {"clock": 48.0, "dropped": 0, "late": 0, "partial": 0, "staleness": 0.0, "arrived": 3},
        {"clock": 50.0, "dropped": 2, "late": 1, "partial": 0, "staleness": 2.0, "arrived": 1},
    ]
    assert joint_row(parts) == {"clock": 50.0, "dropped": 2, "late": 1, "partial": 0, "staleness": 0.5}
    parts[1] |= {"staleness": None, "arrived": 0}
    assert joint_row(parts)["staleness"] == 0.0


def many_clients():
    federation = make_world([]).federation
    client = Party("one", torch.arange(1), torch.arange(0))
    return dataclasses.replace(federation, clients=(client,) * 4000)


def test_speeds_are_lognormal_and_of_the_seed():
    federation = many_clients()
    fleet = fleet_of(compute={"median": 0.1, "sigma": 0.7}, network={"down": 4.0, "up": 2.0, "sigma": 0.5})
    actual = devices.seconds_per_example(fleet, federation)
    normal = torch.randn(4000, generator=generator(3, "fleet", "compute"), dtype=torch.float64)
    assert torch.allclose(actual, 0.1 * (0.7 * normal).exp(), rtol=1e-12)
    assert float((actual / 0.1).log().std()) == pytest.approx(0.7, abs=0.03)
    sending = devices.sending_seconds(fleet, federation, 3, 1)
    assert float(sending.log().median()) == pytest.approx(math.log(32 * (3 / 4 + 1 / 2) / 1e6), abs=0.03)
    assert float(sending.log().std()) == pytest.approx(0.5, abs=0.03)
    assert abs(float(torch.corrcoef(torch.stack([actual.log(), sending.log()]))[0, 1])) < 0.05
    assert torch.equal(devices.sending_seconds(fleet_of(), federation, 3, 1), torch.zeros(4000, dtype=torch.float64))
    other = devices.seconds_per_example(fleet, dataclasses.replace(federation, seed=4))
    assert not torch.equal(actual, other)


def test_failures_and_availability_match_stated_shares():
    federation = many_clients()
    actual = [devices.failures(fleet_of(dropout=0.25), federation, round) for round in (0, 0, 1)]
    assert actual[0] == actual[1] != actual[2]
    shares = [share for share in actual[0] if share is not None]
    assert len(shares) / 4000 == pytest.approx(0.25, abs=0.03)
    assert sum(shares) / len(shares) == pytest.approx(0.5, abs=0.05)
    assert devices.failures(fleet_of(), federation, 0) == [None] * 4000
    fleet = fleet_of(availability={"share": 0.3, "period": 10.0})
    there = [torch.tensor(devices.available_clients(fleet, federation, at)) for at in (0.0, 1.0, 4.0, 10.0, 14.0)]
    assert all(float(now.double().mean()) == pytest.approx(0.3, abs=0.03) for now in there)
    # a day later as today, and a tenth of the day later a tenth more are gone
    assert torch.equal(there[0], there[3]) and torch.equal(there[2], there[4])
    assert float((there[0] & there[1]).double().mean()) == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("period", [0.1, 7.0, 3600.0])
def test_await_clients_returns_first_arrival_time(period):
    federation = make_world([]).federation
    fleet = fleet_of(availability={"share": 0.1, "period": period})
    for client in range(5):
        for at in (0.0, 2.3 * period):
            actual = devices.await_clients(fleet, federation, [client], at)
            assert devices.available_clients(fleet, federation, actual)[client] and actual >= at
            steps = (at + step * period / 50 for step in range(20_000))
            first = next(now for now in steps if devices.available_clients(fleet, federation, now)[client])
            assert first - period / 40 <= actual <= first + 1e-9


def test_fleet_draws_only_available_clients(monkeypatch):
    monkeypatch.setattr(
        devices, "available_clients", lambda fleet, federation, at: [at >= 50, True, at >= 50, False, True]
    )
    played = Played(fleet_of(), members=range(5), clients_per_round=3)
    assert played.rows[0]["participants"] == [1, 4] and played.rows[0]["clock"] == 48.0
    assert played.rows[1]["participants"] == [1, 4] and played.rows[1]["clock"] == 96.0
    assert all(3 not in row["participants"] and len(row["participants"]) == 3 for row in played.rows[2:])


def played_ditto(fleet, epochs=None, lr=None, **changes):
    own = {"lambda_": 0.7, "personal_epochs": epochs, "personal_lr": lr}
    return Played(fleet, "ditto", changes=own, **changes)


def test_ditto_fleet_rounds_equal_ditto_at_double_time(paced):
    """8, 12 and 16 examples, 2 epochs of two models: 32, 96 and 32 s."""
    paced(1.0, 2.0, 0.5)
    plain, waited = played_ditto(None), played_ditto(fleet_of())
    assert waited.column("clock") == [96.0, 192.0, 288.0, 384.0]
    assert waited.column("participants") == [[0, 1, 2, 0, 1, 2]] * 4 == plain.column("participants")
    assert waited.state.keys() - plain.state.keys() == {"fleet/clock"}
    assert all(torch.equal(waited.state[name], tensor) for name, tensor in plain.state.items())


def test_partial_work_is_of_both_models(paced):
    """48 s an epoch for client 1, 12 examples each for w and for v, which has 4 epochs: 24 + 48 s an epoch of w."""
    paced(1.0, 2.0, 0.5)
    late = played_ditto(fleet_of(deadline=100.0, late="partial"), epochs=4)
    assert late.column("partial") == [1] * 4 and late.column("clock") == [72.0, 144.0, 216.0, 288.0]
    requests, _ = late.seen[0]
    assert [one.recipe.epochs for one in requests] == [2, 1, 2, 4, 2, 4]
    lost = played_ditto(fleet_of(deadline=60.0), epochs=4)
    assert lost.column("participants") == [[0, 2, 0, 2]] * 4 and lost.column("late") == [1] * 4
    cut = devices.shortened_work(requests[:2], 1)  # of 2 epochs and of 1: at least one of each
    assert [one.recipe.epochs for one in cut] == [1, 1]


def test_ditto_fleet_pulls_own_models_towards_starting_version(paced):
    """Clients of 1, 2.5 and 10 s, a step with every update: clients 0, 0, 1 and 0 began with versions 0, 1, 0 and 2."""
    paced(1 / 32, 2.5 / 48, 10 / 64)
    own = played_ditto(buffered(), epochs=2, lr=0.2, rounds=6, **WHOLE)
    begun = [(0, 0), (0, 1), (1, 0), (0, 2)]
    assert own.column("participants")[:4] == [[client] * 2 for client, _ in begun]
    assert own.column("staleness")[:4] == [0.0, 0.0, 2.0, 1.0]
    start = own.federation.model.weights
    versions, models = [start], {}
    for index, (client, version) in enumerate(begun):
        (sent, kept), (arrived, _) = own.seen[index]
        x, y = examples(own.world, sent)
        trained = descend(versions[version], x, y, 0.1, 2)
        torch.testing.assert_close(arrived.weights, trained, rtol=1e-11, atol=1e-13)
        before = models.get(client, versions[version])
        models[client] = descend(before, x, y, 0.2, 2, anchor=versions[version], pull=0.7)
        tau = index - version
        versions.append(versions[-1] + (1 + tau) ** -0.5 * (trained - versions[version]))
        state = own.states[index]
        torch.testing.assert_close(state["weights"], versions[-1], rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(state[f"client/{client}/weights"], models[client], rtol=1e-11, atol=1e-13)
    assert (models[1] - trained).norm() > 1e-3
    assert not any(name.startswith("client/2/") for name in own.states[3])
