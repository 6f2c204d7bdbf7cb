"""Softmax regression written out: the gradient of the linear world's model, typed again for the tests of methods."""

from __future__ import annotations

import torch

from tests.unit.methods.federated.worlds import CLASSES, rounds_of


def examples(world, request):
    """Inputs [n, 4] and labels [n] of a request's rows."""
    data = world.engine.data
    return data.pixels[request.rows].flatten(1), data.labels[request.rows]


def gradient(vector, x, y):
    """Of mean cross-entropy at ``vector`` [15]: the weights [3, 4], then the biases [3]."""
    weight, bias = vector[:12].view(CLASSES, 4), vector[12:]
    logits = x @ weight.T + bias
    shares = logits.exp() / logits.exp().sum(1, keepdim=True)
    error = (shares - torch.eye(CLASSES, dtype=torch.float64)[y]) / len(x)
    return torch.cat([(error.T @ x).reshape(-1), error.sum(0)])


def loss(vector, x, y):
    """Mean cross-entropy at ``vector``."""
    logits = x @ vector[:12].view(CLASSES, 4).T + vector[12:]
    return float((logits.exp().sum(1).log() - logits[torch.arange(len(y)), y]).mean())


def descend(start, x, y, lr, steps, anchor=None, pull=0.0):
    """``steps`` full-batch steps on f(w) + pull / 2 ||w - anchor||^2."""
    vector = start.clone()
    for _ in range(steps):
        held = 0.0 if anchor is None else pull * (vector - anchor)
        vector = vector - lr * (gradient(vector, x, y) + held)
    return vector


def play(world, config, method, rounds, state=None):
    """The state after ``rounds``, and (requests, trained, row) of each."""
    found = rounds_of(world, config, rounds, method, state)
    return found[-1].after, [(one.requests, one.trained, one.row) for one in found]
