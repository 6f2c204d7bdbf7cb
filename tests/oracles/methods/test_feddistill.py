"""FD and FedMD: clients keep their models and exchange logits, against what is typed out by hand."""

import torch
import torch.nn.functional as F

from knot_runner.engine.seeds import generator
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federated.feddistill import others_means
from knot_runner.methods.federation import with_server
from tests.feddf_runs import TRANSFER, close
from tests.unit.methods.federated.worlds import CLASSES, World, make_world, rounds_of, settings


class Played:
    """Some rounds of a linear model; ``states``: after each, ``seen``: (requests, trained) of each."""

    def __init__(self, algorithm, rounds, members=None, **changes) -> None:
        self.world = make_world([])
        self.data = self.world.engine.data
        federation = with_server(self.world.federation, torch.arange(0), TRANSFER, TRANSFER[:0])
        self.federation = federation if members is None else federation.cluster(members)
        self.config, self.method = settings(algorithm, **changes), METHODS[algorithm]
        found = rounds_of(World(self.federation, self.world.engine), self.config, rounds)
        self.states, self.rows = [one.after for one in found], [one.said for one in found]
        self.seen = [(one.requests, one.trained) for one in found]

    def logits(self, weights, rows):
        inputs = self.data.pixels[rows].flatten(1)
        return inputs @ weights[: CLASSES * 4].view(CLASSES, 4).T + weights[CLASSES * 4 :]


def means_by_hand(played, state, client):
    """Label -> mean over the others of their mean logits for it."""
    found = {}
    for label in range(CLASSES):
        sent = []
        for other in range(5):
            rows = played.federation.clients[other].train
            own = rows[played.data.labels[rows] == label]
            if other != client and f"client/{other}/weights" in state and len(own):
                sent.append(played.logits(state[f"client/{other}/weights"], own).mean(0))
        if sent:
            found[label] = torch.stack(sent).mean(0)
    return found


def test_feddistill_loss_adds_others_mean_label_logits():
    played = Played("feddistill", 2)
    before = played.states[0]
    requests, trained = played.seen[1]
    for request, result in zip(requests, trained, strict=True):
        means = means_by_hand(played, before, request.client)
        labels = played.data.labels[request.rows]
        told = torch.stack([means[int(label)] for label in labels])
        weights = request.start.weights.clone().requires_grad_()
        draws = generator(3, "local", 1, request.client)
        for _ in range(2):
            for at in torch.randperm(len(labels), generator=draws).split(4):
                z = played.logits(weights, request.rows[at])
                soft = -(torch.softmax(told[at] / 2.0, 1) * torch.log_softmax(z / 2.0, 1)).sum(1)
                loss = (F.cross_entropy(z, labels[at], reduction="none") + 0.7 * soft).mean()
                (gradient,) = torch.autograd.grad(loss, weights)
                weights = (weights - 0.1 * gradient).detach().requires_grad_()
        close(result.weights, weights.detach(), atol=1e-12)
        assert torch.equal(played.states[1][f"client/{request.client}/weights"], result.weights)


def test_others_means_ignores_labels_nobody_else_has():
    played = Played("feddistill", 1)
    state = dict(played.states[0])
    (one, two, three) = [request.client for request in played.seen[0][0]]
    for other in (two, three):
        state[f"label_counts/{other}"] = torch.tensor([0, 3, 3]) if other == two else torch.tensor([0, 0, 5])
    logits, known = others_means(state, played.federation, one)
    assert known.tolist() == [False, True, True]
    close(logits[1], state[f"label_logits/{two}"][1], 0)
    close(logits[2], (state[f"label_logits/{two}"][2] + state[f"label_logits/{three}"][2]) / 2, 1e-15)
    assert others_means({}, played.federation, one) is None
    assert others_means(state, played.federation.cluster([one]), one) is None
