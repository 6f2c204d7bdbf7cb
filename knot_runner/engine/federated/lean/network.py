"""One training step of the lean engine: forward pass, backward pass, and an in-place SGD update of flat vectors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import Recipe
from knot_runner.engine.federated.lean.dense import Dense, pairs
from knot_runner.engine.federated.lean.stems import Stem
from knot_runner.engine.objectives import CrossEntropy, LossRows, SampleLoss, sample_temperatures


class LeanNetwork:
    """The stem and the dense layers of a network, and the optimizer that trains them.

    The stem consists of the layers before the dense layers.
    """

    def __init__(self, stem: Stem, dense: Dense, sgd: Sgd, layout: flat.FlatLayout) -> None:
        self.stem, self._dense, self._sgd, self._layout = stem, dense, sgd, layout
        self._trains = "all"
        self._through = stem.learns

    def begin(self, trains: str) -> None:
        """Select the parameters that the next steps train: "all", "head", or "body" (all except the head)."""
        self._trains = trains
        self._through = self.stem.learns and trains != "head"
        convs, layers = pairs(self._sgd.target(trains), self._layout)
        self.stem.set_targets(convs)
        self._dense.set_targets(layers[-len(self._dense.layers) :], trains)

    def step(self, x: Any, loss: BatchLoss, number: int) -> None:
        """Take one optimizer step on one batch.

        Args:
            x: The batch, as an input of the stem.
            loss: The loss object. Call its ``start`` method first, with a block that contains the batch.
            number: The index of the batch in this block.
        """
        logits = self._dense.forward(self.stem.forward(x), loss.scale)
        gradient, factor = loss.gradient(logits, number, self._dense.features)
        features = self._dense.backward(gradient, self._through, loss.by_features)
        if features is not None:
            self.stem.backward(features)
        # Weights change only now, because each layer's gradient needs the old weights of the layers above.
        self._sgd.prepare(self._trains)
        self._dense.accumulate(self._sgd.alpha * factor)
        if features is not None:
            self.stem.accumulate(self._sgd.alpha * factor)
        self._sgd.finish(self._trains)


class Sgd:
    """SGD with momentum, weight decay, a proximal term and a control variate. It changes a flat vector in place.

    Without momentum, a step computes ``w <- w - lr * (g + decay * w + mu * (w - w_start) + control)``. Here g is the
    gradient, mu is the factor of the proximal term, and w_start is the initial model. ``control`` is the control
    variate of SCAFFOLD. Momentum is computed as in torch.

    A step has three parts. :meth:`prepare` applies everything except the gradient. The caller then adds
    ``alpha * g`` to the vector from :meth:`target`, where ``alpha`` is an attribute of this class. :meth:`finish`
    completes the step.

    With momentum, each choice of trained layers ("all", "head" or "body") has its own velocity vector.
    """

    def __init__(self, recipe: Recipe, layout: flat.FlatLayout, weights: Tensor, control: Tensor | None) -> None:
        self.weights = weights
        self.lr = recipe.lr
        self.momentum = recipe.momentum
        self._rate = _rate(recipe, layout, weights)
        self._pull = _pull(recipe, weights, control)
        head = next(field.start for field in layout.parameters if field.name.startswith("head."))
        self._slices = {"all": slice(None), "head": slice(head, None), "body": slice(head)}
        self._velocities: dict[str, Tensor] = {}
        self.plain = not self.momentum and self._rate is None and self._pull is None
        self.alpha = 1.0 if self.momentum else -self.lr

    def target(self, trains: str) -> Tensor:
        """Return the vector to which gradients are added, shape [P].

        With momentum, this vector is the velocity. Without momentum, it is the vector of weights.
        """
        if not self.momentum:
            return self.weights
        # As if each kind of phase had its own optimizer, which is the case in the reference engine.
        if trains not in self._velocities:
            self._velocities[trains] = torch.zeros_like(self.weights)
        return self._velocities[trains]

    def prepare(self, trains: str) -> None:
        """Begin a step: apply momentum, weight decay, the proximal term and the control variate."""
        if self.plain:
            return
        part = self._slices[trains]
        weights = self.weights[part]
        rate = self._rate
        target = self.target(trains)[part]
        if rate is not None:
            rate = rate[part]
        if self.momentum:
            target.mul_(self.momentum)
            if rate is not None:
                target.addcmul_(weights, rate)
        elif rate is not None:
            target.addcmul_(weights, rate, value=-self.lr)
        if self._pull is not None:
            target.add_(self._pull[part], alpha=-self.alpha)

    def finish(self, trains: str) -> None:
        """Complete a step: with momentum, add ``-lr * velocity`` to the weights; without momentum, do nothing."""
        if self.momentum:
            part = self._slices[trains]
            self.weights[part].add_(self._velocities[trains][part], alpha=-self.lr)


def _rate(recipe: Recipe, layout: flat.FlatLayout, weights: Tensor) -> Tensor | None:
    """Return the weight decay plus mu, the factor of the proximal term, for each parameter; None if both are 0."""
    if not recipe.weight_decay and not recipe.proximal:
        return None
    rate = torch.full_like(weights, recipe.weight_decay)
    if not recipe.decay_biases:
        rate[layout.biases()] = 0
    return rate.add_(recipe.proximal)


def _pull(recipe: Recipe, weights: Tensor, control: Tensor | None) -> Tensor | None:
    """Return ``mu * w_start - control`` for each parameter; None if mu is 0 and there is no control variate."""
    if not recipe.proximal and control is None:
        return None
    pull = recipe.proximal * weights if recipe.proximal else torch.zeros_like(weights)
    if control is not None:
        pull -= control.to(weights.dtype)
    return pull


# -------------------------------------------------------------------------------------------------------------- loss


class TemperedLoss:
    """The mean cross-entropy of each batch of a client's examples. The gradient is computed in closed form.

    Args:
        options: The options of the cross-entropy, such as the temperature.
        size: The batch size.
        labels: The labels of the client's n examples, shape [n].
        classes: The number of classes.
        dtype: The dtype of the gradients.
        start_logits: The logits of the examples under the initial weights, shape [n, C]. They determine the temperature
            of each example. None if all examples have the same temperature.
        softmax: Whether the loss function receives the softmax of the head's output instead of the output itself.

    Attributes:
        scale: Factor by which the caller multiplies the head's output before it calls :meth:`gradient`.
        by_features: Always None (see :class:`AutogradLoss`).
    """

    by_features = None

    def __init__(
        self, options: CrossEntropy, size: int, labels: Tensor, classes: int, dtype: torch.dtype,
        start_logits: Tensor | None, softmax: bool,
    ) -> None:  # fmt: skip
        self._labels = labels
        self._onehot = F.one_hot(labels, classes).to(dtype)
        self._softmax = softmax
        self._truth = self._log = self._onehot[:0]
        self._batch = size
        self.scale = 1.0
        self._temperatures: tuple[Tensor, Tensor] | None = None
        if start_logits is not None:
            self._temperatures = sample_temperatures(options, start_logits, labels)
        elif softmax:
            full = torch.full((len(labels),), options.temperature, dtype=dtype)
            self._temperatures = (full, torch.ones_like(full))
        else:
            self.scale = 1 / options.temperature

    def start(self, part: Tensor) -> None:
        """Begin a block of batches. ``part``: the positions of the block's examples among the client's examples.

        The block is divided into batches in the order of ``part``.
        """
        self._part = part
        size = self._batch
        if len(self._truth) != len(part):  # memory and views are reused for every block
            self._truth = self._onehot.new_empty(len(part), self._onehot.shape[1])
            self._log = torch.empty_like(self._truth)
            self._truths = self._truth.split(size)
            self._logs = self._log.split(size)
            self._shares = torch.cat([self._log.new_full((len(log),), -1 / len(log)) for log in self._logs]).double()
        torch.index_select(self._onehot, 0, part, out=self._truth)
        if self._temperatures is not None:
            temperatures, scales = self._temperatures
            values = temperatures[part, None]
            self._values = values.split(size)
            self._factors = (scales[part, None] / values).split(size)

    def gradient(self, logits: Tensor, batch: int, features: Tensor) -> tuple[Tensor, float]:
        """Return a tensor of shape [B, C] and a factor.

        Their product is the gradient of the mean loss of one batch with respect to the head's output.

        Args:
            logits: The head's output multiplied by ``scale``, shape [B, C].
            batch: The position of the batch in the block.
            features: The head's input, shape [B, H].
        """
        log = self._logs[batch]
        outputs = logits
        if self._softmax:
            outputs = torch.softmax(logits, 1)
        if self._temperatures is not None:
            logits = outputs / self._values[batch]
        torch.log_softmax(logits, 1, out=log)
        gradient = log.exp().sub_(self._truths[batch])
        if self._temperatures is not None:
            gradient.mul_(self._factors[batch])
        if self._softmax:
            gradient = outputs * (gradient - (gradient * outputs).sum(1, keepdim=True))
        return gradient, self.scale / len(log)

    def total(self) -> float:
        """Return the sum of the mean losses of all batches in the block."""
        logs = self._log.gather(1, self._labels[self._part, None])[:, 0]
        if self._temperatures is not None:
            logs = logs * self._temperatures[1][self._part]
        return float(torch.dot(logs.double(), self._shares))  # the factor of each row is -1 / (size of the row's batch)


class AutogradLoss:
    """The mean loss of each batch of a client's examples, for any objective. Autograd computes the gradient.

    Args:
        loss: The loss function of the objective.
        rows: The tensors that the loss function reads, with one row for each example of the client.
        size: The batch size.
        softmax: Whether the loss function receives the softmax of the head's output instead of the output itself.
        reads: Whether the loss function also reads the features, which are the inputs of the head.

    Attributes:
        scale: Factor by which the caller multiplies the head's output before it calls :meth:`gradient`.
        by_features: The gradient of the latest batch's mean loss with respect to the features, shape [B, H]. The logits
            are treated as constants. None if the loss function does not read features.
    """

    scale = 1.0

    def __init__(self, loss: SampleLoss, rows: LossRows, size: int, softmax: bool, reads: bool) -> None:
        self._loss, self._rows, self._batch, self._softmax, self._reads = loss, rows, size, softmax, reads
        self.by_features: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()
        self._total = 0.0

    def start(self, part: Tensor) -> None:
        """Begin a block of batches. ``part``: the positions of the block's examples among the client's examples."""
        self._parts = part.split(self._batch)
        self._total = 0.0

    def gradient(self, logits: Tensor, batch: int, features: Tensor) -> tuple[Tensor, float]:
        """Return two values: the gradient of a batch's mean loss with respect to the head's output, and the factor 1.

        The arguments are the same as in :meth:`TemperedLoss.gradient`. If the loss function reads features,
        ``by_features`` is also set.
        """
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [logits.clone().requires_grad_()]  # autograd needs copies of tensors created in inference mode
            if self._reads:
                leaves.append(features.clone().requires_grad_())
            output, *read = leaves
            if self._softmax:
                output = torch.softmax(output, 1)
            rows = {name: tensor[self._parts[batch].clone()] for name, tensor in self._rows.items()}
            value = self._loss(output, rows, *read).mean()
            gradient, *below = torch.autograd.grad(value, leaves, materialize_grads=True)
        if below:
            self.by_features = below[0]
        self._total += float(value.detach())
        return gradient, 1.0

    def total(self) -> float:
        """Return the sum of the mean losses of all batches in the block."""
        return self._total


#: The mean loss of each batch of a client's examples.
BatchLoss = TemperedLoss | AutogradLoss
