"""What tests of distillation's loss terms share: small random networks' outputs, and terms made from plain options."""

import torch

from knot_runner.methods.distill.term import TERMS, TermBatch, TermInputs
from knot_runner.models.taps import NetworkOutputs
from tests.changed_settings import terms_of

LABELS = torch.tensor([2, 0, 3, -1, 1])


def random_outputs(seed, trained=False, batch_size=5, classes=4, **shapes):
    """Random logits and taps of these shapes (less the batch), in float64; ``trained``: with a gradient."""
    draws = torch.Generator().manual_seed(seed)

    def normal(*shape):
        values = torch.randn(batch_size, *shape, generator=draws, dtype=torch.float64) * 2
        return values.requires_grad_(trained)

    return NetworkOutputs(normal(classes), {name: normal(*shape) for name, shape in shapes.items()})


def made(name, student, teachers, pairs=None, examples=20, points=None, **options):
    pairs = [[(name, name) for name in student.taps]] * len(teachers) if pairs is None else pairs
    settings = terms_of({name: {"weight": 1.0, **options}})[name]
    return TERMS[name].make(settings, TermInputs(student, teachers, pairs, examples, points))


def a_batch(labels=LABELS, seed=0, epoch=1):
    return TermBatch(labels, torch.arange(len(labels)) + 3, torch.Generator().manual_seed(seed), epoch)


def gradients(loss, student):
    """Of a loss (summed over examples) by the logits and every tap, zeros where one is not read."""
    leaves = [student.logits, *student.taps.values()]
    actual = torch.autograd.grad(loss.sum(), leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves, actual, strict=True)]


def assert_same(ours, reference, student, tolerance=1e-10):
    torch.testing.assert_close(ours, reference, rtol=0, atol=tolerance)
    for mine, theirs in zip(gradients(ours, student), gradients(reference, student), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)


def distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def normal(vector):
    length = dot(vector, vector) ** 0.5
    return [value / length for value in vector]
