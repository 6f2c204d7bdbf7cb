"""Private FedDF, FedMD and FD against sums typed out by hand: logits are clipped as one vector and covered by noise."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from knot_runner.engine.federated.cohort import Inference
from knot_runner.methods.around.privacy import reduce
from knot_runner.methods.around.server_distillation import ENSEMBLE
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federated.feddistill import others_means
from knot_runner.methods.federation import ServerExamples
from knot_runner.methods.messages import Exchange, empty_answer, in_rounds
from tests.feddf_runs import TRANSFER, distill
from tests.unit.methods.federated import worlds
from tests.unit.methods.federated.plain import linear_logits
from tests.unit.methods.federated.worlds import CLASSES, Unaccounted, World, make_world, rounds_of, settings

BOUND, EXPECTED = 0.4, 4
FD = settings("feddistill", aggregation="uniform")


def mechanism(**changes):
    return Unaccounted(**{"clip_norm": 1.0, "noise_multiplier": 0.0, "sampling": "poisson", "participants": EXPECTED,
                          "clients": 5, "clip_logits": BOUND, **changes})  # fmt: skip


def test_empty_answer_has_the_shapes_of_features():
    def ask(config, federation, round, client, model):
        return [Inference(model, federation.clients[client].train, "train", output="features")]

    def answer(config, federation, client, outputs):
        return {"mean": outputs[0].mean(0)}

    world, exchange = make_world([5]), Exchange(ask, answer, plan=None, fold=None)
    (inference,) = ask(FD, world.federation, 0, 2, world.federation.start_of(2))
    told = answer(FD, world.federation, 2, world.engine.logits([inference]))
    assert empty_answer(exchange, FD, world.federation, 0)["mean"].shape == told["mean"].shape == (5,)


def federated(chosen=(0, 1, 2, 3, 4), transfer=TRANSFER):
    """A linear world in whose rounds ``chosen`` take part, and its engine."""
    world = make_world([]).with_training(clients_per_round=EXPECTED)
    federation = dataclasses.replace(
        world.federation, server=ServerExamples(torch.arange(0, 40), transfer, TRANSFER[:0])
    )
    return dataclasses.replace(federation, sampling="poisson", chosen=chosen), world.engine


def one_round(algorithm, federation, engine, spec=None, **changes):
    """(State after fold and exchange, its row, trained requests, those of the exchange); no ``spec``: not private."""
    config = settings(algorithm, aggregation="uniform", **changes)
    method = None if spec is None else worlds.private(config, federation, spec)
    (one,) = rounds_of(World(federation, engine), config, method=method)
    return one.folded, one.after, one.row, one.trained, one.distillation


def label_means(spec, federation, round, requests, trained, logits):
    """The state after an exchange of FD, in which trained clients give their examples these ``logits``."""
    fd = in_rounds(worlds.private(FD, federation, spec), FD)
    engine = SimpleNamespace(logits=lambda inferences: logits)
    return fd.fold(FD, {}, federation, round, requests, trained, engine)[0]


def answers(engine, weights, rows):
    """Logits of the linear model, typed out, less the mean of each example."""
    logits = linear_logits(weights, engine.data.pixels[rows].flatten(1))
    return logits - logits.mean(1, keepdim=True)


def clipped_mean(engine, trained, rows, bound=BOUND):
    """(Sum of clipped messages over the expected number of clients, the norms before clipping)."""
    total, norms = torch.zeros(len(rows), CLASSES, dtype=torch.float64), []
    for result in trained:
        message = answers(engine, result.weights, rows)
        norms.append(math.sqrt(float((message**2).sum())))
        total += min(1.0, bound * math.sqrt(len(rows)) / norms[-1]) * message
    return total / EXPECTED, norms


@pytest.mark.parametrize(("algorithm", "learners"), [("fedavg", 1), ("fedmd", 5)])
def test_private_distillation_teaches_clipped_mean_alone(algorithm, learners):
    federation, engine = federated()
    spec = distill(ensemble="logits")
    _, after, row, trained, seen = one_round(algorithm, federation, engine, mechanism(), server_distillation=spec)
    wanted, norms = clipped_mean(engine, trained, TRANSFER)
    limit = BOUND * math.sqrt(len(TRANSFER))
    assert min(norms) < limit < max(norms)  # some were clipped, some were not
    assert len({request.client for request in seen}) == len(seen) == learners
    for request in seen:
        assert set(request.inputs) == {ENSEMBLE} and request.objective.settings["shares"] == [1.0]
        torch.testing.assert_close(request.inputs[ENSEMBLE], wanted, rtol=1e-12, atol=1e-14)
    clipped = "logits_clipped" if algorithm == "fedavg" else "clipped"
    assert row[clipped] == sum(norm > limit for norm in norms) / 5 and row["distill_steps"] > 0
    if algorithm == "fedmd":
        assert row["update_norms"] == pytest.approx(norms, rel=1e-12)
        assert not torch.equal(after["client/0/weights"], trained[0].weights)


def test_private_feddf_without_clipping_and_noise_equals_feddf():
    """Where the clients expected are those who came, and examples are drawn with repetitions."""
    actual = []
    for privacy in (None, mechanism(clip_norm=None, clip_logits=0.01)):
        federation, engine = federated(chosen=(0, 1, 2, 4))
        spec = distill(ensemble="logits", steps=9, optimizer="sgd", lr=0.5)
        _, after, row, _, _ = one_round("fedavg", federation, engine, privacy, server_distillation=spec)
        assert ("logits_clipped" in row) == (privacy is not None)
        actual.append(after["weights"])
    torch.testing.assert_close(*actual, rtol=0, atol=1e-12)


def test_private_distillation_of_a_round_without_participants():
    """From noise; if it were not, that nobody came could be seen."""
    spec, (federation, engine) = mechanism(noise_multiplier=1.0), federated(chosen=())
    folded, after, row, trained, (request,) = one_round(
        "fedavg", federation, engine, spec, server_distillation=distill(ensemble="logits")
    )
    assert trained == [] and "logits_clipped" not in row and row["distill_steps"] > 0
    assert not torch.equal(after["weights"], folded["weights"])
    empty = {"logits": torch.zeros(len(TRANSFER), CLASSES, dtype=torch.float64)}
    noise, _ = reduce(spec, 3, True, 0, 2, [], lambda: empty)
    assert torch.equal(request.inputs[ENSEMBLE], noise["logits"])
    distilled = distill(ensemble="logits")  # of FedMD nobody learns
    later = distill(ensemble="logits", after=1)
    assert one_round("fedavg", federation, engine, spec, server_distillation=later)[-1] == []
    _, after, row, _, asked = one_round("fedmd", federation, engine, spec, server_distillation=distilled)
    assert after == {} and asked == [] and row == {"update_norms": [], "bytes_up": 0, "bytes_down": 0}


def label_messages(federation, engine, trained, bound):
    """Each client's message [C, C + 1], typed out: mean logits of its labels, and B for each that it has."""
    actual = []
    for result in trained:
        rows = federation.clients[result.client].train
        message = torch.zeros(CLASSES, CLASSES + 1, dtype=torch.float64)
        for label in range(CLASSES):
            own = rows[engine.data.labels[rows] == label]
            if len(own):
                message[label, :CLASSES] = answers(engine, result.weights, own).mean(0)
                message[label, CLASSES] = bound
        actual.append(message)
    return actual


@pytest.mark.parametrize("bound", [0.05, BOUND])
def test_fd_clients_learn_clipped_label_means(bound):
    federation, engine = federated()
    _, after, row, trained, _ = one_round("feddistill", federation, engine, mechanism(clip_logits=bound))
    total, norms, limit = torch.zeros(CLASSES, CLASSES + 1, dtype=torch.float64), [], bound * math.sqrt(2 * CLASSES)
    for message in label_messages(federation, engine, trained, bound):
        norms.append(math.sqrt(float((message**2).sum())))
        total += min(1.0, limit / norms[-1]) * message
    known = total[:, CLASSES] / bound
    assert (max(norms) > limit) == (bound == 0.05)
    assert row["update_norms"] == pytest.approx(norms, rel=1e-12)
    assert row["clipped"] == sum(norm > limit for norm in norms) / 5
    means, knows = others_means(after, federation, 0)
    assert bool(knows.all()) and {name for name in after if name.startswith("label")} == {
        "label_logits/all", "label_counts/all"
    }  # fmt: skip
    torch.testing.assert_close(means, total[:, :CLASSES] / known.clamp_min(1)[:, None], rtol=1e-12, atol=1e-14)
    requests = METHODS["feddistill"].plan(settings("feddistill"), after, federation, 1)
    for request in requests:  # everybody is told the same
        told = means[engine.data.labels[request.rows]]
        torch.testing.assert_close(request.inputs["label_logits"], told, rtol=0, atol=0)
        assert bool(request.inputs["known"].all())


def test_private_label_means_marks_absent_labels_unknown():
    federation, engine = federated(chosen=(0,))
    labels = torch.zeros_like(engine.data.labels)
    labels[federation.clients[0].train[:3]] = 1
    federation = dataclasses.replace(federation, train_labels=labels)
    rows = federation.clients[0].train
    draws = torch.Generator().manual_seed(1)
    logits = torch.randn(len(rows), CLASSES, generator=draws, dtype=torch.float64)
    requests = METHODS["feddistill"].plan(FD, {}, federation, 0)
    shared = label_means(mechanism(), federation, 0, requests, engine.train(requests), [1e-3 * logits])
    assert shared["label_counts/all"].tolist() == [1.0, 1.0, 0.0]
    centered = 1e-3 * (logits - logits.mean(1, keepdim=True))
    torch.testing.assert_close(shared["label_logits/all"][1], centered[:3].mean(0), rtol=1e-12, atol=1e-16)
    assert shared["label_logits/all"][2].abs().max() == 0
    for request in METHODS["feddistill"].plan(FD, shared, federated()[0], 1):
        assert torch.equal(request.inputs["known"], engine.data.labels[request.rows] != 2)


def test_fd_noise_is_of_the_bound():
    """Over 300 rounds without participants: counts are z sqrt(2 C) times a normal; half of them are unknown."""
    spec, (federation, _) = mechanism(noise_multiplier=3.0), federated()
    actual = [label_means(spec, federation, round, [], [], [])["label_counts/all"] for round in range(300)]
    counts, deviation = torch.stack(actual).flatten(), 3.0 * math.sqrt(2 * CLASSES)
    share = float((counts > 0).double().mean())
    above = 0.5 * math.erfc(0.5 / deviation / math.sqrt(2))
    assert abs(share - above) < 4 * math.sqrt(0.25 / len(counts))
    large = float((counts > deviation).double().mean())
    assert abs(large - 0.5 * math.erfc(1 / math.sqrt(2))) < 4 * math.sqrt(0.14 / len(counts))
    assert float(counts[counts > 0].min()) >= 1
