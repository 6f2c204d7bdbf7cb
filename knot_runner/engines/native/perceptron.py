"""Local training of a perceptron with compiled epochs (``perceptron.cpp``)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from knot_runner.engine.examples import augmented_images
from knot_runner.engine.federated import flat, local
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.engine.federated.lean.dense import WeightBias, pairs
from knot_runner.engine.federated.lean.network import Sgd
from knot_runner.engine.federated.lean.stems import Gram
from knot_runner.engines.native.library import OVERREAD, address, native_library


class _Layer(ctypes.Structure):
    """The C structure Layer in ``perceptron.cpp``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "weight_velocity", "bias_velocity")),
        *((name, ctypes.c_void_p) for name in ("weight_pull", "bias_pull")),
        *((name, ctypes.c_int32) for name in ("inputs", "outputs", "learns")),
    ]


def _client_structure(real: type) -> type[ctypes.Structure]:
    """Return the C structure Client in ``perceptron.cpp``, with REAL = ``real``."""

    class Client(ctypes.Structure):
        _fields_ = [
            *((name, ctypes.c_void_p) for name in ("images", "gram", "start", "changes", "velocity", "labels")),
            ("examples", ctypes.c_int64),
            *((name, ctypes.c_int32) for name in ("layers", "batch")),
            *((name, real) for name in ("lr", "momentum", "rate", "bias_rate", "inverse_temperature")),
        ]

    return Client


_CLIENTS = {torch.float32: _client_structure(ctypes.c_float), torch.float64: _client_structure(ctypes.c_double)}


class Perceptron:
    """The training of one client. The P ``weights`` change in place.

    ``images``: normalized, of shape [n, C, H, W]; ``labels``: of shape [n].
    """

    def __init__(
        self, request: LocalTraining, layout: flat.FlatLayout, weights: Tensor, images: Tensor, labels: Tensor,
        temperature: float,
    ) -> None:  # fmt: skip
        recipe = request.recipe
        self._request, self._layout, self._images, self._labels = request, layout, images, labels
        self._library = native_library(weights.dtype)
        self._sgd = Sgd(recipe, layout, weights, request.control)
        self._layers = pairs(weights, layout)[1]
        self._gram = Gram(self._layers[0], images) if self._gram_pays() else None
        self._gram_velocities: dict[str, Tensor] = {}
        self._pixels = _with_slack(images) if self._gram is None else images.flatten(1)  # not read by epochs
        decay = recipe.weight_decay + recipe.proximal
        bias_decay = recipe.weight_decay * recipe.decay_biases + recipe.proximal
        self._options = (recipe.lr, recipe.momentum, decay, bias_decay, 1 / temperature)

    def train(self) -> tuple[float, int]:
        """Train all epochs and return (mean loss, steps)."""
        recipe = self._request.recipe
        total = 0.0
        steps = 0
        for epoch in local.epochs(self._request, recipe.augment):
            order = epoch.order.contiguous()
            pixels = self._pixels
            labels = self._labels
            if epoch.crops is not None:
                pixels = _with_slack(augmented_images(self._images.index_select(0, order), epoch.crops))
                labels = labels[order]
                order = torch.arange(len(order))
            total += self._epoch(epoch.trains, order, pixels, labels)
            steps += -(-len(order) // recipe.batch_size)
        if self._gram is not None:
            self._gram.finish()
        return total / max(steps, 1), steps

    def _gram_pays(self) -> bool:
        """Return whether the first layer should use inner products of the images (:class:`Gram`).

        With momentum and the proximal term, W - W0 stays in the span of the images. With weight decay or control
        variates, W - W0 leaves this span.
        """
        recipe, (outputs, pixels) = self._request.recipe, self._layers[0][0].shape
        epochs = sum(phase.epochs for phase in recipe.phases if phase.trains != "head")
        in_span = not recipe.weight_decay and self._request.control is None
        unchanging = in_span and recipe.augment == "none" and len(self._layers) > 1
        return unchanging and Gram.is_cheaper(len(self._images), pixels, outputs, epochs)

    def _epoch(self, trains: str, order: Tensor, pixels: Tensor, labels: Tensor) -> float:
        """Train on the batches of ``order`` and return the sum of the batches' mean losses."""
        arrays = (pixels, *self._gram_arrays(trains), labels)
        sizes = (len(self._images), len(self._layers), self._request.recipe.batch_size)
        client = _CLIENTS[pixels.dtype](*(address(array) for array in arrays), *sizes, *self._options)
        layers = self._layer_array(trains)
        count = ctypes.c_int64(len(order))
        return self._library.perceptron_epoch(ctypes.byref(client), layers, address(order), count)

    def _gram_arrays(self, trains: str) -> Sequence[Tensor | None]:
        """Return the fields ``gram``, ``start``, ``changes`` and ``velocity`` of the C structure Client."""
        form = self._gram
        if form is None:
            return [None] * 4
        velocity = None
        if self._sgd.momentum:
            velocity = self._gram_velocities.setdefault(trains, torch.zeros_like(form.changes))
        return form.products, form.start, form.changes, velocity

    def _layer_array(self, trains: str) -> ctypes.Array[_Layer]:
        nothing: Sequence[WeightBias | tuple[None, None]] = [(None, None)] * len(self._layers)
        velocities = pulls = nothing
        if self._sgd.momentum:
            velocities = pairs(self._sgd.target(trains), self._layout)[1]
        if self._sgd.pull is not None:
            pulls = pairs(self._sgd.pull, self._layout)[1]
        layers = []
        for number, (pair, velocity, pull) in enumerate(zip(self._layers, velocities, pulls, strict=True)):
            is_head = number == len(self._layers) - 1
            learns = trains == "all" or (trains == "head") == is_head
            addresses = [address(tensor) for tensor in (*pair, *velocity, *pull)]
            layers.append(_Layer(*addresses, pair[0].shape[1], pair[0].shape[0], learns))
        return (_Layer * len(layers))(*layers)


def _with_slack(images: Tensor) -> Tensor:
    """Return the images as [n, pixels], in memory that also has readable values after the last image."""
    values = images.new_zeros(images.numel() + OVERREAD)
    values[: images.numel()] = images.flatten()
    if len(images):
        return values[: images.numel()].view(len(images), -1)
    return values[:0].view(0, 1)
