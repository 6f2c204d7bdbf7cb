"""A round of a federated method with the server's distillation after it, and that distillation typed out by hand."""

import functools
from dataclasses import replace

import torch

from knot_runner.engine.seeds import generator
from knot_runner.methods.federation import ServerExamples
from tests.feddf_runs import RANDOM, TRANSFER
from tests.unit.methods.federated.plain import linear_logits
from tests.unit.methods.federated.worlds import World, make_world, rounds_of, settings


class OneRound:
    """FedAvg's first round of a linear model with the server's distillation after it; ``row``: what was said of it."""

    def __init__(self, spec, algorithm="fedavg", members=None, round=0, hidden=(), **training):
        self.world = make_world(list(hidden)).with_training(**training)
        federation = replace(self.world.federation, server=ServerExamples(torch.arange(0, 40), TRANSFER, RANDOM))
        self.federation = federation if members is None else federation.cluster(members)
        self.config, self.round = settings(algorithm, server_distillation=spec), round
        (one,) = rounds_of(World(self.federation, self.world.engine), self.config, first=round)
        self.trained, self.averaged, self.state, self.row = one.trained, one.folded, one.after, one.row
        self.tested = [len(request.test_rows) for request in one.distillation]

    def logits(self, weights, rows):
        """Of the linear model, typed out: [n, C]."""
        return linear_logits(weights, self.world.engine.data.pixels[rows].flatten(1))

    def clients(self, rows):
        """Logits of the round's clients by the models that they sent, [n, K, C]."""
        sent = self.trained[: len(self.federation.drawn(self.round))]
        return torch.stack([self.logits(result.weights, rows) for result in sent], 1)


def by_hand(one, loss, rows=TRANSFER):
    """The averaged model trained on ``loss(logits, positions)`` for the epochs of ``one`` in float64: [P]."""
    spec = one.config.server_distillation
    weights = one.averaged["weights"].clone().requires_grad_()
    kinds = {"adamw": torch.optim.AdamW, "sgd": functools.partial(torch.optim.SGD, momentum=spec.momentum)}
    optimizer = kinds[spec.optimizer]([weights], lr=spec.lr, weight_decay=spec.weight_decay)
    draws = generator(3, "local", one.round, -1)
    for _ in range(spec.epochs):
        for positions in torch.randperm(len(rows), generator=draws).split(spec.batch_size):
            optimizer.zero_grad()
            loss(one.logits(weights, rows[positions]), positions).mean().backward()
            optimizer.step()
    return weights.detach()
