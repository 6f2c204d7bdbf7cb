"""``hardware.precision=bf16`` on a CPU: clients of the lean engine that train in bfloat16 and are tested in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from knot_runner.config.settings import CnnSettings, MlpSettings
from knot_runner.engine.examples import ClientData
from knot_runner.engine.federated.cohort import LocalTraining, Recipe, Trained
from knot_runner.engine.federated.lean.client import AutogradClient, ManualBackward, TrainingClient
from knot_runner.engine.federated.lean.passes.dense import WeightBias, pairs
from knot_runner.engine.federated.lean.passes.half import HalfConvs, HalfDense
from knot_runner.engine.federated.lean.passes.network import LeanNetwork
from knot_runner.engine.federated.lean.passes.sgd import Sgd
from knot_runner.engine.federated.lean.passes.stems import Pixels, Stem
from knot_runner.models.network import Network


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
