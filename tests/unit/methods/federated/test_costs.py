"""Bytes and FLOPs of a round under every method, against what is multiplied out by hand."""

import dataclasses

import pytest
import torch

from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.engine.flops import ExampleFlops
from knot_runner.methods.around import round_flops
from knot_runner.methods.around.clusters import per_cluster
from knot_runner.methods.contract import METHODS, Method, RoundMethod
from knot_runner.methods.federation import with_server
from knot_runner.models.network import build_network
from tests.feddf_runs import distill
from tests.unit.methods.federated.worlds import (
    CLASSES,
    SIZES,
    World,
    holding_out,
    make_world,
    method_of,
    normed_world,
    rounds_of,
    settings,
)

#: Of the model with a hidden layer of 5: 4 pixels, 3 classes; weights and biases, 8 bytes each (float64).
BODY, HEAD, SIZE = 4 * 5 + 5, 5 * 3 + 3, 8
F, H = 2 * (4 * 5 + 5 * 3), 2 * 5 * 3
FLOPS = ExampleFlops(F, H)
TRANSFER, RANDOM = torch.arange(40, 60), torch.arange(0, 7)
#: Of FedGen: noise of 3 and a label's code to 7 units, normed (two weights, mean, variance, a count), to 5 features.
GENERATOR = (3 + CLASSES) * 7 + 7 + 4 * 7 + 1 + 7 * 5 + 5


class Played:
    """Rounds of a method in a world with a server's examples; ``costs``: of each."""

    def __init__(
        self, config: FederatedSettings, count: int = 1, method: Method | RoundMethod | None = None, members=None,
        world: World | None = None, **training,
    ):  # fmt: skip
        self.world = (world or make_world([5])).with_training(**training)
        self.federation = with_server(self.world.federation, torch.arange(4), TRANSFER, RANDOM)
        if members is not None:
            self.federation = self.federation.cluster(members)
        self.rounds = rounds_of(World(self.federation, self.world.engine), config, count, method)
        self.costs = [self.of(one) for one in self.rounds]

    def of(self, one) -> dict:
        """Bytes of the fold and of the exchange together, and FLOPs."""
        sent = {key: one.row[key] + one.said.get(key, 0) for key in ("bytes_down", "bytes_up")}
        return sent | round_flops(FLOPS, one.requests, one.asked)

    def drawn(self, round: int = 0) -> list[int]:
        return self.federation.drawn(round)


@pytest.mark.parametrize(
    ("algorithm", "numbers"),
    [
        ("fedavg", BODY + HEAD), ("fedprox", BODY + HEAD), ("scaffold", 2 * (BODY + HEAD)), ("fedper", BODY),
        ("fedrep", BODY), ("ditto", BODY + HEAD), ("apfl", BODY + HEAD), ("fedala", BODY + HEAD),
        ("fedsoup", BODY + HEAD), ("local", 0),
    ],
)  # fmt: skip
def test_rounds_count_bytes_each_method_needs(algorithm, numbers):
    world = holding_out(make_world([5])) if algorithm == "fedsoup" else None
    for costs in Played(settings(algorithm), count=2, world=world, clients_per_round=3).costs:
        assert costs["bytes_up"] == costs["bytes_down"] == 3 * numbers * SIZE
        assert costs["server_flops"] == 0


def test_fedavg_with_own_layers_sends_shared_ones():
    (costs,) = Played(settings(shared=["head.*"]), clients_per_round=3).costs
    assert costs["bytes_up"] == costs["bytes_down"] == 3 * HEAD * SIZE


def test_fedgen_sends_generator_once_trained_and_label_shares():
    """Down: the model, from the second round on the generator and the counts of labels; up: the model, and shares."""
    first, second = Played(settings("fedgen"), count=2).costs
    assert first["bytes_up"] == second["bytes_up"] == 3 * (BODY + HEAD + CLASSES) * SIZE
    assert first["bytes_down"] == 3 * (BODY + HEAD) * SIZE
    assert second["bytes_down"] == 3 * (BODY + HEAD + GENERATOR + CLASSES) * SIZE


def test_client_flops_take_three_forward_passes_per_example():
    played = Played(settings(), local_epochs=2, batch_size=5)
    examples = sum(SIZES[client] for client in played.drawn())
    assert played.costs[0]["client_flops"] == 3 * F * examples * 2
    dropped = sum(SIZES[client] // 5 * 5 for client in played.drawn())
    assert dropped < examples
    assert (
        Played(settings(), local_epochs=2, batch_size=5, drop_last=True).costs[0]["client_flops"] == 3 * F * dropped * 2
    )
    assert Played(settings("apfl"), local_epochs=2, batch_size=5).costs[0]["client_flops"] == 2 * 3 * F * examples * 2


def test_client_flops_omit_gradients_of_frozen_parts():
    """FedRep with one epoch of the head in three: F + H there; F + 2 F - H in each of the body."""
    played = Played(settings("fedrep", head_epochs=1), local_epochs=3)
    examples = sum(SIZES[client] for client in played.drawn())
    assert played.costs[0]["client_flops"] == examples * ((F + H) + 2 * (3 * F - H))
    assert Played(settings("fedper"), local_epochs=3).costs[0]["client_flops"] == examples * 3 * 3 * F


@pytest.mark.parametrize(("first_head", "sent"), [("own", BODY), ("averaged", BODY + HEAD)])
def test_last_round_of_heads_uploads_nothing(first_head, sent):
    """All five clients take part in it."""
    played = Played(settings("fedper", final_head_epochs=2, first_head=first_head), 2, clients_per_round=2, rounds=1)
    costs, last = played.costs
    assert (costs["bytes_down"], costs["bytes_up"]) == (2 * sent * SIZE, 2 * sent * SIZE)
    assert (last["bytes_down"], last["bytes_up"]) == (5 * sent * SIZE, 0)
    assert last["client_flops"] == 2 * sum(SIZES) * (F + H)


@pytest.mark.parametrize(("batchnorm", "is_sent"), [("averaged", True), ("local", True), ("frozen", False)])
def test_rounds_count_running_statistics_unless_frozen(batchnorm, is_sent):
    world = normed_world(make_world([]))
    network = world.federation.architectures[0].network
    model = build_network(network)
    statistics = sum(own.numel() for own in model.buffers() if own.is_floating_point()) if is_sent else 0
    every = sum(own.numel() for own in model.parameters())
    body = sum(own.numel() for name, own in model.named_parameters() if not name.startswith(network.head))
    assert 0 < body < every and bool(statistics) == is_sent
    for algorithm, numbers in (("fedavg", every), ("scaffold", 2 * every), ("fedper", body)):
        config = settings(algorithm, batchnorm=batchnorm)
        played = Played(config, world=world, clients_per_round=2, local_epochs=1, lr=0.01)
        assert played.costs[0]["bytes_up"] == played.costs[0]["bytes_down"] == 2 * (numbers + statistics) * SIZE
        flops = round_flops(None, played.rounds[0].requests, played.rounds[0].asked)
        assert flops == {"client_flops": None, "server_flops": None}


def test_feddf_costs_add_server_flops_to_fedavg():
    played = Played(settings(server_distillation=distill(epochs=3, after=1)), count=2)
    first, second = played.costs
    assert first["bytes_up"] == second["bytes_up"] == second["bytes_down"] == 3 * (BODY + HEAD) * SIZE
    assert first["server_flops"] == 0
    assert second["server_flops"] == len(TRANSFER) * (3 * F + 3 * 3 * F)  # three clients' answers; three epochs
    assert second["client_flops"] == 3 * F * 2 * sum(SIZES[client] for client in played.drawn(1))


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep"])
def test_rounds_count_heads_sent_for_distillation(algorithm):
    spec = {"head_epochs": 1} if algorithm == "fedrep" else {}
    costs = Played(
        settings(algorithm, server_distillation=distill(ensemble="logits"), **spec), clients_per_round=2
    ).costs[0]
    assert (costs["bytes_down"], costs["bytes_up"]) == (2 * BODY * SIZE, 2 * (BODY + HEAD) * SIZE)
    assert costs["server_flops"] > 0


def test_server_flops_include_biases_on_random_examples():
    played = Played(settings(server_distillation=distill(weighting="E", epochs=1)))
    assert played.costs[0]["server_flops"] == F * (3 * (len(TRANSFER) + len(RANDOM)) + 3 * len(TRANSFER))


@pytest.mark.parametrize(("ensemble", "told"), [("logits", 1), ("each", 2)])
@pytest.mark.parametrize(("weighting", "biases"), [("A", 0), ("E", 1)])
def test_fedmd_costs_count_logits_up_and_down(ensemble, told, weighting, biases):
    spec = distill(ensemble=ensemble, weighting=weighting, steps=3, batch_size=4)
    played = Played(settings("fedmd", server_distillation=spec))
    (costs,), inferences = played.costs, played.rounds[0].asked.inferences
    rows = len(inferences[0].rows)
    assert 0 < rows <= 12 and len(inferences) == 3 * (1 + biases)
    assert costs["bytes_up"] == 3 * (rows + biases) * CLASSES * SIZE
    assert costs["bytes_down"] == 3 * told * rows * CLASSES * SIZE
    own = sum(SIZES[client] for client in played.drawn())
    answers = 3 * (rows + biases * len(RANDOM))
    assert costs["client_flops"] == F * (3 * 2 * own + answers + 3 * 3 * 12)
    assert costs["server_flops"] == 0


def test_fedmd_sends_nothing_without_distillation():
    costs = Played(settings("fedmd", server_distillation=distill(after=1))).costs[0]
    assert (costs["bytes_up"], costs["bytes_down"]) == (0, 0)


def test_feddistill_costs_count_means_and_flags():
    """Up: a mean and a flag per label; down: the same with flags of one byte, once another client sent some."""
    played = Played(settings("feddistill"), count=6, rounds=6, clients_per_round=1)
    senders: set[int] = set()
    for round, costs in enumerate(played.costs):
        (client,) = played.drawn(round)
        assert costs["bytes_up"] == (CLASSES * CLASSES + CLASSES) * SIZE
        known = bool(senders - {client})
        assert costs["bytes_down"] == known * (CLASSES * CLASSES * SIZE + CLASSES)
        assert costs["client_flops"] == F * SIZES[client] * (3 * 2 + 1)  # and an answer on each of its own examples
        senders.add(client)
    assert [played.drawn(round) for round in range(4)] == [[0], [0], [0], [4]]  # the first learns nothing of itself
    assert [costs["bytes_down"] > 0 for costs in played.costs] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "feddf", "fedmd"])
def test_clusters_cost_what_each_costs_by_itself(algorithm):
    members = [[0, 3, 4], [1, 2]]
    spec = distill() if algorithm in ("feddf", "fedmd") else None
    config = settings("fedavg" if algorithm == "feddf" else algorithm, server_distillation=spec)
    everyone = Played(config).federation
    together = Played(config, method=per_cluster(method_of(config), [everyone.cluster(own) for own in members]))
    alone = [Played(config, members=own).costs[0] for own in members]
    assert together.costs[0] == {key: sum(costs[key] for costs in alone) for key in alone[0]}
    assert alone[0]["bytes_up"] > 0 and (alone[0]["server_flops"] > 0) == (algorithm == "feddf")


def test_rounds_count_what_custom_method_sends():
    """Signs of the update, a byte each, and nothing from the server."""

    def message(config, state, federation, work):
        return {"signs": (work.trained[0].weights - state["weights"]).sign().to(torch.int8)}

    def fold(config, state, federation, round, mean, share):
        return {**state, "weights": state["weights"] + 0.01 * mean["signs"]}, {}

    own = {"message": message, "fold": fold, "received": lambda *_: {}}
    played = Played(settings(), method=dataclasses.replace(METHODS["fedavg"], **own))
    assert (played.costs[0]["bytes_down"], played.costs[0]["bytes_up"]) == (0, 3 * (BODY + HEAD))
    assert not torch.equal(played.rounds[0].after["weights"], played.rounds[0].before["weights"])


def test_rounds_count_what_is_sent_after_the_wire():
    method = dataclasses.replace(
        METHODS["fedavg"],
        send=lambda sent, phase: dataclasses.replace(sent, parts={"update": sent.parts["update"].float()}),
    )
    (costs,) = Played(settings(), method=method).costs
    assert (costs["bytes_down"], costs["bytes_up"]) == (3 * (BODY + HEAD) * 8, 3 * (BODY + HEAD) * 4)
