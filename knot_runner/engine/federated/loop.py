"""The plain loop over clients: modules, autograd and ``torch.optim``. It is the reference for the other engines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from knot_runner.engine.examples import ClientData, ClientExamples, InputBatch
from knot_runner.engine.federated import flat, local
from knot_runner.engine.federated.cohort import (
    INFERENCE_ROWS,
    ClientModel,
    Inference,
    LocalResult,
    LocalTraining,
    Trained,
)
from knot_runner.engine.hardware import on_device
from knot_runner.engine.objectives import LossRows, ObjectiveInputs, SampleLoss, make_loss
from knot_runner.engine.seeds import seeded
from knot_runner.engine.tensor_file import Tensors
from knot_runner.engine.training import (
    all_finite,
    copy_weights,
    cut_rows,
    forward_all,
    make_optimizer,
    mean_loss,
    train,
    train_mode,
)
from knot_runner.models.network import Network, build_network
from knot_runner.models.taps import feature_reader
from knot_runner.util.errors import UserError


class Loop:
    """An engine that trains one client after another on ``device``, with any network and objective.

    ``data``, ``test``: the examples of all clients.
    """

    name = "loop"

    def __init__(
        self, network: Network, data: ClientData, test: ClientData, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.network, self.layout = network, flat.layout_of(network)
        self.device, self.dtype = device, dtype
        self.data, self.test = data.to(device), test.to(device)
        self.model = _build(network, device, dtype)
        self.head = self.model.get_submodule(self.layout.head.removesuffix("."))
        self.read: Tensor | None = None  # last input of the head, if an objective reads features

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """Implement :meth:`Engine.train`."""
        return [self.train_client(request) for request in cohort]

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Implement :meth:`Engine.logits`."""
        return [self.infer(request) for request in requests]

    def close(self) -> None:
        """Do nothing, because there is nothing to free."""

    def train_client(self, request: LocalTraining, weights: Tensor | None = None) -> Trained:
        """Train one client, starting from the request's model, by the request's settings or program.

        The model is evaluated before and after training. ``weights``: not used; the result has its own memory.
        """
        before = self.correct(request.test_rows, request.start)
        work, program = LocalWork(self, request), request.program
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
        """Return the logits or features of one request; see :meth:`Engine.logits`."""
        self._load(request.model)
        data = self.test if request.split == "test" else self.data
        call = feature_reader(self.model, self.network) if request.output == "features" else None
        return forward_all(self.model, data.select(request.rows, self.dtype), INFERENCE_ROWS, call).cpu()

    def features(self, model: ClientModel, rows: Tensor) -> Tensor:
        """Return the features of ``model``, shape [n, H], for the training examples at ``rows``.

        The weights of the engine's module are the same before and after the call.
        """
        current = ClientModel(*flat.flat_vectors(self.model))
        outputs = self.infer(Inference(model, rows, "train", output="features"))
        self._load(current)
        return outputs.to(self.device)

    def reading_features(self, loss: SampleLoss) -> SampleLoss:
        """Return a function of the logits that computes ``loss``, a loss that reads logits and features.

        After this call, each forward pass of the model, or of a copy of the model, stores the input of the head.
        """

        def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self.read = inputs[0]

        if self.read is None:
            self.head.register_forward_pre_hook(keep)
        # plus 0, so that a loss that reads only features gives the head a gradient, as in the other engines
        return lambda logits, batch: loss(logits, batch, self.read) + 0 * logits.sum(1)

    def correct(self, rows: Tensor, model: ClientModel | None = None) -> int:
        """Return the number of test examples at ``rows`` that the model classifies correctly.

        If ``model`` is given, its weights are loaded first. Otherwise the current weights are used.
        """
        if model is not None:
            self._load(model)
        if not len(rows):
            return 0
        examples = self.test.select(rows, self.dtype)
        return int((forward_all(self.model, examples, INFERENCE_ROWS).argmax(1) == examples.labels).sum())

    def _load(self, model: ClientModel) -> None:
        flat.load_flat(self.model, model.weights.to(self.device), model.buffers.to(self.device))


class LocalWork:
    """One client's local training in the plain loop, and the interface that a :class:`LocalProgram` uses.

    Attributes:
        request: The client's request.
        model: The module, which begins with the request's weights and buffers. Its final state is the client's result.
        layout: The positions of the model's parameters in flat vectors.
        examples: The client's training examples, without the held-out ones.
    """

    def __init__(self, engine: Loop, request: LocalTraining) -> None:
        self._engine, self.request, self.model, self.layout = engine, request, engine.model, engine.layout
        self.examples = self.select(request.rows[: len(request.rows) - request.held])

    @cached_property
    def tensors(self) -> Tensors:
        """Return the program's tensors, on the module's device."""
        tensors = {} if self.request.program is None else self.request.program.tensors
        return {name: on_device(tensor, self._engine.device) for name, tensor in tensors.items()}

    def train(
        self, module: nn.Module | None = None, losses: Callable[[InputBatch], Tensor] | None = None
    ) -> tuple[float, int]:
        """Take all steps of the request from the current weights; return (mean loss over all steps, steps).

        ``module``: a module to train instead of the client's model. ``losses(batch)``: a scalar loss to minimize
        instead of the objective. With either argument, there is no proximal term, control variate or early stopping.
        """
        request, recipe, held_loss = self.request, self.request.recipe, None
        optimizers = {phase.trains: self.optimizer(module or self.model, phase.trains) for phase in recipe.phases}
        if losses is None:
            rows, loss = self.objective()
            losses = partial(mean_loss, self.model, loss=loss, rows=rows)
            if request.control is not None or recipe.proximal:
                self._add_server_terms(optimizers)
            if request.held:
                held_loss = partial(self._held_loss, rows, loss)
        ends = None
        if recipe.cosine or held_loss is not None:
            ends = _Schedule(self, optimizers, held_loss).ends
        self.train_mode(self.model)
        return train(recipe, self.examples, losses, optimizers, local.local_draws(request), ends=ends)

    def select(self, rows: Tensor) -> ClientExamples:
        """Return the training examples at ``rows`` [n]."""
        return self._engine.data.select(rows, self._engine.dtype)

    def objective(self) -> tuple[LossRows, SampleLoss]:
        """Return the rows and loss of the request's objective; its initial logits are those of the current model."""
        engine, request, objective = self._engine, self.request, self.request.objective
        labels = self.select(request.rows).labels
        tensors = {name: tensor.to(engine.device) for name, tensor in request.inputs.items()}
        head = engine.head if objective.reads_head else None
        rows, loss = make_loss(objective, ObjectiveInputs(labels, tensors, self._start_logits, head, self._features))
        if objective.reads_features:
            loss = engine.reading_features(loss)
        return rows, loss

    def _start_logits(self) -> Tensor:
        return forward_all(self.model, self.examples, INFERENCE_ROWS)

    def _features(self, name: str) -> Tensor:
        return self._engine.features(self.request.model_of(name), self.request.rows)

    def batches(self) -> Iterator[InputBatch]:
        """Yield the batches of all epochs, which are the same as without a :class:`LocalProgram`."""
        recipe, order = self.request.recipe, local.local_draws(self.request)
        for _ in range(sum(phase.epochs for phase in recipe.phases)):
            yield from self.examples.epoch(recipe.batch_size, order, recipe.drop_last, recipe.augment)

    def optimizer(self, module: nn.Module, trains: str = "all") -> torch.optim.Optimizer:
        """Return a new optimizer with the settings of the request for the parameters ``trains`` of ``module``."""
        return make_optimizer(self.request.recipe, module, trains, self.layout.head)

    def train_mode(self, module: nn.Module) -> None:
        """Set ``module`` to training mode. If running statistics are frozen, forward passes do not change them."""
        train_mode(module, self.request.recipe.frozen_statistics)

    def _add_server_terms(self, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        """Add the gradient of (proximal / 2) || w - w_start ||^2 (Li et al. 2020, eq. 2) and the control variate."""
        engine, proximal, control = self._engine, self.request.recipe.proximal, self.request.control
        origins = [parameter.detach().clone() for parameter in self.model.parameters()]
        controls: list[Tensor] = []
        if control is not None:
            named = flat.views(control.to(engine.device, engine.dtype), self.layout.parameters)
            controls = list(named.values())

        def add(*_: object) -> None:
            for number, parameter in enumerate(self.model.parameters()):
                if parameter.grad is not None and proximal:
                    parameter.grad += proximal * (parameter.detach() - origins[number])
                if parameter.grad is not None and controls:
                    parameter.grad += controls[number]

        for optimizer in optimizers.values():
            optimizer.register_step_pre_hook(add)

    def _held_loss(self, rows: LossRows, loss: SampleLoss) -> float:
        """Return the mean loss of the held-out examples, which are the last rows of the request."""
        request, engine = self.request, self._engine
        places = torch.arange(len(request.rows))[-request.held :]
        held_out = self.select(request.rows[-request.held :])
        logits = forward_all(self.model, held_out, INFERENCE_ROWS)
        if request.objective.reads_features:
            engine.read = forward_all(self.model, held_out, INFERENCE_ROWS, feature_reader(self.model, engine.network))
        value = loss(logits, cut_rows(rows, places, engine.device)).mean()
        self.train_mode(self.model)
        return float(value)


class _Schedule:
    """The learning rates of ``optimizers`` over the steps of ``work``, and early stopping.

    ``held_loss()``, if given, returns the loss of held-out examples. It is also called before the first step and after
    the last step.
    """

    def __init__(
        self, work: LocalWork, optimizers: dict[str, torch.optim.Optimizer], held_loss: Callable[[], float] | None
    ) -> None:
        self._model, self._recipe, self._optimizers = work.model, work.request.recipe, optimizers
        self._steps = local.steps(self._recipe, len(work.examples))
        self._loss, self._best, self._best_step = held_loss, math.inf, 0
        self._kept: Tensors = {}
        if held_loss is not None:
            self._check(0, held_loss())

    def ends(self, step: int) -> bool:
        """Set the learning rate of the next step, and return whether training ends after ``step`` steps.

        If training ends, restore the model with the lowest held-out loss. With ``cosine``, the learning rate of step t,
        counted from 0, is lr (1 + cos(pi t / T)) / 2, where T is the maximum number of steps.
        """
        if self._recipe.cosine:
            for optimizer in self._optimizers.values():
                for group in optimizer.param_groups:
                    group["lr"] = self._recipe.lr * (1 + math.cos(math.pi * step / self._steps)) / 2
        is_last = step == self._steps
        if self._loss is None or (step % self._recipe.check and not is_last):
            return False
        self._check(step, self._loss())
        if step - self._best_step < self._recipe.patience and not is_last:
            return False
        self._model.load_state_dict(self._kept)
        return True

    def _check(self, step: int, loss: float) -> None:
        if loss < self._best:
            self._best, self._best_step = loss, step
            self._kept = copy_weights(self._model)


def _build(network: Network, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Return the module. The package's own image models are not initialized, because every request provides weights."""
    if not network.is_ours:
        with seeded(0, "unused"):
            return build_network(network).to(device, dtype)
    with torch.device("meta"):
        model = build_network(network)
    return model.to(dtype).to_empty(device=device)
