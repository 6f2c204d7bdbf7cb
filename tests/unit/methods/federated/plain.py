"""Models of the worlds written out, and the gradient of softmax regression, typed again for the tests of methods."""

import torch

from tests.unit.methods.federated.worlds import CLASSES, rounds_of

HIDDEN = 5


def examples(world, request):
    data = world.engine.data
    return data.pixels[request.rows].flatten(1), data.labels[request.rows]


def linear_logits(vector, x):
    """Logits [n, 3] of the linear model ``vector`` [15]: the weights [3, 4], then the biases [3]."""
    return x @ vector[: 4 * CLASSES].view(CLASSES, 4).T + vector[4 * CLASSES :]


def hidden_outputs(vector, x):
    """Features [n, 5] and logits [n, 3] of the model of one hidden layer ``vector`` [43]."""
    first, bias, last, end = vector.split([HIDDEN * 4, HIDDEN, CLASSES * HIDDEN, CLASSES])
    features = torch.relu(x @ first.view(HIDDEN, 4).T + bias)
    return features, features @ last.view(CLASSES, HIDDEN).T + end


def gradient(vector, x, y):
    """Of mean cross-entropy at ``vector`` [15]."""
    logits = linear_logits(vector, x)
    shares = logits.exp() / logits.exp().sum(1, keepdim=True)
    error = (shares - torch.eye(CLASSES, dtype=torch.float64)[y]) / len(x)
    return torch.cat([(error.T @ x).reshape(-1), error.sum(0)])


def loss(vector, x, y):
    logits = linear_logits(vector, x)
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
    played = rounds_of(world, config, rounds, method, state)
    return played[-1].after, [(one.requests, one.trained, one.row) for one in played]
