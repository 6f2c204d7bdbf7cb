"""``hardware.engine=native``: the lean engine, with compiled passes for the models and objectives that support them."""

from __future__ import annotations

import torch
from torch import Tensor

from knot_runner.config.settings.networks import CnnSettings, MlpSettings, ResnetSettings, VggSettings, WrnSettings
from knot_runner.engine.examples import ClientData, normalized
from knot_runner.engine.federated.choose import make_lean, require_cpu
from knot_runner.engine.federated.cohort import EngineInputs, LocalTraining
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.federated.lean.client import ManualBackward, TrainingClient, autograd_client
from knot_runner.engine.federated.lean.dense import WeightBias
from knot_runner.engine.federated.lean.stems import Stem
from knot_runner.engine.objectives import tempered
from knot_runner.engines.native.library import native_library
from knot_runner.engines.native.perceptron import Perceptron
from knot_runner.engines.native.stem import PooledConvs, use_winograd
from knot_runner.models.network import Network


class NativeBackward(ManualBackward):
    """A client of the lean engine with compiled passes for CNN and MLP.

    For a CNN, pooling and the gradients of the convolutions are compiled, under any objective. For an MLP, a compiled
    function runs a whole epoch if the loss is cross-entropy with the same temperature for all samples. The lean
    engine's code does everything else.
    """

    def _train(self, request: LocalTraining, weights: Tensor) -> tuple[float, int]:
        options = tempered(request.objective)
        spec = self._network.spec
        if not isinstance(spec, MlpSettings) or spec.output != "logits":
            return super()._train(request, weights)
        if options is None or options.hard_temperature is not None:
            return super()._train(request, weights)
        images, labels = normalized(self._data, request.rows, self._dtype), self._data.labels[request.rows]
        return Perceptron(request, self._layout, weights, images, labels, options.temperature).train()

    def _convolutions(self, layers: list[WeightBias], paddings: list[int], images: Tensor) -> Stem:
        return PooledConvs(layers, paddings, images)


def make_native(inputs: EngineInputs) -> Lean:
    """Return ``hardware.engine=native``: the lean engine with compiled passes, which round differently.

    Raises:
        UserError: The passes cannot be compiled, or the device is a GPU.
    """
    require_cpu(inputs, "native")
    native_library(inputs.dtype)  # compiled before workers look for it
    if not any(map(has_passes, inputs.networks)):
        kinds = "mlp, cnn, resnet, wrn and vgg"
        inputs.note(f"hardware.engine: native supports only model.kind={kinds}, so the lean engine trains this model")
    return make_lean(inputs, "native", make_native_client)


def make_native_client(network: Network, data: ClientData, test: ClientData, dtype: torch.dtype) -> TrainingClient:
    """Return a client with compiled passes for MLP and CNN, or with compiled 3x3 convolutions.

    Other models get the same client as in the lean engine.
    """
    if isinstance(network.spec, MlpSettings | CnnSettings):
        return NativeBackward(network, data, test, dtype)
    client = autograd_client(network, data, test, dtype)
    if has_passes(network):
        use_winograd(client.model, dtype)
    return client


def has_passes(network: Network) -> bool:
    """Return whether compiled passes exist for a model of this kind."""
    return isinstance(network.spec, MlpSettings | CnnSettings | ResnetSettings | WrnSettings | VggSettings)
