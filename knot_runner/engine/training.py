"""Training with autograd: the loop over epochs and batches, and the local training of one federated client.

:func:`train` is the loop, which is also used by training in stages (:mod:`knot_runner.engine.stages`).
:class:`LocalWork` is the local training of one client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from knot_runner.engine.examples import ClientExamples, InputBatch, forward_all
from knot_runner.engine.federated import flat, local
from knot_runner.engine.federated.cohort import INFERENCE_ROWS, LocalTraining, Recipe
from knot_runner.engine.objectives import LossRows, ObjectiveInputs, SampleLoss, make_loss
from knot_runner.engine.tensor_file import Tensors
from knot_runner.models.layers import TORCH_BATCH_NORMS, BatchNorm
from knot_runner.models.taps import feature_reader

if TYPE_CHECKING:
    from knot_runner.engine.federated.loop import Loop


def train(
    settings: Recipe,
    examples: ClientExamples,
    losses: Callable[[InputBatch], Tensor],
    optimizers: Mapping[str, torch.optim.Optimizer],
    order: torch.Generator,
    *,
    by_examples: bool = False,
    ends: Callable[[int], bool | None] | None = None,
) -> tuple[float, int]:
    """Train on ``examples``, epoch by epoch; return the mean loss and the number of steps.

    Args:
        settings: The phases of the training, the batch size and the augmentation.
        examples: The training examples.
        losses: Function that returns the loss of a batch, a scalar. If m models train together, it returns one loss per
            model, shape [m]. Each step then minimizes the sum of these losses. The returned mean loss is the average
            over batches and models.
        optimizers: The optimizers. Each key names the parameters to train: "all", "head" or "body" (:class:`Phase`).
        order: Random generator for the augmentation, and for the order of the examples.
        by_examples: Whether a batch's weight in the mean loss is its number of examples. If false, all batches have
            equal weights.
        ends: Function of the number of steps so far. It is called after each step. Training ends when it returns true.
    """
    total = torch.zeros((), dtype=torch.float64, device=examples.labels.device)
    weights = 0
    steps = 0
    for phase in settings.phases:
        optimizer = optimizers[phase.trains]
        for _ in range(phase.epochs):
            for batch in examples.epoch(settings.batch_size, order, settings.drop_last, settings.augment):
                loss = losses(batch)
                take_step(optimizer, loss.sum())
                weight = len(batch[0]) if by_examples else 1
                total += loss.detach().mean().double() * weight
                weights += weight
                steps += 1
                if ends is not None and ends(steps):
                    return float(total) / max(weights, 1), steps
    return float(total) / max(weights, 1), steps


def take_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one optimizer step on the scalar ``loss``."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def mean_loss(model: nn.Module, batch: InputBatch, loss: SampleLoss, rows: LossRows) -> Tensor:
    """Return the mean of ``loss`` over the examples in ``batch``.

    ``rows``: the inputs of ``loss`` for all training examples, with one row per example.
    """
    positions, inputs = batch
    logits = model(**inputs)
    return loss(logits, cut_rows(rows, positions, logits.device)).mean()


def cut_rows(rows: LossRows, positions: Tensor, device: torch.device) -> LossRows:
    """Return the rows of one batch, on ``device``. ``positions``: the positions of the batch's examples in ``rows``."""
    return {name: tensor[positions.to(tensor.device)].to(device, non_blocking=True) for name, tensor in rows.items()}


def make_optimizer(
    recipe: Recipe, module: nn.Module, trains: str = "all", head: str = "", fused_sgd: bool = False
) -> torch.optim.Optimizer:
    """Return an optimizer for parameters of ``module``, with the settings in ``recipe``.

    ``trains``: the parameters to train: "all", "head", or "body" (all except the head). ``head``: the prefix of the
    names of the head's parameters. ``fused_sgd``: whether SGD uses torch's fused kernel. With momentum, the
    rounding errors of the fused kernel differ from those of the default kernel.
    """
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and (trains == "all" or name.startswith(head) == (trains == "head")):
            is_exempt = name.endswith("bias") and not recipe.decay_biases
            groups[is_exempt]["params"].append(parameter)
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay, fused=fused_sgd)
    return torch.optim.AdamW(groups, recipe.lr, weight_decay=recipe.weight_decay, fused=True)


def train_mode(module: nn.Module, frozen_statistics: bool) -> None:
    """Set ``module`` to training mode. With ``frozen_statistics``, batch normalization stays in evaluation mode."""
    module.train()
    if frozen_statistics:
        for part in module.modules():
            if isinstance(part, (BatchNorm, *TORCH_BATCH_NORMS)):
                part.eval()


def all_finite(loss: float, *tensors: Tensor) -> bool:
    """Return whether the mean training loss ``loss`` and all values of ``tensors`` are finite."""
    return math.isfinite(loss) and all(bool(tensor.isfinite().all()) for tensor in tensors)


def gradients_of(value: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return the gradients of ``value`` with respect to ``parameters``.

    The gradient of a frozen or unused parameter consists of zeros.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = iter(torch.autograd.grad(value, trained, materialize_grads=True) if trained else ())
    return [next(gradients) if parameter.requires_grad else torch.zeros_like(parameter) for parameter in parameters]


def copy_weights(module: nn.Module) -> Tensors:
    """Return copies of the parameters and buffers of ``module`` by name."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


class LocalWork:
    """The local training of one client with autograd. A :class:`LocalProgram` receives this object as ``work``.

    Attributes:
        request: The client's request.
        model: The client's model. It starts with the weights and buffers in ``request.start``. Its final state is the
            client's result.
        layout: The positions of the model's parameters in the flat vector of weights.
        examples: The client's training examples, without the held-out examples.
    """

    def __init__(self, engine: Loop, request: LocalTraining) -> None:
        self._engine, self.request, self.model, self.layout = engine, request, engine.model, engine.layout
        self.examples = self.select(request.rows[: len(request.rows) - request.held])

    @cached_property
    def tensors(self) -> Tensors:
        """Return the tensors of the request's local program (``LocalProgram.tensors``), on the model's device."""
        if self.request.program is None:
            return {}
        return {name: tensor.to(self._engine.device) for name, tensor in self.request.program.tensors.items()}

    def train(
        self, module: nn.Module | None = None, losses: Callable[[InputBatch], Tensor] | None = None
    ) -> tuple[float, int]:
        """Train for all epochs of the request, from the current weights; return the mean loss and the number of steps.

        Args:
            module: The module to train. The default is the client's model. Other modules usually contain this model.
            losses: Function that returns the scalar loss of a batch. If given, the objective, the proximal term, the
                control variate and the early stopping of the request are not used.
        """
        request = self.request
        recipe = self.request.recipe
        held_loss = None
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
        """Return the training examples with the row numbers ``rows``."""
        return self._engine.data.select(rows, self._engine.dtype)

    def objective(self) -> tuple[LossRows, SampleLoss]:
        """Return the inputs (one row per example) and the loss function of the request's objective.

        Call this method before training. The objective's ``start_logits`` are the logits of ``model`` at the time of
        this call.
        """
        engine = self._engine
        request = self.request
        objective = self.request.objective
        labels = self.select(request.rows).labels
        tensors = {name: tensor.to(engine.device) for name, tensor in request.inputs.items()}
        head = engine.head if objective.reads_head else None
        start_logits = partial(forward_all, self.model, self.examples, INFERENCE_ROWS)
        rows, loss = make_loss(objective, ObjectiveInputs(labels, tensors, start_logits, head, self._features))
        if objective.reads_features:
            loss = engine.reading_features(loss)
        return rows, loss

    def _features(self, name: str) -> Tensor:
        return self._engine.features(self.request.model_of(name), self.request.rows)

    def batches(self) -> Iterator[InputBatch]:
        """Yield the batches of all epochs of the request. Training without a local program uses the same batches."""
        recipe = self.request.recipe
        order = local.local_draws(self.request)
        for _ in range(recipe.epochs):
            yield from self.examples.epoch(recipe.batch_size, order, recipe.drop_last, recipe.augment)

    def optimizer(self, module: nn.Module, trains: str = "all") -> torch.optim.Optimizer:
        """Return a new optimizer for parameters of ``module``, with the request's settings.

        ``trains``: the parameters to train: "all", "head", or "body" (all except the head).
        """
        return make_optimizer(self.request.recipe, module, trains, self.layout.head)

    def train_mode(self, module: nn.Module) -> None:
        """Set ``module`` to training mode. Running statistics stay unchanged if the request freezes them."""
        train_mode(module, self.request.recipe.frozen_statistics)

    def _add_server_terms(self, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        """Add the control variate and the gradient of ``proximal / 2 * ||w - w_start||^2`` (Li et al. 2020, eq. 2)."""
        engine = self._engine
        proximal = self.request.recipe.proximal
        control = self.request.control
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
        request = self.request
        engine = self._engine
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

    ``held_loss()`` returns the loss on held-out examples, and is also called before the first step and after the last
    step. Without ``held_loss``, there is no early stopping.
    """

    def __init__(
        self, work: LocalWork, optimizers: dict[str, torch.optim.Optimizer], held_loss: Callable[[], float] | None
    ) -> None:
        self._model = work.model
        self._recipe = work.request.recipe
        self._optimizers = optimizers
        self._steps = local.steps(self._recipe, len(work.examples))
        self._loss = held_loss
        self._best = math.inf
        self._best_step = 0
        self._kept: Tensors = {}
        if held_loss is not None:
            self._check(0, held_loss())

    def ends(self, step: int) -> bool:
        """Set the learning rate of the next step, and return whether training ends after ``step`` steps.

        If training ends, restore the weights with the lowest held-out loss. With ``cosine``, the learning rate of step
        t, counted from 0, is ``lr * (1 + cos(pi * t / T)) / 2``, where T is the maximum number of steps.
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
            self._best = loss
            self._best_step = step
            self._kept = copy_weights(self._model)
