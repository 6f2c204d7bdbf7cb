"""``hardware.precision=bf16`` on a CPU: clients of the lean engine that train in bfloat16 and are tested in float32.

The passes are for CPUs that multiply bfloat16 faster (AMX): what autocast would compute, with the head in float32.
Weights, their gradients' sums and the optimiser stay float32; every step rounds the weights to bfloat16 once. Images,
activations and gradients below the head are bfloat16; products are summed in float32 and rounded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from knot_runner.config.settings import CnnSettings, MlpSettings
from knot_runner.engine.examples import ClientData
from knot_runner.engine.federated.cohort import LocalTraining, Trained
from knot_runner.engine.federated.lean.client import AutogradClient, ManualBackward, TrainingClient
from knot_runner.engine.federated.lean.dense import Dense, WeightBias, masked_, pairs
from knot_runner.engine.federated.lean.network import LeanNetwork, Sgd
from knot_runner.engine.federated.lean.stems import Convs, Pixels, Stem
from knot_runner.engine.federated.recipe import Recipe
from knot_runner.models.network import Network


class HalfDense(Dense):
    """:class:`Dense`, for x [B, in] in bfloat16; logits are float32."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """See :class:`Dense`."""
        self._halves = [_half(pair) for pair in self.layers[:-1]]
        inputs = [x]
        for weight, bias in self._halves:
            x = torch.addmm(bias, x, weight.t()).relu_()
            inputs.append(x)
        self._inputs = [*inputs[:-1], x.float()]
        weight, bias = self.layers[-1]
        return torch.addmm(bias, self._inputs[-1], weight.t(), beta=scale, alpha=scale)

    def backward(self, gradient: Tensor, through: bool) -> Tensor | None:
        """See :class:`Dense`."""
        lowest, last = -1 if through else self._learning.start, len(self.layers) - 1
        found: list[Tensor | None] = [None] * len(self.layers)
        for i in range(last, max(lowest, 0) - 1, -1):
            found[i] = gradient
            if i > lowest:
                if i == last:
                    gradient = torch.mm(gradient, self.layers[last][0]).bfloat16()
                else:
                    gradient = torch.mm(gradient, self._halves[i][0])
                if i:
                    masked_(gradient, self._inputs[i].bfloat16())
        self._gradients = found
        return gradient if through else None

    def accumulate(self, alpha: float) -> None:
        """See :class:`Dense`."""
        for i in self._learning:
            (weight, bias), slope = self._targets[i], self._gradients[i].t()
            weight.add_(torch.mm(slope, self._inputs[i]), alpha=alpha)
            bias.add_(slope.sum(1, dtype=torch.float32), alpha=alpha)


class HalfConvs(Convs):
    """:class:`Convs`, for images in bfloat16."""

    def _operands(self) -> list[WeightBias]:
        return [_half(pair) for pair in self._layers]

    def _bias_gradient(self, gradient: Tensor) -> Tensor:
        return gradient.sum((0, 2, 3), dtype=torch.float32)


def _half(pair: WeightBias) -> WeightBias:
    weight, bias = pair
    return weight.bfloat16(), bias.bfloat16()


def has_fast_bfloat16() -> bool:
    """Whether the CPU has AMX. Others with instructions for bfloat16 were measured to take longer than in float32."""
    return torch.cpu._is_amx_tile_supported()


def make_half_client(network: Network, data: ClientData, test: ClientData, dtype: torch.dtype) -> TrainingClient:
    """Manual passes in bfloat16 for MLP and CNN, autocast for other models."""
    manual = isinstance(network.spec, MlpSettings | CnnSettings)
    return (HalfBackward if manual else AutocastClient)(network, data, test, dtype)


class AutocastClient(AutogradClient):
    """A client of the plain loop under autocast, its local tests included; inference is in float32."""

    def train_client(self, request: LocalTraining, weights: Tensor | None = None) -> Trained:
        """See :class:`TrainingClient`."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().train_client(request, weights)


class HalfBackward(ManualBackward):
    """Manual passes in bfloat16; tests and inference are in float32."""

    by_autograd = AutocastClient

    def _layers(self, request: LocalTraining, sgd: Sgd, images: Tensor) -> LeanNetwork:
        _, layers = pairs(sgd.weights, self._layout)
        stem = self._stem(request.recipe, sgd, images.bfloat16())
        return LeanNetwork(stem, HalfDense(layers), sgd, self._layout)

    def _stem(self, recipe: Recipe, sgd: Sgd, images: Tensor) -> Stem:
        if isinstance(self._network.spec, CnnSettings):
            return super()._stem(recipe, sgd, images)
        return Pixels(images)

    def _convolutions(self, layers: list[WeightBias], paddings: list[int], images: Tensor) -> Stem:
        return HalfConvs(layers, paddings, images)
