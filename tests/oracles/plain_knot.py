"""KNOT on images, written down plainly in float64: an oracle for the pipeline, from its formulas alone. Of the package
it takes the images that every party has, the initial weights and the order of the batches, which are draws; losses,
weights, biases, AdamW, which epoch is kept and all else is its own."""

import math

import numpy as np
import torch
from sklearn.metrics import f1_score

from knot_runner import compose
from knot_runner.data.images.held_out import load_unlabeled, with_transfer
from knot_runner.data.images.load import load_images
from knot_runner.data.parties import image_parties
from knot_runner.engine.seeds import generator, keyed
from knot_runner.methods.weighting import random_images
from knot_runner.models.network import Network, build_network


class PlainKnot:
    """Teachers, soft labels and a student of ``parties``; all of them have the architecture ``network``."""

    def __init__(self, job, parties, network, noise):
        self.job, self.parties, self.network, self.noise = job, parties, network, noise
        self.training, self.seed = job.settings.training, job.settings.seed
        self.teachers = [name for name, data in parties.datasets.items() if data.role == "local"] + ["server"]

    def logits(self, model, images):
        task = self.job.settings.task
        mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (task.mean, task.std))
        unit = 255.0 if images.pixels.dtype == np.uint8 else 1.0
        return model((torch.from_numpy(images.pixels).double() / unit - mean) / std)

    def train(self, model, stage, party, settings, train, loss, score):
        """The weights of the best epoch by ``score``; of the first of equal ones. Epoch 0 takes part in a student's."""
        best, weights = (score(model), _copy(model)) if stage == "distill" else (-math.inf, None)
        means = [torch.zeros_like(p) for p in model.parameters()]
        squares = [torch.zeros_like(p) for p in model.parameters()]
        steps = 0
        for epoch in range(1, settings.epochs + 1):
            order = torch.randperm(len(train), generator=generator(self.seed, "order", stage, party, epoch))
            for rows in order.split(settings.batch_size):
                value = loss(self.logits(model, train.take(rows.numpy())), rows).mean()
                gradients = torch.autograd.grad(value, list(model.parameters()))
                steps += 1
                with torch.no_grad():
                    for p, g, m, v in zip(model.parameters(), gradients, means, squares, strict=True):
                        p -= settings.lr * settings.weight_decay * p
                        m += (g - m) * 0.1
                        v += (g * g - v) * 0.001
                        root = (v / (1 - 0.999**steps)).sqrt() + 1e-8
                        p -= settings.lr * (m / (1 - 0.9**steps)) / root
            with torch.no_grad():
                actual = score(model)
            if actual > best:
                best, weights = actual, _copy(model)
        model.load_state_dict(weights)
        return model

    def teacher(self, party):
        parts = self.parties.datasets[party].splits
        labels = torch.from_numpy(parts["train"].labels)

        def loss(logits, rows):
            return torch.logsumexp(logits, 1) - logits.gather(1, labels[rows][:, None])[:, 0]

        def score(model):
            predicted = self.logits(model, parts["valid"]).argmax(1)
            return f1_score(parts["valid"].labels, predicted, average="macro", zero_division=0)

        stage = "pretrain" if party == "server" else "local"
        torch.manual_seed(keyed(self.seed, "init", party))
        start = build_network(self.network).double()
        return self.train(start, stage, party, getattr(self.training, stage), parts["train"], loss, score)

    def bias(self, teacher):
        with torch.no_grad():
            counts = torch.bincount(self.logits(teacher, self.noise).argmax(1), minlength=self.network.classes) + 1.0
        return counts / counts.sum()

    def run(self):
        """Probabilities [N, C] of the student on the server's test images."""
        config, sizes = self.job.method, [len(self.parties.datasets[name].splits["train"]) for name in self.teachers]
        models = [self.teacher(name) for name in self.teachers]
        biases = [self.bias(model) for model in models]
        public, targets, weights = self.parties.datasets["transfer"].splits, {}, {}
        for split in ("train", "valid"):
            with torch.no_grad():
                q = torch.stack([self.logits(model, public[split]).softmax(1) for model in models], 1)
            targets[split] = q
            weights[split] = {
                "A": lambda q: torch.ones(q.shape[:2], dtype=torch.float64),
                "D": lambda q: torch.tensor(sizes).double().expand(q.shape[:2]) / sum(sizes),
                "U": lambda q: (q - 1 / q.shape[2]).square().sum(2).sqrt(),
                "E": lambda q: (q - torch.stack(biases)).square().sum(2).sqrt(),
            }[config.weighting](q)

        def loss(logits, rows, split="train"):
            p, q = logits.softmax(1)[:, None], targets[split][rows]
            pairs = (q * (q.log() - p.log())).sum(2) if config.loss.name == "entropy" else self.transport(p, q)
            return (weights[split][rows] * pairs).sum(1)

        def score(model):
            valid = public["valid"]
            return -float(loss(self.logits(model, valid), torch.arange(len(valid)), "valid").mean().detach())

        student = self.train(models[-1], "distill", "student", self.training.distill, public["train"], loss, score)
        with torch.no_grad():
            return self.logits(student, self.parties.datasets["server"].splits["test"]).softmax(1).numpy()

    def transport(self, p, q):
        """T_eps (eq. 1) by Sinkhorn's iterations until nothing moves; the gradient is the potential of p (eq. 4)."""
        points = torch.tensor(self.parties.labels.coordinates, dtype=torch.float64)
        cost, eps = torch.linalg.vector_norm(points[:, None] - points, dim=-1), self.job.method.loss.epsilon
        p = p.expand_as(q)
        log_p, log_q, g = p.detach().log(), q.log(), torch.zeros_like(q)
        for _ in range(100):
            f = -eps * torch.logsumexp((g[..., None, :] - cost) / eps + log_q[..., None, :], -1)
            g = -eps * torch.logsumexp((f[..., :, None] - cost) / eps + log_p[..., :, None], -2)
        values = (p.detach() * f).sum(-1) + (q * g).sum(-1)
        moved = (f * p).sum(-1)
        return values + moved - moved.detach()


def plain_knot(words):
    """Probabilities of the student by :class:`PlainKnot`, for the run of ``words``."""
    (job,) = compose(words)
    settings = job.settings
    task = load_images(settings.task, None)
    if settings.transfer is not None:
        task = with_transfer(task, load_unlabeled(settings.transfer, None))
    parties = image_parties(task, settings.partition, settings.shares, settings.seed)
    network = Network(settings.model, tuple(settings.task.shape), len(task.classes))
    noise = random_images(parties.datasets["transfer"].splits["train"], job.method.bias, settings.seed)
    return PlainKnot(job, parties, network, noise).run()


def _copy(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
