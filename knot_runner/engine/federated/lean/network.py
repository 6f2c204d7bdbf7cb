"""One training step of the lean engine: forward, backward, and SGD in place on flat vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knot_runner.engine.federated import flat
from knot_runner.engine.federated.lean.dense import Dense, pairs
from knot_runner.engine.federated.lean.loss import BatchLoss
from knot_runner.engine.federated.lean.stems import Stem
from knot_runner.engine.federated.recipe import Recipe


class LeanNetwork:
    """A stem, the dense layers after it, and the optimizer of their common flat weights."""

    def __init__(self, stem: Stem, dense: Dense, sgd: Sgd, layout: flat.FlatLayout) -> None:
        self.stem, self._dense, self._sgd, self._layout = stem, dense, sgd, layout
        self._trains, self._through = "all", stem.learns

    def begin(self, trains: str) -> None:
        """Train ``all``, the ``head`` or the ``body`` from here on."""
        self._trains, self._through = trains, self.stem.learns and trains != "head"
        convs, layers = pairs(self._sgd.target(trains), self._layout)
        self.stem.set_targets(convs)
        self._dense.set_targets(layers[-len(self._dense.layers) :], trains)

    def step(self, x: Any, loss: BatchLoss, number: int) -> None:
        """One step on batch ``number`` of the block that ``loss`` and the stem's ``x`` come from.

        All gradients are computed before any weight changes, as each layer's needs the weights above it.
        """
        logits = self._dense.forward(self.stem.forward(x), loss.scale)
        gradient, factor = loss.gradient(logits, number, self._dense.features)
        features = self._dense.backward(gradient, self._through, loss.by_features)
        if features is not None:
            self.stem.backward(features)
        self._sgd.prepare(self._trains)
        self._dense.accumulate(self._sgd.alpha * factor)
        if features is not None:
            self.stem.accumulate(self._sgd.alpha * factor)
        self._sgd.finish(self._trains)


class Sgd:
    """w <- w - lr (g + rate w - pull), rate = weight decay + mu, pull = mu w_start - control; with momentum as torch's.

    Arranged so that gradients are added where they belong and never stored.

    A step is :meth:`prepare` (everything but the gradient), ``alpha`` * gradient added to :meth:`target`, and
    :meth:`finish`. Momentum has one velocity per kind of phase, as separate optimizers have.
    """

    def __init__(self, recipe: Recipe, layout: flat.FlatLayout, weights: Tensor, control: Tensor | None) -> None:
        self.weights, self.lr, self.momentum = weights, recipe.lr, recipe.momentum
        self._rate = _rate(recipe, layout, weights)
        self.pull: Tensor | None = recipe.proximal * weights if recipe.proximal else None
        if control is not None:
            self.pull = -control.to(weights.dtype) + (0 if self.pull is None else self.pull)
        head = next(field.start for field in layout.parameters if field.name.startswith("head."))
        self._slices = {"all": slice(None), "head": slice(head, None), "body": slice(head)}
        self._velocities: dict[str, Tensor] = {}
        self.plain = not self.momentum and self._rate is None and self.pull is None
        self.alpha = 1.0 if self.momentum else -self.lr

    def target(self, trains: str) -> Tensor:
        """The vector [P] to which gradients are added: the weights, or the velocity."""
        if not self.momentum:
            return self.weights
        if trains not in self._velocities:
            self._velocities[trains] = torch.zeros_like(self.weights)
        return self._velocities[trains]

    def prepare(self, trains: str) -> None:
        """Before the gradient is added."""
        if self.plain:
            return
        part = self._slices[trains]
        weights, rate, target = self.weights[part], self._rate, self.target(trains)[part]
        if rate is not None:
            rate = rate[part]
        if self.momentum:
            target.mul_(self.momentum)
            if rate is not None:
                target.addcmul_(weights, rate)
        elif rate is not None:
            target.addcmul_(weights, rate, value=-self.lr)
        if self.pull is not None:
            target.add_(self.pull[part], alpha=-self.alpha)

    def finish(self, trains: str) -> None:
        """After the gradient was added."""
        if self.momentum:
            part = self._slices[trains]
            self.weights[part].add_(self._velocities[trains][part], alpha=-self.lr)


def _rate(recipe: Recipe, layout: flat.FlatLayout, weights: Tensor) -> Tensor | None:
    """Weight decay + mu of every parameter [P], or None where both are 0."""
    if not recipe.weight_decay and not recipe.proximal:
        return None
    rate = torch.full_like(weights, recipe.weight_decay)
    if not recipe.decay_biases:
        rate[layout.biases()] = 0
    return rate.add_(recipe.proximal)
