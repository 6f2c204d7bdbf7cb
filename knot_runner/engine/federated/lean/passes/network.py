"""One training step of the lean engine: forward, backward, and the update in place."""

from __future__ import annotations

from typing import Any

from knot_runner.engine.federated import flat
from knot_runner.engine.federated.lean.passes.dense import Dense, pairs
from knot_runner.engine.federated.lean.passes.loss import BatchLoss
from knot_runner.engine.federated.lean.passes.sgd import Sgd
from knot_runner.engine.federated.lean.passes.stems import Stem


class LeanNetwork:
    """A stem, the dense layers after it, and the optimiser of their common flat weights."""

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
        gradient, factor = loss.gradient(logits, number)
        features = self._dense.backward(gradient, self._through)
        if features is not None:
            self.stem.backward(features)
        self._sgd.prepare(self._trains)
        self._dense.accumulate(self._sgd.alpha * factor)
        if features is not None:
            self.stem.accumulate(self._sgd.alpha * factor)
        self._sgd.finish(self._trains)
