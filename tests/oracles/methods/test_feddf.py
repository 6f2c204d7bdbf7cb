"""FedDF: the server's distillation, by a loss, against loops typed out by hand."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from knot_runner.config.settings.methods.knot import SinkhornSettings
from knot_runner.engine.objectives import ObjectiveInputs
from knot_runner.engine.seeds import generator
from knot_runner.methods.around.clusters import cluster_state, per_cluster
from knot_runner.methods.around.server_distillation import drawn_examples, with_distillation
from knot_runner.methods.contract import METHODS
from knot_runner.methods.losses import distillation
from tests.feddf_runs import POINTS, RANDOM, TRANSFER, close, distill
from tests.golden.messages import refuses
from tests.oracles.methods.feddf_rounds import OneRound, by_hand
from tests.unit.methods.federated.worlds import CLASSES, World, method_of, rounds_of, settings

SOFT = {"teacher_temperature": 0.5}
SINKHORN = SinkhornSettings("sinkhorn", "newton", 0.1, 1e-9, 0.5)


def kl(q, logits):
    return (torch.xlogy(q, q) - q * torch.log_softmax(logits, -1)).sum(-1)


def bias_of(logits):
    counts = torch.bincount(logits.argmax(1), minlength=CLASSES) + 1.0
    return counts / counts.sum()


def weights_by_hand(one, weighting, rows):
    """W [n, K] of KNOT, typed out."""
    q = torch.softmax(one.clients(rows) / one.config.server_distillation.teacher_temperature, -1)
    sizes = torch.tensor([len(one.federation.clients[result.client].train) for result in one.trained]).double()
    biases = torch.stack([bias_of(own) for own in one.clients(RANDOM).unbind(1)])
    return {
        "A": torch.ones(q.shape[:2]),
        "D": (sizes / sizes.sum()).expand(q.shape[:2]),
        "U": (q - 1 / CLASSES).norm(dim=2),
        "E": (q - biases).norm(dim=2),
    }[weighting]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("weighting", ["A", "D", "U", "E"])
def test_feddf_ensemble_each_weighs_clients_as_teachers(weighting, normalize):
    sgd = {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.1, "lr": 0.5}
    one = OneRound(distill(weighting=weighting, normalize=normalize, student_temperature=2.0, **SOFT, **sgd))
    q, w = torch.softmax(one.clients(TRANSFER) / 0.5, -1), weights_by_hand(one, weighting, TRANSFER)
    if normalize:
        w = w / w.sum(1, keepdim=True)
    wanted = by_hand(one, lambda z, at: (w[at] * kl(q[at], z[:, None] / 2.0)).sum(1))
    close(one.state["weights"], wanted)
    assert len(one.trained) == 3 and (wanted - one.averaged["weights"]).abs().max() > 0.01


@pytest.mark.parametrize("weighting", ["A", "D", "E"])
def test_feddf_ensemble_logits_teaches_mean_client_logits(weighting):
    one = OneRound(distill(weighting=weighting, ensemble="logits", **SOFT, optimizer="sgd", lr=1.0))
    w = weights_by_hand(one, weighting, TRANSFER)
    mean = (w[:, :, None] * one.clients(TRANSFER)).sum(1) / w.sum(1, keepdim=True)
    q = torch.softmax(mean / 0.5, -1)
    close(one.state["weights"], by_hand(one, lambda z, at: kl(q[at], z)))


def test_feddf_sinkhorn_e_matches_knot_distillation():
    one = OneRound(distill(loss=SINKHORN, weighting="E"))
    told = one.clients(TRANSFER)
    sizes = [len(one.federation.clients[result.client].train) for result in one.trained]
    knot = {
        "loss": SINKHORN, "weighting": "E", "normalize": False, "student_temperature": 1.0, "teacher_temperature": 1.0,
        "teachers": ["a", "b", "c"], "shares": [size / sum(sizes) for size in sizes], "points": POINTS,
        "biases": [bias_of(own).tolist() for own in one.clients(RANDOM).unbind(1)],
    }  # fmt: skip
    inputs = ObjectiveInputs(torch.full((32,), -1), dict(zip("abc", told.unbind(1), strict=True)), lambda: told)
    rows, loss = distillation(knot, inputs)
    wanted = by_hand(one, lambda z, at: loss(z, {name: own[at] for name, own in rows.items()}))
    close(one.state["weights"], wanted)
    assert (wanted - one.averaged["weights"]).abs().max() > 0.01


def held_by_hand(one, share=0.25):
    order = torch.randperm(len(TRANSFER), generator=generator(3, "transfer valid"))
    count = int(share * len(TRANSFER))
    return TRANSFER[order[count:].sort().values], TRANSFER[order[:count].sort().values]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize(("valid", "patience"), [(0.0, 1000), (0.25, 1000), (0.25, 8)])
def test_feddf_follows_cosine_schedule_and_early_stopping(optimizer, valid, patience):
    lr = {"adamw": 0.3, "sgd": 3.0}[optimizer]
    spec = distill(ensemble="logits", schedule="cosine", valid=valid, check=4, patience=patience, epochs=6, lr=lr,
                  optimizer=optimizer)  # fmt: skip
    one = OneRound(spec)
    train, held = held_by_hand(one, valid)
    told = {"train": one.clients(train), "held": one.clients(held)}
    q, aside = (torch.softmax(logits.mean(1), -1) for logits in told.values())
    weights = one.averaged["weights"].clone().requires_grad_()
    kind = {"adamw": functools.partial(torch.optim.AdamW, weight_decay=0.0), "sgd": torch.optim.SGD}[optimizer]
    made = kind([weights], lr=lr)
    draws, step, last = generator(3, "local", 0, -1), 0, 6 * -(-len(train) // 5)
    checked = [(kl(aside, one.logits(weights.detach(), held)).mean(), 0, weights.detach().clone())] if valid else []
    ended = False
    for _ in range(6):
        for at in torch.randperm(len(train), generator=draws).split(5):
            if ended:
                break
            made.param_groups[0]["lr"] = lr * (1 + np.cos(np.pi * step / last)) / 2
            made.zero_grad()
            kl(q[at], one.logits(weights, train[at])).mean().backward()
            made.step()
            step += 1
            if valid and (step % 4 == 0 or step == last):
                now = weights.detach().clone()
                checked.append((kl(aside, one.logits(now, held)).mean(), step, now))
                best = min(checked, key=lambda actual: float(actual[0]))
                ended = step % 4 == 0 and step - best[1] >= patience
    assert one.row["distill_steps"] == step
    close(one.state["weights"], best[2] if valid else weights.detach(), 5e-5)
    if valid and optimizer == "adamw":  # SGD comes nearer with every step: the mean of linear models is one
        assert (step < last) is (patience == 8) and best[1] < step


def test_feddf_round_reports_accuracy_steps_and_loss():
    one = OneRound(distill(lr=0.5))
    labels = one.world.engine.test.labels[:40]
    right = [(one.logits(s["weights"], torch.arange(40)).argmax(1) == labels).double().mean() for s in
             (one.averaged, one.state)]  # fmt: skip
    assert one.row["distill_before"] == pytest.approx(right[0]) and one.row["distill_after"] == pytest.approx(right[1])
    assert one.row["distill_steps"] == 2 * 7 and one.row["distill_loss"] > 0
    assert one.row["distill_before"] != one.row["distill_after"] and one.row["distill_tested"] == 40
    unmeasured = OneRound(distill(lr=0.5), evaluate_every=3)
    assert set(unmeasured.row) == {"distill_loss", "distill_steps", "bytes_up", "bytes_down"}
    assert one.tested == [40] and unmeasured.tested == [0]
    models = 3 * sum(value.nbytes for value in one.averaged.values())  # logits are not sent
    assert unmeasured.row["bytes_up"] == unmeasured.row["bytes_down"] == models
    assert torch.equal(unmeasured.state["weights"], one.state["weights"])


@pytest.mark.parametrize(("after", "every", "wanted"), [(0, 1, [0, 1, 2, 3]), (2, 1, [2, 3]), (1, 2, [1, 3])])
def test_rounds_that_distill(after, every, wanted):
    spec = distill(after=after, every=every)
    rounds = [OneRound(spec, round=round) for round in range(4)]
    distilled = [one.round for one in rounds if "distill_loss" in one.row]
    assert distilled == wanted == [round for round in range(4) if spec.distills(round)]
    for one in rounds:
        assert torch.equal(one.state["weights"], one.averaged["weights"]) is not ("distill_loss" in one.row)


def test_server_distills_only_methods_that_fold_models():
    config, alone = settings(server_distillation=distill()), replace(METHODS["fedavg"], fold=None, fold_each=None)
    assert with_distillation(replace(alone, fold_each=lambda *_: None), config).exchange(config)
    assert with_distillation(METHODS["fedavg"], config).exchange(config) and not METHODS["fedavg"].exchange
    with refuses():
        with_distillation(alone, config)


def test_drawn_examples_chains_permutations_of_transfer_set():
    spec = distill(steps=10, batch_size=5)
    one = OneRound(spec)
    assert one.row["distill_steps"] == 10
    drawn = drawn_examples(spec, one.federation, 0)
    assert drawn[:32].sort().values.tolist() == TRANSFER.tolist() and len(drawn) == 50
    assert len(drawn[32:].unique()) == 18 and drawn[:18].tolist() != drawn[32:].tolist()
    assert torch.equal(drawn, drawn_examples(spec, one.federation, 0))
    assert not torch.equal(drawn, drawn_examples(spec, one.federation, 1))
    few = OneRound(distill(steps=2, batch_size=5, optimizer="sgd"))  # clients are asked about these alone
    rows = drawn_examples(few.config.server_distillation, few.federation, 0).sort().values
    assert len(rows) == 10 and few.row["distill_steps"] == 2


@pytest.mark.parametrize("algorithm", ["fedprox", "scaffold", "ditto", "apfl", "fedala"])
def test_feddf_distillation_works_with_other_global_methods(algorithm):
    one = OneRound(distill(), algorithm)
    q = torch.softmax(one.clients(TRANSFER), -1)
    close(one.state["weights"], by_hand(one, lambda z, at: kl(q[at], z[:, None]).sum(1)))
    assert set(one.state) == set(one.averaged)


def test_per_cluster_distillation_equals_each_cluster_alone():
    spec, groups = distill(weighting="E"), ([0, 1], [2, 3, 4])
    alone = [OneRound(spec, members=members) for members in groups]
    method = per_cluster(method_of(alone[0].config), [one.federation for one in alone])
    (both,) = rounds_of(World(alone[0].federation, alone[0].world.engine), alone[0].config, 1, method)
    state, row = both.after, both.row
    for number, one in enumerate(alone):
        assert torch.equal(cluster_state(state, number)["weights"], one.state["weights"])
    first, second = (one.row for one in alone)
    assert row["distill_steps"] == first["distill_steps"] + second["distill_steps"]
    assert [first["distill_tested"], second["distill_tested"]] == [8, 12] and row["distill_tested"] == 20
    assert [len(request.test_rows) for request in both.distillation] == [8, 12]
    assert row["distill_after"] == pytest.approx((8 * first["distill_after"] + 12 * second["distill_after"]) / 20)
