"""Each loss term against its formula, typed again with loops over examples, pairs and triples in float64."""

import itertools
import math

import pytest
import torch

from knot_runner.config.settings.methods.terms import RkdTermSettings
from knot_runner.methods.distill import relation
from knot_runner.methods.distill.contrastive import draw_negatives
from knot_runner.methods.distill.relation import draw_triples
from tests.unit.methods.distill_made import (
    LABELS,
    a_batch,
    assert_same,
    distance,
    dot,
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


@pytest.mark.parametrize(("form", "mean", "temperature_squared"), [
    ("kl", "probabilities", True), ("kl", "logits", True), ("cross_entropy", "probabilities", False),
])  # fmt: skip
def test_softened_outputs(form, mean, temperature_squared, tau=3.0):
    student, teachers = random_outputs(1, trained=True), [random_outputs(2), random_outputs(3)]
    rows = []
    for b in range(B):
        if mean == "logits":
            p = softmax([sum(t.logits[b, c] for t in teachers) / 2 for c in range(C)], tau)
        else:
            p = [sum(values) / 2 for values in zip(*(softmax(t.logits[b], tau) for t in teachers), strict=True)]
        q = softmax(student.logits[b], tau)
        row = sum(p[c] * (torch.log(p[c]) * (form == "kl") - torch.log(q[c])) for c in range(C))
        rows.append(row * (9 if temperature_squared else 1))
    term = made("kd", student, teachers, form=form, mean=mean, temperature_squared=temperature_squared, temperature=tau)
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
    term = made("dkd", student, teachers, temperature=tau, alpha=alpha, beta=beta, warmup=warmup)
    assert_same(term(student, teachers, a_batch(epoch=epoch)), torch.stack(rows), student)


def test_transported(epsilon=0.5, tau=1.5):
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
    term = made("sinkhorn", student, teachers, points=points, epsilon=epsilon, temperature=tau, tolerance=1e-12)
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
        for teacher, adapter in zip(teachers, (term.each[1].adapter, term.each[3].adapter), strict=True):
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
        actual = []
        for h, w in itertools.product(range(0, maps.shape[2], side), range(0, maps.shape[3], side)):
            pooled = [maps[example, c, h : h + side, w : w + side].mean() for c in range(maps.shape[1])]
            actual.append(sum(abs(value) ** p for value in pooled) / len(pooled))
        return normal(actual)

    rows = []
    for example in range(B):
        row = 0
        for teacher, (tap, size) in itertools.product(teachers, [("a", 4), ("b", 2)]):
            own, other = (places(net.taps[tap], example, size) for net in (student, teacher))
            row = row + distance(own, other) ** 2 / size**2
        rows.append(row / 2)
    assert_same(made("at", student, teachers, p=p)(student, teachers, a_batch()), torch.stack(rows), student)


def smooth_l1(x):
    return x**2 / 2 if abs(x.item()) < 1 else abs(x) - 0.5


def flat(tensor):
    return tensor.reshape(len(tensor), -1)


def similarity(f, g):
    total = 0
    for i in range(B):
        own, other = (normal([dot(x[i], x[j]) for j in range(B)]) for x in (f, g))
        total = total + distance(own, other) ** 2
    return total / B**2


def nearness(x):
    near = [[(dot(normal(x[i]), normal(x[j])) + 1) / 2 for j in range(B)] for i in range(B)]
    return [[value / sum(row) for value in row] for row in near]


def probability_transfer(f, g):
    total = 0
    for own, other in zip(itertools.chain(*nearness(f)), itertools.chain(*nearness(g)), strict=True):
        total = total + other * torch.log((other + 1e-7) / (own + 1e-7))
    return total / B**2


def distances_and_angles(f, g, weights=(25, 50)):
    def distances(x):
        actual = [distance(x[i], x[j]) if i != j else torch.zeros(()).double() for i in range(B) for j in range(B)]
        mean = sum(actual) / (B * B - B)
        return [value / mean for value in actual]

    def cosine(x, i, j, k):
        if i in (j, k):
            return torch.zeros(()).double()
        ways = [normal([x[end, d] - x[i, d] for d in range(x.shape[1])]) for end in (j, k)]
        return dot(*ways)

    far = sum(smooth_l1(a - b) for a, b in zip(distances(f), distances(g), strict=True)) / B**2
    corners = itertools.product(range(B), repeat=3)
    bent = sum(smooth_l1(cosine(f, *corner) - cosine(g, *corner)) for corner in corners) / B**3
    return weights[0] * far + weights[1] * bent


@pytest.mark.parametrize(("name", "reference", "options"), [
    ("sp", similarity, {}), ("pkt", probability_transfer, {}), ("rkd", distances_and_angles, {}),
    ("rkd", lambda f, g: distances_and_angles(f, g, (3, 0)), {"distance": 3, "angle": 0}),
    ("rkd", lambda f, g: distances_and_angles(f, g, (0, 7)), {"distance": 0, "angle": 7}),
])  # fmt: skip
def test_relations(name, reference, options):
    student = random_outputs(1, trained=True, map=(2, 2, 1), vector=(3,))
    teachers = [random_outputs(seed, map=(6,), vector=(2,)) for seed in (2, 3)]
    expected = sum(
        reference(flat(student.taps[tap]), flat(teacher.taps[tap])) for teacher in teachers for tap in ("map", "vector")
    )
    ours = made(name, student, teachers, **options)(student, teachers, a_batch())
    assert ours.shape == ()
    assert_same(ours, expected / 2, student)


@pytest.mark.parametrize(("far", "near", "own", "other"), [
    (0, 1, 7, 3), (1e6, 1, 7, 3), (1e7, 1, 15, 8), (0, 1e-3, 7, 3),
])  # fmt: skip
def test_distances_and_angles_keep_float32_precision(far, near, own, other):
    """Against differences in float64, also of features far from zero, or near each other, beside their distances."""
    draws = torch.Generator().manual_seed(0)
    f, g = (far + torch.randn(B, size, generator=draws) for size in (own, other))
    f[1:3] = f[0] + near * torch.randn(2, own, generator=draws)
    f.requires_grad_()
    loss = relation.distances_and_angles(RkdTermSettings(weight=1.0, distance=25, angle=50), f, g)
    assert loss.dtype == torch.float32
    precise = f.detach().double().requires_grad_()
    expected = distances_and_angles(precise, g.double())
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    (mine,), (theirs,) = torch.autograd.grad(loss, f), torch.autograd.grad(expected, precise)
    torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=1e-6 * float(theirs.abs().max()))


def test_contrast(n=20, tau=0.5):
    """Two steps of student and teacher embeddings against memories, negatives as drawn, memories moved in between."""
    student, teacher = random_outputs(1, trained=True, a=(3, 2)), random_outputs(2, a=(4,))
    torch.manual_seed(0)
    term = made("crd", student, [teacher], temperature=tau, negatives=6, dim=3, momentum=0.3)
    own = term.each[0]
    memories = [own.teacher_memory.clone(), own.student_memory.clone()]
    constants = [None, None]
    places = torch.arange(B) + 3
    for seed in (5, 6):
        embedded = [
            [normal([dot(weights, x[b]) + bias for weights, bias in zip(layer.weight, layer.bias, strict=True)])
             for b in range(B)]
            for layer, x in ((own.student_embedding, flat(student.taps["a"])),
                             (own.teacher_embedding, teacher.taps["a"]))
        ]  # fmt: skip
        negatives = draw_negatives(places, 6, n, torch.Generator().manual_seed(seed))
        rows = [0] * B
        for side in (0, 1):
            scores = [[torch.exp(dot(embedded[side][b], memories[side][at]) / tau)
                       for at in [b + 3, *negatives[b].tolist()]] for b in range(B)]  # fmt: skip
            if constants[side] is None:
                constants[side] = sum(itertools.chain(*scores)).item() / (B * 7) * n
            for b in range(B):
                positive, *others = (score / constants[side] for score in scores[b])
                rows[b] = rows[b] - torch.log(positive / (positive + 6 / n + 1e-7))
                for score in others:
                    rows[b] = rows[b] - torch.log(6 / n / (score + 6 / n + 1e-7))
        assert_same(term(student, [teacher], a_batch(seed=seed)), torch.stack(rows), student)
        for side in (0, 1):
            for b in range(B):
                moved = [0.3 * old + 0.7 * new for old, new in zip(
                    memories[side][b + 3].tolist(), embedded[1 - side][b], strict=True)]  # fmt: skip
                memories[side][b + 3] = torch.stack(normal(moved)).detach()
        torch.testing.assert_close(own.teacher_memory, memories[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(own.student_memory, memories[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("voters", [1, 2, 3])
def test_votes(voters, margin=0.2):
    """Of two teachers that disagree a triple is dropped; of three the majority counts."""
    student = random_outputs(1, trained=True, a=(3,), b=(2, 2))
    teachers = [random_outputs(seed + 2, a=(2,), b=(5,)) for seed in range(voters)]
    triples = draw_triples(40, B, torch.Generator().manual_seed(4)).tolist()
    expected = 0
    for tap in ("a", "b"):
        own, *others = ([normal(row) for row in flat(net.taps[tap])] for net in (student, *teachers))
        losses = []
        for i, j, k in triples:
            votes = sum(math.copysign(1, distance(g[i], g[j]) - distance(g[i], g[k])) for g in others)
            if votes:
                near, far = (k, j) if votes > 0 else (j, k)
                hinge = distance(own[i], own[near]) - distance(own[i], own[far]) + margin
                losses.append(hinge if hinge > 0 else 0 * hinge)
        expected = expected + sum(losses) / len(losses)
    term = made("triplet", student, teachers, margin=margin, triples=40)
    assert_same(term(student, teachers, a_batch(seed=4)), expected, student)
