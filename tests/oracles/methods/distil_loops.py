"""Textbook loops, which students that train by loss terms are compared with."""

import torch
import torch.nn.functional as F

from knot_runner.engine.seeds import generator, keyed
from knot_runner.models.network import build_network
from tests.unit.methods.distil_requests import MLP, silent

KD = {"weight": 0.7, "tau": 2.0}


def trained(request, place, folder):
    return request.carry_out(place, place.store.root.parent / folder, silent)


def pixels(place, key):
    tensors = place.store.get("images", key).tensors()
    return ((tensors["pixels"].double() - 0.5) / 0.3).float(), tensors["labels"]


def softened(z, v, tau):
    """tau^2 KL(v || z) of softened outputs, mean over the batch."""
    q = torch.softmax(v / tau, 1)
    return tau**2 * (q * (q.log() - torch.log_softmax(z / tau, 1))).sum(1).mean()


def orders(request, count=40):
    """The batches of every epoch."""
    for epoch in range(1, request.training.epochs + 1):
        order = torch.randperm(count, generator=generator(request.seed, "order", request.stage, "student", epoch))
        yield epoch, order.split(request.training.batch)


def started(name, network=MLP, seed=5):
    torch.manual_seed(keyed(seed, "init", name))
    return build_network(network)


def frozen_model(place, teacher):
    """A stored teacher, as (network, name) of :func:`put_teacher`."""
    network, weights = teacher
    model = build_network(network).eval()
    model.load_state_dict(place.store.get(*weights).tensors())
    return model.requires_grad_(False)


def taught_by(teacher, share):
    """The loss of a student whose teacher is its own past: ``share(epoch)`` of what that says beside the labels."""

    def loss(_, model, x, y, epoch):
        with torch.no_grad():
            v = teacher(x)
        z = model(x)
        return F.cross_entropy(z, y) + 0.7 * share(epoch) * softened(z, v, 2.0)

    return loss


def plain(place, request, loss, students_, after=lambda: None, epoch_end=lambda: None):
    """A textbook loop: ``loss(number, model, x, y, epoch)`` of each of the models, an optimiser each."""
    x, y = pixels(place, "train")
    settings = request.training
    optimisers = [
        torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay) for model in students_
    ]

    def step(number, value):
        optimisers[number].zero_grad()
        value.backward()
        optimisers[number].step()

    for epoch, batches in orders(request):
        for rows in batches:
            values = [loss(number, model, x[rows], y[rows], epoch) for number, model in enumerate(students_)]
            for number, value in enumerate(values):
                step(number, value)
            after()
        epoch_end()
    return students_


def assert_same(found, model, prefix=""):
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[prefix + name], tensor, rtol=1e-4, atol=2e-6)


def labelled_ce(z, y):
    return F.cross_entropy(z[y >= 0], y[y >= 0])
