"""Each loss term against its formula, typed again with loops over examples in float64: values and gradients."""

import itertools

import pytest
import torch

from tests.unit.methods.distil_made import (
    LABELS,
    a_batch,
    assert_same,
    distance,
    gradients,
    made,
    normal,
    random_outputs,
)

B, C = 5, 4


def softmax(row, tau=1.0):
    raised = [torch.exp(value / tau) for value in row]
    return [value / sum(raised) for value in raised]


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_true_labels(smoothing):
    student = random_outputs(1, trained=True)
    total = 0
    for row, label in zip(student.logits, LABELS.tolist(), strict=True):
        if label >= 0:
            log_q = [torch.log(value) for value in softmax(row)]
            total = total - (1 - smoothing) * log_q[label] - smoothing * sum(log_q) / C
    ours = made("ce", student, [], label_smoothing=smoothing)(student, [], a_batch())
    assert_same(ours, total / 4, student)


@pytest.mark.parametrize(("form", "mean", "tau_squared"), [
    ("kl", "probabilities", True), ("kl", "logits", True), ("cross_entropy", "probabilities", False),
])  # fmt: skip
def test_softened_outputs(form, mean, tau_squared, tau=3.0):
    student, teachers = random_outputs(1, trained=True), [random_outputs(2), random_outputs(3)]
    rows = []
    for b in range(B):
        if mean == "logits":
            p = softmax([sum(t.logits[b, c] for t in teachers) / 2 for c in range(C)], tau)
        else:
            p = [sum(values) / 2 for values in zip(*(softmax(t.logits[b], tau) for t in teachers), strict=True)]
        q = softmax(student.logits[b], tau)
        row = sum(p[c] * (torch.log(p[c]) * (form == "kl") - torch.log(q[c])) for c in range(C))
        rows.append(row * (9 if tau_squared else 1))
    term = made("kd", student, teachers, form=form, mean=mean, tau_squared=tau_squared, tau=tau)
    assert_same(term(student, teachers, a_batch()), torch.stack(rows), student)


@pytest.mark.parametrize(("warmup", "epoch", "share"), [(0, 1, 1), (4, 1, 0.25), (4, 3, 0.75), (4, 9, 1)])
def test_decoupled(warmup, epoch, share, tau=2.0, alpha=0.7, beta=3.0):
    student, teachers = random_outputs(1, trained=True), [random_outputs(2), random_outputs(3)]
    rows = []
    for b, label in enumerate(LABELS.tolist()):
        row = 0 * student.logits[b].sum()
        for teacher in teachers if label >= 0 else []:
            p, q = softmax(teacher.logits[b], tau), softmax(student.logits[b], tau)
            row = row + alpha * p[label] * torch.log(p[label] / q[label])
            row = row + alpha * (1 - p[label]) * torch.log((1 - p[label]) / (1 - q[label]))
            for c in set(range(C)) - {label}:
                p_rest, q_rest = p[c] / (1 - p[label]), q[c] / (1 - q[label])
                row = row + beta * p_rest * torch.log(p_rest / q_rest)
        rows.append(share * tau**2 * row / 2)
    term = made("dkd", student, teachers, tau=tau, alpha=alpha, beta=beta, warmup=warmup)
    assert_same(term(student, teachers, a_batch(epoch=epoch)), torch.stack(rows), student)


def test_transported(epsilon=0.5, tau=1.5):
    """Sinkhorn's own iterations, each teacher and example by itself; the gradient by p is the potential."""
    points = torch.tensor([[0.0], [1.0], [1.5], [3.0]], dtype=torch.float64)
    student, teachers = random_outputs(1, trained=True), [random_outputs(2), random_outputs(3)]
    cost = (points - points.T).abs()
    value, gradient = torch.zeros(B, dtype=torch.float64), torch.zeros(B, C, dtype=torch.float64)
    for b, teacher in itertools.product(range(B), teachers):
        p, q = (torch.stack(softmax(net.logits[b].detach(), tau)) for net in (student, teacher))
        u, v = torch.ones_like(p), torch.ones_like(q)
        kernel = torch.exp(-cost / epsilon) * torch.outer(p, q)
        for _ in range(3000):
            u = p / (kernel @ v)
            v = q / (kernel.T @ u)
        plan = u[:, None] * kernel * v
        value[b] += ((plan * cost).sum() + epsilon * (plan * torch.log(plan / torch.outer(p, q))).sum()) / 2
        potential = epsilon * torch.log(u)
        gradient[b] += p * (potential - p @ potential) / tau / 2  # through the softmax
    term = made("sinkhorn", student, teachers, points=points, epsilon=epsilon, tau=tau, tolerance=1e-12)
    ours = term(student, teachers, a_batch())
    torch.testing.assert_close(ours, value, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradients(ours, student)[0], gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("form", "expected"), [
    ("l2", lambda f, g: sum((x - y) ** 2 for x, y in zip(f.flatten(), g.flatten(), strict=True)) / f.numel()),
    ("l1", lambda f, g: sum(abs(x - y) for x, y in zip(f.flatten(), g.flatten(), strict=True)) / f.numel()),
    ("ce", lambda f, g: sum(
        -p * torch.log(q) for h in range(3) for w in range(2)
        for p, q in zip(softmax(g[:, h, w]), softmax(f[:, h, w]), strict=True)
    ) / 6),
])  # fmt: skip
def test_hints(form, expected):
    """Two taps, summed; two teachers, averaged; an adapter of one tap is a 1x1 convolution: a product per position."""
    shapes = {"same": (2, 3, 2), "thin": (4, 3, 2)}
    student = random_outputs(1, trained=True, **shapes)
    teachers = [random_outputs(seed, same=(2, 3, 2), thin=(2, 3, 2)) for seed in (2, 3)]
    term = made("hint", student, teachers, form=form)
    rows = []
    for b in range(B):
        row = 0
        for teacher, adapter in zip(teachers, (term.adapters[1], term.adapters[3]), strict=True):
            row = row + expected(student.taps["same"][b], teacher.taps["same"][b])
            f = student.taps["thin"][b]
            adapted = torch.stack([
                sum(adapter.weight[out, c, 0, 0] * f[c] for c in range(4)) + adapter.bias[out] for out in range(2)
            ])  # fmt: skip
            row = row + expected(adapted, teacher.taps["thin"][b])
        rows.append(row / 2)
    assert_same(term(student, teachers, a_batch()), torch.stack(rows), student)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.5])
def test_attention(p):
    student = random_outputs(1, trained=True, a=(3, 4, 4), b=(2, 2, 2))
    teachers = [random_outputs(seed, a=(2, 4, 4), b=(5, 4, 4)) for seed in (2, 3)]

    def places(maps, example, size):
        side = maps.shape[-1] // size
        found = []
        for h, w in itertools.product(range(0, maps.shape[2], side), range(0, maps.shape[3], side)):
            pooled = [maps[example, c, h : h + side, w : w + side].mean() for c in range(maps.shape[1])]
            found.append(sum(abs(value) ** p for value in pooled) / len(pooled))
        return normal(found)

    rows = []
    for example in range(B):
        row = 0
        for teacher, (tap, size) in itertools.product(teachers, [("a", 4), ("b", 2)]):
            own, other = (places(net.taps[tap], example, size) for net in (student, teacher))
            row = row + distance(own, other) ** 2 / size**2
        rows.append(row / 2)
    assert_same(made("at", student, teachers, p=p)(student, teachers, a_batch()), torch.stack(rows), student)
