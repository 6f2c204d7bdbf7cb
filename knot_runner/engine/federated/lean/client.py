"""A client's local training and inference in one process of the lean engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.config.settings.networks import CnnSettings, MlpSettings
from knot_runner.engine.examples import ClientData, ImageData, normalized
from knot_runner.engine.federated import flat, local
from knot_runner.engine.federated.cohort import INFERENCE_ROWS, Inference, LocalTraining, Recipe, Trained
from knot_runner.engine.federated.lean.dense import Dense, Foreground, LayerPairs, affine, pairs
from knot_runner.engine.federated.lean.network import AutogradLoss, BatchLoss, LeanNetwork, Sgd, TemperedLoss
from knot_runner.engine.federated.lean.stems import Convs, Gram, Pixels, Stem
from knot_runner.engine.objectives import ObjectiveInputs, make_loss, tempered
from knot_runner.models.network import Network

if TYPE_CHECKING:
    from knot_runner.engine.federated.loop import Loop

#: Number of images that are gathered in one operation, rounded to whole batches. With a large number, fewer operations
#: are needed. With a small number, the images fit into the core's cache.
_IMAGES_AT_ONCE = 1024
#: Maximum number of cached values (8 MB in float32) of recent inference requests: images, and inputs of heads. The
#: values of the most recent request are always cached.
_KEPT_VALUES = 2**21


#: An object that trains clients and evaluates models, one request at a time.
TrainingClient = Union["ManualBackward", "Loop"]


def make_client(network: Network, data: ClientData, test: ClientData, dtype: torch.dtype) -> TrainingClient:
    """Return an object that trains and evaluates models with the architecture ``network``.

    MLPs and CNNs are trained with manual backward passes. Other models are trained with autograd.
    """
    if isinstance(network.spec, MlpSettings | CnnSettings):
        assert isinstance(data, ImageData) and isinstance(test, ImageData)
        return ManualBackward(network, data, test, dtype)
    return autograd_client(network, data, test, dtype)


def autograd_client(network: Network, data: ClientData, test: ClientData, dtype: torch.dtype) -> Loop:
    """Return an object that trains clients with autograd: the reference engine on the CPU."""
    from knot_runner.engine.federated.loop import Loop  # plain requests do not need this module

    return Loop(network, data, test, torch.device("cpu"), dtype)


class ManualBackward:
    """Local training and inference of MLPs and CNNs with hand-written forward and backward passes."""

    def __init__(self, network: Network, data: ImageData, test: ImageData, dtype: torch.dtype) -> None:
        self._network = network
        self._layout = flat.layout_of(network)
        self._softmax = getattr(network.spec, "output", "logits") == "softmax"
        self._data = data
        self._test = test
        self._dtype = dtype
        self._recent: dict[tuple[object, ...], Tensor | Foreground] = {}

    def train_client(self, request: LocalTraining, weights: Tensor | None = None) -> Trained:
        """Train one client as ``request`` describes; return the result.

        Requests that are not plain (``LocalTraining.is_plain``) are trained with autograd. For a plain request, the
        trained weights are stored in the tensor ``weights``, shape [P], or in a new tensor if ``weights`` is None.
        """
        if not request.is_plain:
            return autograd_client(self._network, self._data, self._test, self._dtype).train_client(request)
        if weights is None:
            weights = torch.empty_like(request.start.weights, dtype=self._dtype)
        with torch.inference_mode():
            weights.copy_(request.start.weights)
            before = self._correct(weights, request.test_rows)
            loss, steps = self._train(request, weights)
            after = self._correct(weights, request.test_rows)
            finite = bool(weights.isfinite().all())
        return Trained(request.client, weights, request.start.buffers.clone(), steps, loss, before, after, finite)

    def infer(self, request: Inference) -> Tensor:
        """Return the logits or features of one request (:meth:`Engine.logits`)."""
        with torch.inference_mode():
            parameters = pairs(request.model.weights.to(self._dtype), self._layout)
            key = request.split, request.many, request.rows.numpy().tobytes()

            def features() -> Tensor:
                return self._features(parameters, self._kept(key, lambda: self._inputs(request)))

            outputs = self._kept((*key, request.body), features) if request.body else features()
            if request.output == "logits":
                outputs = self._head(parameters, outputs)
            return outputs.clone()

    def _inputs(self, request: Inference) -> Tensor | Foreground:
        """Return the normalized images of ``request``, as a :class:`Foreground` where this saves time."""
        data = self._test if request.split == "test" else self._data
        images = normalized(data, request.rows, self._dtype)
        has_body = not isinstance(self._network.spec, CnnSettings) and len(self._layout.parameters) > 2
        if request.many and has_body and len(images):
            foreground = Foreground(images)
            if foreground.saves:
                return foreground
        return images

    def _kept(self, key: tuple[object, ...], make: Callable[[], Any]) -> Any:
        """Return the result of ``make()``, cached by ``key`` for recent requests.

        Caching saves work if many models are evaluated on the same images, for example the models of all clients.
        """
        value = self._recent.pop(key, None)
        if value is None:
            value = make()
        self._recent[key] = value  # the most recent is the last
        while len(self._recent) > 1 and sum(kept.numel() for kept in self._recent.values()) > _KEPT_VALUES:
            del self._recent[next(iter(self._recent))]
        return value

    def _train(self, request: LocalTraining, weights: Tensor) -> tuple[float, int]:
        """Train all epochs and return (mean loss, number of steps). ``weights`` (P values) change in place."""
        recipe = request.recipe
        images = normalized(self._data, request.rows, self._dtype)
        loss = self._loss(request, weights, images)
        sgd = Sgd(recipe, self._layout, weights, request.control)
        stem = self._stem(recipe, sgd, images)
        del images  # the stem has a copy in another memory layout
        _, layers = pairs(weights, self._layout)
        if isinstance(stem, Gram):
            layers = layers[1:]  # the stem computes the first layer
        network = LeanNetwork(stem, Dense(layers), sgd, self._layout)
        total = 0.0
        steps = 0
        trains = None
        for epoch in local.epochs(request, recipe.augment):
            if epoch.trains != trains:
                trains = epoch.trains
                network.begin(trains)
            for part, crops in _blocks(epoch, max(1, _IMAGES_AT_ONCE // recipe.batch_size) * recipe.batch_size):
                loss.start(part)
                batches = network.stem.batches(part, crops, recipe.batch_size)
                for number, x in enumerate(batches):
                    network.step(x, loss, number)
                total = total + loss.total()
                steps = steps + len(batches)
        network.stem.finish()
        return total / max(steps, 1), steps

    def _loss(self, request: LocalTraining, weights: Tensor, images: Tensor) -> BatchLoss:
        """Return the loss of the request's objective. For the cross-entropy, the loss has a closed-form gradient."""
        labels = self._data.labels[request.rows]
        options = tempered(request.objective)
        if options is not None:
            logits = None
            if options.hard_temperature is not None:
                logits = self._logits(weights, images)
            size = request.recipe.batch_size
            return TemperedLoss(options, size, labels, self._network.classes, self._dtype, logits, self._softmax)
        with torch.inference_mode(False):
            own_tensors = {name: tensor.clone() for name, tensor in request.inputs.items()}
            inputs = ObjectiveInputs(
                labels.clone(),
                own_tensors,
                lambda: self._logits(weights, images).clone(),
                features=lambda name: self._all_features(
                    request.model_of(name).weights.to(self._dtype), images
                ).clone(),
            )
            rows, function = make_loss(request.objective, inputs)
        return AutogradLoss(function, rows, request.recipe.batch_size, self._softmax, request.objective.reads_features)

    def _stem(self, recipe: Recipe, sgd: Sgd, images: Tensor) -> Stem:
        spec, (convs, layers) = self._network.spec, pairs(sgd.weights, self._layout)
        if isinstance(spec, CnnSettings):
            return Convs(convs, [conv.padding for conv in spec.convs], images)
        outputs, pixels = layers[0][0].shape
        epochs = sum(phase.epochs for phase in recipe.phases if phase.trains != "head")
        unchanging = sgd.plain and recipe.augment == "none" and len(layers) > 1
        if unchanging and Gram.is_cheaper(len(images), pixels, outputs, epochs):
            return Gram(layers[0], images)
        return Pixels(images)

    def _correct(self, weights: Tensor, rows: Tensor) -> int:
        """Return the number of test images at ``rows`` that are classified correctly."""
        correct = 0
        for part in rows.split(INFERENCE_ROWS):
            logits = self._logits(weights, normalized(self._test, part, self._dtype))
            correct += int((logits.argmax(1) == self._test.labels[part]).sum())
        return correct

    def _logits(self, weights: Tensor, images: Tensor) -> Tensor:
        """Return the logits, shape [n, classes], for normalized ``images`` of shape [n, C, H, W]."""
        parameters = pairs(weights, self._layout)
        outputs = [self._head(parameters, self._features(parameters, x)) for x in images.split(INFERENCE_ROWS)]
        return torch.cat(outputs)

    def _all_features(self, weights: Tensor, images: Tensor) -> Tensor:
        """Return the inputs of the head, shape [n, features], for all normalized ``images``, shape [n, C, H, W]."""
        parameters = pairs(weights, self._layout)
        return torch.cat([self._features(parameters, x) for x in images.split(INFERENCE_ROWS)])

    def _features(self, parameters: LayerPairs, x: Tensor | Foreground) -> Tensor:
        """Return the inputs of the head, shape [n, features], for normalized images ``x``, shape [n, C, H, W]."""
        spec, (convs, layers) = self._network.spec, parameters
        layers = layers[:-1]
        if isinstance(x, Foreground):
            x = x.affine(layers[0]).relu_()
            layers = layers[1:]
        elif isinstance(spec, CnnSettings):
            x = x.contiguous(memory_format=torch.channels_last)
            for (weight, bias), conv in zip(convs, spec.convs, strict=True):
                x = F.max_pool2d(F.conv2d(x, weight, bias, padding=conv.padding), 2).relu_()
        x = x.flatten(1)
        for pair in layers:
            x = affine(x, pair).relu_()
        return x

    def _head(self, parameters: LayerPairs, features: Tensor) -> Tensor:
        """Return the logits, shape [n, classes], for the inputs ``features`` of the head."""
        logits = affine(features, parameters[1][-1])
        return torch.softmax(logits, 1) if self._softmax else logits


def _blocks(epoch: local.Epoch, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield (order, augmentation) for consecutive blocks of ``size`` images of an epoch."""
    for at in range(0, len(epoch.order), size):
        crops = epoch.crops
        if crops is not None:
            crops = crops[at : at + size]
        yield epoch.order[at : at + size], crops
