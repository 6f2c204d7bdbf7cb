"""Bytes and FLOPs of a round under every method, against what is multiplied out by hand."""

import dataclasses

import pytest
import torch

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated.flat import Field, FlatLayout
from knot_runner.engine.federated.recipe import Phase
from knot_runner.engine.flops import ExampleFlops
from knot_runner.methods.contract import METHODS, Method, RoundWork, Traffic
from knot_runner.methods.federated.costs import round_costs
from knot_runner.methods.federated.per_cluster import per_cluster
from knot_runner.methods.federation import with_server
from tests.feddf_runs import distill
from tests.unit.methods.federated.worlds import CLASSES, SIZES, World, make_world, rounds_of, settings

#: Of the model with a hidden layer of 5: 4 pixels, 3 classes; weights and biases, 8 bytes each (float64).
BODY, HEAD, SIZE = 4 * 5 + 5, 5 * 3 + 3, 8
F, H = 2 * (4 * 5 + 5 * 3), 2 * 5 * 3
FLOPS = ExampleFlops(F, H)
TRANSFER, RANDOM = torch.arange(40, 60), torch.arange(0, 7)


class Played:
    """Rounds of a method in a world with a server's examples; ``costs``: of each."""

    def __init__(self, hp: FederatedSettings, rounds: int = 1, method: Method | None = None, members=None, **training):
        self.world = make_world([5]).with_training(**training)
        self.federation = with_server(self.world.federation, torch.arange(4), TRANSFER, RANDOM)
        if members is not None:
            self.federation = self.federation.cluster(members)
        method, self.works = method or METHODS[hp.algorithm], []
        for one in rounds_of(World(self.federation, self.world.engine), hp, rounds, method):
            inferences, logits, distillation = one.asked or ([], [torch.empty(0, 0)], [])
            self.works.append(RoundWork(one.requests, inferences, distillation, logits[0].shape[1]))
        self.costs = [round_costs(method, hp, self.federation, work, FLOPS) for work in self.works]

    def drawn(self, round: int = 0) -> list[int]:
        return self.federation.drawn(round)


@pytest.mark.parametrize(
    ("algorithm", "numbers"),
    [
        ("fedavg", BODY + HEAD), ("fedprox", BODY + HEAD), ("scaffold", 2 * (BODY + HEAD)), ("fedper", BODY),
        ("fedrep", BODY),
    ],
)  # fmt: skip
def test_round_costs_count_bytes_each_method_needs(algorithm, numbers):
    played = Played(settings(algorithm), clients_per_round=3)
    (costs,) = played.costs
    assert costs["bytes_up"] == costs["bytes_down"] == 3 * numbers * SIZE
    assert costs["server_flops"] == 0


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


def test_round_costs_of_last_head_round_omit_uploads():
    hp = settings("fedper", final_head_epochs=2)
    played = Played(hp, clients_per_round=2)
    request = played.works[0].requests[0]
    heads = dataclasses.replace(request, recipe=dataclasses.replace(request.recipe, phases=(Phase(2, "head"),)))
    work = RoundWork([heads, heads, heads])
    costs = round_costs(METHODS["fedper"], hp, played.federation, work, FLOPS)
    assert (costs["bytes_down"], costs["bytes_up"]) == (3 * BODY * SIZE, 0)
    assert costs["client_flops"] == 3 * 2 * len(request.rows) * (F + H)


@pytest.mark.parametrize(("batchnorm", "sent"), [("averaged", 6), ("local", 0), ("frozen", 0)])
def test_round_costs_count_running_statistics_only_when_averaged(batchnorm, sent):
    played = Played(settings(), clients_per_round=2)
    (plain,) = played.federation.architectures
    statistics = (Field("bn.running_mean", (6,), 0),)
    layout = FlatLayout(plain.layout.parameters, statistics, plain.layout.head)
    federation = dataclasses.replace(played.federation, architectures=(dataclasses.replace(plain, layout=layout),))
    hp = settings(batchnorm=batchnorm)
    for algorithm, numbers in (("fedavg", BODY + HEAD), ("scaffold", 2 * (BODY + HEAD)), ("fedper", BODY)):
        costs = round_costs(METHODS[algorithm], hp, federation, played.works[0], None)
        assert costs["bytes_up"] == costs["bytes_down"] == 2 * (numbers + sent) * SIZE
        assert costs["client_flops"] is None is costs["server_flops"]


def test_feddf_costs_add_server_flops_to_fedavg():
    played = Played(settings(server_distillation=distill(epochs=3, after=1)), rounds=2)
    first, second = played.costs
    assert first["bytes_up"] == second["bytes_up"] == second["bytes_down"] == 3 * (BODY + HEAD) * SIZE
    assert first["server_flops"] == 0
    assert second["server_flops"] == len(TRANSFER) * (3 * F + 3 * 3 * F)  # three clients' answers; three epochs
    assert second["client_flops"] == 3 * F * 2 * sum(SIZES[client] for client in played.drawn(1))


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep"])
def test_round_costs_count_heads_sent_for_distillation(algorithm):
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
    (costs,), work = played.costs, played.works[0]
    rows = len(work.inferences[0].rows)
    assert 0 < rows <= 12 and len(work.inferences) == 3 * (1 + biases)
    assert costs["bytes_up"] == 3 * (rows + biases) * CLASSES * SIZE
    assert costs["bytes_down"] == 3 * told * rows * CLASSES * SIZE
    own = sum(SIZES[client] for client in played.drawn())
    answers = 3 * (rows + biases * len(RANDOM))
    assert costs["client_flops"] == F * (3 * 2 * own + answers + 3 * 3 * 12)
    assert costs["server_flops"] == 0


def test_fedmd_sends_nothing_without_distillation():
    costs = Played(settings("fedmd", server_distillation=distill(after=1))).costs[0]
    assert (costs["bytes_up"], costs["bytes_down"]) == (0, 0)


def test_feddistill_costs_count_own_and_known_labels():
    played = Played(settings("feddistill"), rounds=2)
    labels, sent = played.federation.train_labels, []
    for round, costs in enumerate(played.costs):
        own = {client: set(labels[played.federation.clients[client].train].tolist()) for client in played.drawn(round)}
        assert costs["bytes_up"] == sum(map(len, own.values())) * CLASSES * SIZE
        known = {
            client: [label for label in has if any(label in there for other, there in sent if other != client)]
            for client, has in own.items()
        }
        assert costs["bytes_down"] == sum(map(len, known.values())) * CLASSES * SIZE
        examples = sum(SIZES[client] for client in own)
        assert costs["client_flops"] == F * examples * (3 * 2 + 1)  # and an answer on each of its own examples
        sent += own.items()
    assert played.costs[0]["bytes_down"] == 0 < played.costs[1]["bytes_down"]


def test_feddistill_costs_exclude_labels_nobody_else_sent():
    played = Played(settings("feddistill"), rounds=2)
    request, labels = played.works[1].requests[0], played.federation.train_labels
    own = labels[request.rows]
    first = own == own[0]
    request = dataclasses.replace(request, inputs={"known": first})
    work = RoundWork([request], classes=CLASSES)
    costs = round_costs(METHODS["feddistill"], settings("feddistill"), played.federation, work, FLOPS)
    assert len(own.unique()) > 1 and costs["bytes_down"] == CLASSES * SIZE
    assert costs["bytes_up"] == len(own.unique()) * CLASSES * SIZE


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "feddf", "fedmd"])
def test_clusters_cost_what_each_costs_by_itself(algorithm):
    members = [[0, 3, 4], [1, 2]]
    spec = distill() if algorithm in ("feddf", "fedmd") else None
    hp = settings("fedavg" if algorithm == "feddf" else algorithm, server_distillation=spec)
    method = METHODS[hp.algorithm]
    everyone = Played(hp).federation
    together = Played(hp, method=per_cluster(method, [everyone.cluster(own) for own in members]))
    alone = [Played(hp, members=own).costs[0] for own in members]
    assert together.costs[0] == {key: sum(costs[key] for costs in alone) for key in alone[0]}
    assert alone[0]["bytes_up"] > 0 and (alone[0]["server_flops"] > 0) == (algorithm == "feddf")


def test_round_costs_ask_custom_method_for_traffic():
    signs = Traffic(
        "signs of the update", lambda hp, federation, work: (0, len(work.requests) * federation.layout.size)
    )
    method = dataclasses.replace(METHODS["fedavg"], traffic=signs)
    costs = Played(settings(), method=method).costs[0]
    assert (costs["bytes_down"], costs["bytes_up"]) == (0, 3 * (BODY + HEAD))
