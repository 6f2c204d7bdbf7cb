"""Bytes and FLOPs of a round under every method, against what is multiplied out by hand."""

import dataclasses

import pytest
import torch

from knot_runner.engine.flops import ExampleFlops
from knot_runner.methods.around import round_flops
from knot_runner.methods.around.clusters import per_cluster
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federation import ServerExamples
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
        self, config, count = 1, method = None, members=None,
        world = None, **training,
    ):  # fmt: skip
        self.world = (world or make_world([5])).with_training(**training)
        self.federation = dataclasses.replace(
            self.world.federation, server=ServerExamples(torch.arange(4), TRANSFER, RANDOM)
        )
        if members is not None:
            self.federation = self.federation.cluster(members)
        self.rounds = rounds_of(World(self.federation, self.world.engine), config, count, method)
        self.costs = [self.of(one) for one in self.rounds]

    def of(self, one):
        """Bytes of the fold and of the exchange together, and FLOPs."""
        sent = {key: one.row[key] for key in ("bytes_down", "bytes_up")}
        return sent | round_flops(FLOPS, one.requests, one.asked)

    def drawn(self, round=0):
        return self.federation.drawn(round)


LOGITS = distill(ensemble="logits")
#: Settings, changes of the training, and of each round: its clients, the numbers that each receives and sends, the
#: FLOPs of each example of theirs (two epochs, unless said), and those of the server. None: is not compared.
CASES = {
    "fedavg": (settings(), {}, [(3, BODY + HEAD, BODY + HEAD, 2 * 3 * F, 0)]),
    "fedprox": (settings("fedprox"), {}, [(3, BODY + HEAD, BODY + HEAD, 2 * 3 * F, 0)]),
    "scaffold": (settings("scaffold"), {}, [(3, 2 * (BODY + HEAD), 2 * (BODY + HEAD), 2 * 3 * F, 0)] * 2),
    "fedper": (settings("fedper"), {"local_epochs": 3}, [(3, BODY, BODY, 3 * 3 * F, 0)] * 2),
    # one epoch of the head in three: F + H there; F + 2 F - H in each of the body
    "fedrep": (settings("fedrep"), {"local_epochs": 3}, [(3, BODY, BODY, (F + H) + 2 * (3 * F - H), 0)] * 2),
    "ditto": (settings("ditto"), {}, [(3, BODY + HEAD, BODY + HEAD, 2 * 2 * 3 * F, 0)] * 2),
    "apfl": (settings("apfl"), {"batch_size": 5}, [(3, BODY + HEAD, BODY + HEAD, 2 * 2 * 3 * F, 0)] * 2),
    "fedala": (settings("fedala"), {}, [(3, BODY + HEAD, BODY + HEAD, None, 0)] * 2),
    "fedsoup": (settings("fedsoup"), {}, [(3, BODY + HEAD, BODY + HEAD, None, 0)] * 2),
    "local": (settings("local"), {}, [(3, 0, 0, 2 * 3 * F, 0)] * 2),
    "shared head": (settings(shared=["head.*"]), {}, [(3, HEAD, HEAD, 2 * 3 * F, 0)]),
    # from the second round on the generator and the counts of labels are sent; clients send shares of labels
    "fedgen": (settings("fedgen"), {}, [
        (3, BODY + HEAD, BODY + HEAD + CLASSES, 2 * 3 * F, 0),
        (3, BODY + HEAD + GENERATOR + CLASSES, BODY + HEAD + CLASSES, 2 * 3 * F, 0),
    ]),
    "last heads": (settings("fedper", final_head_epochs=2), {"clients_per_round": 2, "rounds": 1}, [
        (2, BODY, BODY, 2 * 3 * F, 0), (5, BODY, 0, 2 * (F + H), 0),
    ]),
    "last averaged heads": (
        settings("fedper", final_head_epochs=2, first_head="averaged"), {"clients_per_round": 2, "rounds": 1},
        [(2, BODY + HEAD, BODY + HEAD, 2 * 3 * F, 0), (5, BODY + HEAD, 0, 2 * (F + H), 0)],
    ),
    # three clients' answers, and three epochs, from the second round on
    "feddf": (settings(server_distillation=distill(epochs=3, after=1)), {}, [
        (3, BODY + HEAD, BODY + HEAD, 2 * 3 * F, 0),
        (3, BODY + HEAD, BODY + HEAD, 2 * 3 * F, len(TRANSFER) * (3 * F + 3 * 3 * F)),
    ]),
    "feddf with biases": (settings(server_distillation=distill(weighting="E", epochs=1)), {}, [
        (3, BODY + HEAD, BODY + HEAD, 2 * 3 * F, F * (3 * (len(TRANSFER) + len(RANDOM)) + 3 * len(TRANSFER))),
    ]),
    "fedper's heads": (settings("fedper", server_distillation=LOGITS), {}, [(3, BODY, BODY + HEAD, None, None)]),
    "fedrep's heads": (settings("fedrep", server_distillation=LOGITS), {}, [(3, BODY, BODY + HEAD, None, None)]),
    "fedmd without distillation": (
        settings("fedmd", server_distillation=distill(after=1)), {}, [(3, 0, 0, 2 * 3 * F, 0)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rounds_cost_bytes_and_flops(name):
    config, training, expected = CASES[name]
    world = holding_out(make_world([5])) if name == "fedsoup" else None
    played = Played(config, len(expected), world=world, **training)
    for one, costs, (count, down, up, client, server) in zip(played.rounds, played.costs, expected, strict=True):
        clients = {request.client for request in one.requests}
        assert len(clients) == count
        assert (costs["bytes_down"], costs["bytes_up"]) == (count * down * SIZE, count * up * SIZE)
        if client is not None:
            assert costs["client_flops"] == client * sum(SIZES[number] for number in clients)
        assert costs["server_flops"] == server or (server is None and costs["server_flops"] > 0)


def test_client_flops_omit_dropped_batches():
    played = Played(settings(), batch_size=5, drop_last=True)
    examples = sum(SIZES[client] // 5 * 5 for client in played.drawn())
    assert played.costs[0]["client_flops"] == 2 * 3 * F * examples


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


@pytest.mark.parametrize(("ensemble", "told"), [("logits", 1), ("each", 2)])
@pytest.mark.parametrize(("weighting", "biases"), [("A", 0), ("E", 1)])
def test_fedmd_costs_count_logits_up_and_down(ensemble, told, weighting, biases):
    spec = distill(ensemble=ensemble, weighting=weighting, steps=9, batch_size=4)
    played = Played(settings("fedmd", server_distillation=spec))
    (costs,), inferences = played.costs, played.rounds[0].asked
    rows = len(inferences[0].rows)
    assert 0 < rows < 36 and len(inferences) == 3 * (1 + biases) + 3  # and three trainings
    assert costs["bytes_up"] == 3 * (rows + biases) * CLASSES * SIZE
    assert costs["bytes_down"] == 3 * told * rows * CLASSES * SIZE
    own = sum(SIZES[client] for client in played.drawn())
    answers = 3 * (rows + biases * len(RANDOM))
    assert costs["client_flops"] == F * (3 * 2 * own + answers + 3 * 3 * 36)
    assert costs["server_flops"] == 0


def test_feddistill_costs_count_means_and_flags():
    """Up: a mean and a flag per label; down: the same with flags of one byte, once another client sent some."""
    played = Played(settings("feddistill"), count=6, rounds=6, clients_per_round=1)
    senders = set()
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
    """Signs of 8 bytes, which are packed into one byte each on the way to the server; nothing is received."""

    def message(config, state, federation, work):
        return {"signs": (work.trained[0].weights - state["weights"]).sign()}

    def send(sent, phase):
        return dataclasses.replace(sent, parts={"signs": sent.parts["signs"].to(torch.int8)})

    def fold(config, state, federation, round, mean, share):
        return {**state, "weights": state["weights"] + 0.01 * mean["signs"]}, {}

    own = {"message": message, "send": send, "fold": fold, "received": lambda *_: {}}
    played = Played(settings(), method=dataclasses.replace(METHODS["fedavg"], **own))
    assert (played.costs[0]["bytes_down"], played.costs[0]["bytes_up"]) == (0, 3 * (BODY + HEAD))
    assert not torch.equal(played.rounds[0].after["weights"], played.rounds[0].before["weights"])
