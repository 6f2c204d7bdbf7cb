"""Tempered cross-entropy of the lean engine: gradients of the logits at every step, the loss once per block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.engine.federated.cohort import Recipe


class BatchLoss:
    """mean_i scale_i CE(z_i / T_i, y_i) over batches of a client's images (see :class:`Recipe`).

    ``labels`` [n]; ``temperatures``: (T_i, scale_i), each [n], or None; ``softmax``: z is the softmax of the head's
    output. ``scale``: the factor on the head's output that :meth:`gradient` expects.
    """

    def __init__(
        self, recipe: Recipe, labels: Tensor, classes: int, dtype: torch.dtype,
        temperatures: tuple[Tensor, Tensor] | None, softmax: bool,
    ) -> None:  # fmt: skip
        self._labels, self._onehot, self._softmax = labels, F.one_hot(labels, classes).to(dtype), softmax
        self._truth = self._log = self._onehot[:0]
        self._temperatures = temperatures
        if temperatures is None and softmax:
            full = torch.full((len(labels),), recipe.temperature, dtype=dtype)
            self._temperatures = (full, torch.ones_like(full))
        self._batch, self._inverse = recipe.batch, 1 / recipe.temperature if self._temperatures is None else 1.0
        self.scale = self._inverse

    def start(self, part: Tensor) -> None:
        """Begin a block: the images at positions ``part`` [n'], in batches."""
        self._part, size = part, self._batch
        if len(self._truth) != len(part):  # memory and its views last from block to block
            self._truth = self._onehot.new_empty(len(part), self._onehot.shape[1])
            self._log = torch.empty_like(self._truth)
            self._truths, self._logs = self._truth.split(size), self._log.split(size)
            self._shares = torch.cat([self._log.new_full((len(log),), -1 / len(log)) for log in self._logs]).double()
        torch.index_select(self._onehot, 0, part, out=self._truth)
        if self._temperatures is not None:
            values, scales = (tensor[part, None] for tensor in self._temperatures)
            self._values, self._factors = values.split(size), (scales / values).split(size)

    def gradient(self, logits: Tensor, batch: int) -> tuple[Tensor, float]:
        """(G [B, C], f) such that f G is the gradient of the loss of batch number ``batch`` of the block."""
        log, outputs = self._logs[batch], logits
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
        return gradient, self._inverse / len(log)

    def total(self) -> float:
        """Sum over the block's steps of the loss of each."""
        logs = self._log.gather(1, self._labels[self._part, None])[:, 0]
        if self._temperatures is not None:
            logs = logs * self._temperatures[1][self._part]
        return float(torch.dot(logs.double(), self._shares))  # of each row: -1 / the size of its batch
