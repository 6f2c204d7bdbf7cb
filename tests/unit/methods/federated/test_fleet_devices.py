"""The devices of a simulated fleet: speeds, failures, who is there when, all by the seed."""

import dataclasses
import math

import pytest
import torch

from knot_runner.engine.seeds import generator
from knot_runner.methods.around.fleet import devices
from knot_runner.methods.party import Party
from tests.unit.methods.federated.fleets import Played, fleet_of
from tests.unit.methods.federated.worlds import make_world


def many_clients():
    """4000 clients of one example each."""
    federation = make_world([]).federation
    client = Party.of_rows("one", federation.clients[0].network, train=torch.arange(1))
    return dataclasses.replace(federation, clients=(client,) * 4000)


def test_speeds_are_lognormal_and_of_the_seed():
    federation = many_clients()
    fleet = fleet_of(compute={"median": 0.1, "sigma": 0.7}, network={"down": 4.0, "up": 2.0, "sigma": 0.5})
    found = devices.seconds_per_example(fleet, federation)
    normal = torch.randn(4000, generator=generator(3, "fleet", "compute"), dtype=torch.float64)
    assert torch.allclose(found, 0.1 * (0.7 * normal).exp(), rtol=1e-12)
    assert float((found / 0.1).log().std()) == pytest.approx(0.7, abs=0.03)
    sending = devices.sending_seconds(fleet, federation, 3, 1)
    assert float(sending.log().median()) == pytest.approx(math.log(32 * (3 / 4 + 1 / 2) / 1e6), abs=0.03)
    assert float(sending.log().std()) == pytest.approx(0.5, abs=0.03)
    assert abs(float(torch.corrcoef(torch.stack([found.log(), sending.log()]))[0, 1])) < 0.05
    assert torch.equal(devices.sending_seconds(fleet_of(), federation, 3, 1), torch.zeros(4000, dtype=torch.float64))
    other = devices.seconds_per_example(fleet, dataclasses.replace(federation, seed=4))
    assert not torch.equal(found, other)


def test_failures_repeat_per_round_at_dropout_rate():
    federation = many_clients()
    found = [devices.failures(fleet_of(dropout=0.25), federation, round) for round in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    shares = [share for share in found[0] if share is not None]
    assert len(shares) / 4000 == pytest.approx(0.25, abs=0.03) and sum(shares) / len(shares) == pytest.approx(
        0.5, abs=0.05
    )
    assert devices.failures(fleet_of(), federation, 0) == [None] * 4000


def test_available_clients_match_stated_share_at_any_time():
    federation = many_clients()
    fleet = fleet_of(availability={"share": 0.3, "period": 10.0})
    there = [torch.tensor(devices.available_clients(fleet, federation, at)) for at in (0.0, 1.0, 4.0, 10.0, 14.0)]
    assert all(float(now.double().mean()) == pytest.approx(0.3, abs=0.03) for now in there)
    # a day later as today, and a tenth of the day later a tenth more are gone
    assert torch.equal(there[0], there[3]) and torch.equal(there[2], there[4])
    assert float((there[0] & there[1]).double().mean()) == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("period", [0.1, 7.0, 3600.0])
def test_await_clients_returns_first_arrival_time(period):
    """Against steps of a fiftieth of the period."""
    federation = make_world([]).federation
    fleet = fleet_of(availability={"share": 0.1, "period": period})
    for client in range(5):
        for at in (0.0, 2.3 * period):
            found = devices.await_clients(fleet, federation, [client], at)
            assert devices.available_clients(fleet, federation, found)[client] and found >= at
            steps = (at + step * period / 50 for step in range(20_000))
            first = next(now for now in steps if devices.available_clients(fleet, federation, now)[client])
            assert first - period / 40 <= found <= first + 1e-9


def test_fleet_draws_only_available_clients(monkeypatch):
    monkeypatch.setattr(
        devices, "available_clients", lambda fleet, federation, at: [at >= 50, True, at >= 50, False, True]
    )
    played = Played(fleet_of(), members=range(5), clients_per_round=3)
    assert played.rows[0]["participants"] == [1, 4] and played.rows[0]["clock"] == 48.0
    assert played.rows[1]["participants"] == [1, 4] and played.rows[1]["clock"] == 96.0
    assert all(3 not in row["participants"] and len(row["participants"]) == 3 for row in played.rows[2:])
