"""The server: Theorem 3 exactly, on translates; and it needs no more than messages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.transport.federated import Client, Measure, Message, federated_distance, server, wasserstein
from tests.oracles.transport.federated.samples import SEEDS, draws, fedwad, gaussian, toy


def translates(seed: int) -> tuple[Measure, Measure, Measure, np.ndarray]:
    """mu, nu and xi^0 that differ by their means alone (as Gaussians of one covariance), and nu's mean from mu's."""
    shape, (v, u) = gaussian(12, 3, seed).points, gaussian(2, 3, seed, "offsets").points * 4
    return Measure(shape), Measure(shape + v), Measure(shape + u), v


@settings(deadline=None, max_examples=30, derandomize=True)
@given(SEEDS, st.floats(0.1, 0.9), st.sampled_from(["exact", "approximate"]))
def test_theorem_3_one_iteration_suffices_for_translates(seed: int, t: float, mode: str) -> None:
    mu, nu, xi, v = translates(seed)
    options = fedwad(t=t, mode=mode)
    answers = [Client(side, options, name, draws()).interpolated(xi, 1, False) for side, name in ((mu, "a"), (nu, "b"))]
    _, between = server.next_measure(*answers, t, mode)
    assert server.server_only(between, t) == pytest.approx(np.linalg.norm(v))


def test_theorem_3_halves_distance_to_the_midpoint() -> None:
    mu, nu, xi, v = translates(3)
    clients = [Client(side, fedwad(), name, draws()) for side, name in ((mu, "mu"), (nu, "nu"))]
    midpoint, ways = Measure(mu.points + v / 2), []
    for k in range(6):
        ways.append(wasserstein(xi, midpoint))
        xi, _ = server.next_measure(*(client.interpolated(xi, k, False) for client in clients), 0.5, "exact")
        assert server.total(*(client.distance(xi) for client in clients)) <= np.linalg.norm(v) + ways[-1] + 1e-9
    assert np.allclose(ways, ways[0] / 2 ** np.arange(6))


class Recorded:
    """A client whose messages are noted."""

    def __init__(self, client: Client, tape: list[Message]) -> None:
        self.client, self.tape = client, tape

    def interpolated(self, *arguments: object) -> Message:
        self.tape.append(self.client.interpolated(*arguments))
        return self.tape[-1]

    def distance(self, xi: Measure) -> Message:
        self.tape.append(self.client.distance(xi))
        return self.tape[-1]


class Replayed:
    """A party that has messages on tape and no samples."""

    def __init__(self, tape: list[Message]) -> None:
        self.interpolated = self.distance = lambda *_: tape.pop(0)


@pytest.mark.parametrize("mode", ["exact", "approximate"])
@pytest.mark.parametrize("trace", [False, True])
def test_messages_alone_give_the_value(mode: str, trace: bool) -> None:
    options = fedwad(mode=mode, t="random")
    sides = {name: Client(side, options, name, draws()) for name, side in zip("ab", toy(20, 15, 0), strict=True)}
    tapes: dict[str, list[Message]] = {name: [] for name in sides}
    parties = (Recorded(client, tapes[name]) for name, client in sides.items())
    recorded = federated_distance(*parties, options, 2, draws(), trace)
    sent = [message for tape in tapes.values() for message in tape]
    assert sum(message.distance is not None for message in sent) == (10 if trace else 2)
    replayed = federated_distance(*map(Replayed, tapes.values()), options, 2, draws(), trace)
    assert replayed.value == recorded.value and replayed.sums == recorded.sums
    assert not any(tapes.values())


@pytest.mark.parametrize("mode", ["exact", "approximate"])
def test_messages_hold_no_sample(mode: str) -> None:
    mu, _ = toy(20, 15, 0)
    xi = Measure(draws()("start").standard_normal((6, 2)))
    sent = Client(mu, fedwad(mode=mode), "mu", draws()).interpolated(xi, 1, True).measure
    assert not np.shares_memory(sent.points, mu.points)
    assert not (sent.points[:, None] == mu.points).all(-1).any()
    assert sent.size == (6 if mode == "approximate" else sent.size) <= 6 + 20 - 1
