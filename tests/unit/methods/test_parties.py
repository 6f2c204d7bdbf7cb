"""Parties that learn from each other: against a plain loop typed here, killed, and alone where the weight is 0."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import f1_score

from knot_runner.config.settings.methods.knot import EntropySettings
from knot_runner.engine.requests import StoredPart
from knot_runner.engine.seeds import generator
from knot_runner.methods.mutual import TrainParties
from knot_runner.models.network import build_network
from tests.changed_settings import stage
from tests.unit.methods import distill_requests as small

KL = EntropySettings("entropy", "kl")
NAMES, SIZES = ("a", "b", "c"), (24, 40, 9)


@pytest.fixture
def place(tmp_path):
    return small.make_place(tmp_path)


def together(place, **changes):
    """The request for three parties; epochs of three batches of 8 out of 20 images that all share."""
    given = [small.put_teacher(place, network, n + 1) for n, network in enumerate((small.MLP, small.WIDE, small.MLP))]
    networks, starts = zip(*given, strict=True)
    trains = (small.put_images(place, name, SIZES[n], 10 + n) for n, name in enumerate(NAMES))
    valids = (small.put_images(place, f"valid {name}", 12, 20 + n) for n, name in enumerate(NAMES))
    made = {
        "stage": "mutual", "party": "parties", "parties": NAMES, "networks": networks, "starts": starts,
        "trains": tuple(map(StoredPart, trains)), "valids": tuple(map(StoredPart, valids)),
        "transfer": StoredPart(small.put_images(place, "transfer", 20, 30, unlabeled=20)), "loss": KL, "weight": 0.7,
        "points": [[0.0], [1.0], [2.0]], "seed": 5,
        "training": stage(3, 8, 0.01, 0.1, select="last"),
    }  # fmt: skip
    return TrainParties(**{**made, **changes})


def own_batches(place, request, party, epoch):
    """Rows of a party's own examples, time after time."""
    time = 0
    while True:
        draws = generator(5, "order", "mutual", request.parties[party], epoch, time)
        yield from torch.randperm(SIZES[NAMES.index(request.parties[party])], generator=draws).split(8)
        time += 1


def test_parties_equal_plain_loops(place):
    request = together(place)
    actual, facts = small.trained(request, place, "together")
    given = zip(request.networks, request.starts, strict=True)
    models = [small.frozen_model(place, one).requires_grad_() for one in given]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1) for model in models]
    x, _ = small.pixels(place, "transfer")
    owned, means = [small.pixels(place, name) for name in NAMES], []
    for epoch in (1, 2, 3):
        means.append([])
        own = [own_batches(place, request, party, epoch) for party in range(3)]
        for rows in torch.randperm(20, generator=generator(5, "order", "mutual", epoch)).split(8):
            said = [model(x[rows]) for model in models]
            losses = []
            for party, model in enumerate(models):
                mine = next(own[party])
                total = F.cross_entropy(model(owned[party][0][mine]), owned[party][1][mine])
                for other in range(3):
                    if other != party:
                        q = torch.softmax(said[other].detach(), 1)
                        divergence = (q * (q.log() - torch.log_softmax(said[party], 1))).sum(1).mean()
                        total = total + 0.7 * divergence / 2
                losses.append(total)
            means[-1].append(float(torch.stack(losses).detach().mean()))
            for optimizer, loss in zip(optimizers, losses, strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    for party, model in enumerate(models):
        small.assert_same(actual, model, f"{party}.")
    assert facts["best_epoch"] == 3 and facts["select"] == "score"
    assert [row["loss"] for row in facts["epochs"]] == pytest.approx([sum(own) / 3 for own in means], rel=1e-4)


@pytest.mark.parametrize("epoch", [1, 3])
def test_parties_resume_bit_identically_after_kill(place, epoch):
    request = together(place)
    undisturbed, facts = small.trained(request, place, "a")
    resumed, again = small.killed_and_resumed(request, place, epoch)
    small.assert_same_bits(resumed, undisturbed)
    assert [row["loss"] for row in again["epochs"]] == [row["loss"] for row in facts["epochs"]]


def test_parties_keep_epoch_with_best_mean_score(place):
    settings = stage(4, 8, 0.05, 0.0)
    actual, facts = small.trained(together(place, training=settings), place, "a")
    scores = [row["valid"] for row in facts["epochs"]]
    assert facts["best_epoch"] == 1 + scores.index(max(scores)) and facts["best_score"] == max(scores)
    own = []
    for party, network in enumerate((small.MLP, small.WIDE, small.MLP)):
        model = build_network(network)
        model.load_state_dict({n.removeprefix(f"{party}."): t for n, t in actual.items() if n.startswith(f"{party}.")})
        x, y = small.pixels(place, f"valid {NAMES[party]}")
        own.append(f1_score(y, model.eval()(x).argmax(1), average="macro"))
    assert facts["best_score"] == pytest.approx(sum(own) / 3)
