"""The reference engine: a plain loop over clients that uses modules, autograd and ``torch.optim``.

The results of the other engines are compared with the results of this engine.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knot_runner.engine.examples import ClientData, forward_all
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import (
    INFERENCE_ROWS,
    ClientModel,
    Inference,
    LocalResult,
    LocalTraining,
    Trained,
)
from knot_runner.engine.objectives import SampleLoss
from knot_runner.engine.seeds import seeded
from knot_runner.engine.training import LocalWork, all_finite
from knot_runner.models.network import Network, build_network
from knot_runner.models.taps import feature_reader
from knot_runner.util.errors import UserError


class Loop:
    """An engine that trains one client after another on ``device``. It supports every network and objective.

    ``data``: the training examples of all clients. ``test``: the test examples of all clients.
    """

    name = "loop"

    def __init__(
        self, network: Network, data: ClientData, test: ClientData, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.network = network
        self.layout = flat.layout_of(network)
        self.device = device
        self.dtype = dtype
        self.data = data.to(device)
        self.test = test.to(device)
        self.model = _build(network, device, dtype)
        self.head = self.model.get_submodule(self.layout.head.removesuffix("."))
        self.read: Tensor | None = None  # last input of the head, if an objective reads features

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """Train every client of ``cohort``; return the results in the order of ``cohort`` (:meth:`Engine.train`)."""
        return [self.train_client(request) for request in cohort]

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Return the logits or features of every request, in order (:meth:`Engine.logits`)."""
        return [self.infer(request) for request in requests]

    def close(self) -> None:
        """Do nothing. This engine has no worker processes to end."""

    def train_client(self, request: LocalTraining, weights: Tensor | None = None) -> Trained:
        """Train one client as ``request`` describes; return the result.

        The client's model is evaluated on test examples before and after training. The argument ``weights`` is ignored.
        """
        before = self.correct(request.test_rows, request.start)
        work = LocalWork(self, request)
        program = request.program
        with seeded(request.seed, "dropout", request.round, request.client, device=self.device):
            result = LocalResult(*work.train()) if program is None else program.run(program.settings, work)
        if not isinstance(result, LocalResult):
            raise UserError(f"{program.run.__name__}() returned {type(result).__name__} instead of a LocalResult")
        weights, buffers = flat.flat_vectors(self.model)
        after = self.correct(request.test_rows)
        return Trained(
            request.client, weights.cpu(), buffers.cpu(), result.steps, result.loss, before, after,
            finite=all_finite(result.loss, weights, *result.kept.values()),
            kept={name: tensor.cpu() for name, tensor in result.kept.items()},
        )  # fmt: skip

    def infer(self, request: Inference) -> Tensor:
        """Return the logits or features of one request, on the CPU (:meth:`Engine.logits`)."""
        self._load(request.model)
        data = self.test if request.split == "test" else self.data
        call = feature_reader(self.model, self.network) if request.output == "features" else None
        return forward_all(self.model, data.select(request.rows, self.dtype), INFERENCE_ROWS, call).cpu()

    def features(self, model: ClientModel, rows: Tensor) -> Tensor:
        """Return the features of training examples under ``model``, shape [n, H].

        ``rows``: the row numbers of the examples. Features are the inputs of the last layer. The engine's
        model has the same weights before and after the call.
        """
        current = ClientModel(*flat.flat_vectors(self.model))
        outputs = self.infer(Inference(model, rows, "train", output="features"))
        self._load(current)
        return outputs.to(self.device)

    def reading_features(self, loss: SampleLoss) -> SampleLoss:
        """Return the function ``(logits, rows) -> loss(logits, rows, features)``.

        ``features``: the head's inputs in the latest forward pass of the engine's model or of a copy of this model.
        """

        def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self.read = inputs[0]

        if self.read is None:
            self.head.register_forward_pre_hook(keep)
        # plus 0, so that a loss that reads only features gives the head a gradient, as in the other engines
        return lambda logits, batch: loss(logits, batch, self.read) + 0 * logits.sum(1)

    def correct(self, rows: Tensor, model: ClientModel | None = None) -> int:
        """Return the number of correct predictions on the test examples with the row numbers ``rows``.

        ``model``: the model to load and evaluate. If it is None, the model that is already loaded is evaluated.
        """
        if model is not None:
            self._load(model)
        if not len(rows):
            return 0
        examples = self.test.select(rows, self.dtype)
        return int((forward_all(self.model, examples, INFERENCE_ROWS).argmax(1) == examples.labels).sum())

    def _load(self, model: ClientModel) -> None:
        flat.load_flat(self.model, model.weights.to(self.device), model.buffers.to(self.device))


def _build(network: Network, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Return the module. The package's own image models are not initialized, because every request provides weights."""
    if not network.is_ours:
        with seeded(0, "unused"):
            return build_network(network).to(device, dtype)
    with torch.device("meta"):
        model = build_network(network)
    return model.to(dtype).to_empty(device=device)
