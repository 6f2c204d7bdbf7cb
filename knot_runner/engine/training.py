"""Training by autograd with any network and objective, and forward passes.

:func:`train` is the training loop of federated clients, KNOT's local models, students and mutual learners. Stages use
:func:`train_epochs`, which commits after each epoch and selects the epoch whose weights are returned.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from knot_runner.engine.commit import Checkpoint
from knot_runner.engine.examples import ClientExamples, InputBatch, batch_count
from knot_runner.engine.federated.cohort import Phase, Recipe
from knot_runner.engine.hardware import all_machines, zero_sum
from knot_runner.engine.objectives import LossRows, SampleLoss
from knot_runner.engine.requests import OwnTraining, TensorsAndFacts, Train
from knot_runner.engine.seeds import generator, seeded
from knot_runner.engine.tensor_file import Tensors
from knot_runner.models.layers import TORCH_BATCH_NORMS, BatchNorm
from knot_runner.util.errors import DivergedError

#: (finished steps, all steps, short text) -> None
Report = Callable[[int, int, str], None]


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
        settings: The phases, and how to form batches.
        examples: The training examples.
        losses: Function of a batch that returns a scalar loss, or losses of shape [m] for m models that train together.
            Their sum is minimized; the mean is reported.
        optimizers: The optimizer for each kind of phase (``Phase.trains``).
        order: Random generator for the order of the examples and the augmentation.
        by_examples: Whether batches are weighted by their numbers of examples in the mean loss; otherwise equally.
        ends: Called with the number of steps so far, after each step. Training ends if it returns true.
    """
    total, weights, steps = zero_sum(examples.labels.device), 0, 0
    for phase in settings.phases:
        optimizer = optimizers[phase.trains]
        for _ in range(phase.epochs):
            for batch in examples.epoch(settings.batch_size, order, settings.drop_last, settings.augment):
                loss = losses(batch)
                take_step(optimizer, loss.sum())
                weight = len(batch[0]) if by_examples else 1
                total += loss.detach().mean().to(total.dtype) * weight
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
    """Return the scalar mean of ``loss`` over ``batch``. ``rows`` hold the rows of all examples, not only the batch."""
    positions, inputs = batch
    logits = model(**inputs)
    return loss(logits, cut_rows(rows, positions, logits.device)).mean()


def cut_rows(rows: LossRows, positions: Tensor, device: torch.device) -> LossRows:
    """Return the ``rows`` at the batch's ``positions``, on ``device``."""
    return {name: tensor[positions.to(tensor.device)].to(device, non_blocking=True) for name, tensor in rows.items()}


def make_optimizer(
    recipe: Recipe, module: nn.Module, trains: str = "all", head: str = "", fused_sgd: bool = False
) -> torch.optim.Optimizer:
    """Return an optimizer for the parameters of ``module`` that one kind of phase ``trains``.

    ``head``: the prefix of the names of the head's parameters. ``fused_sgd``: whether SGD may use torch's fused kernel,
    which rounds differently with momentum.
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
    """Set ``module`` to training mode. With ``frozen_statistics``, running statistics do not change."""
    module.train()
    if frozen_statistics:
        for part in module.modules():
            if isinstance(part, (BatchNorm, *TORCH_BATCH_NORMS)):
                part.eval()


def all_finite(loss: float, *tensors: Tensor) -> bool:
    """Return whether the mean loss of a training and all values of ``tensors`` are finite."""
    return math.isfinite(loss) and all(bool(tensor.isfinite().all()) for tensor in tensors)


def gradients_of(value: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return the gradient of ``value`` with respect to each of ``parameters``; zeros for frozen or unused ones."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = iter(torch.autograd.grad(value, trained, materialize_grads=True) if trained else ())
    return [next(gradients) if parameter.requires_grad else torch.zeros_like(parameter) for parameter in parameters]


@torch.no_grad()
def forward_all(
    model: nn.Module,
    examples: ClientExamples,
    size: int,
    call: Callable[..., Tensor] | None = None,
    report: Callable[[int], None] | None = None,
) -> Tensor:
    """Return the output of ``call`` (default: the model), shape [n, ...], for all examples, in evaluation mode.

    ``size``: the batch size; ``report``: called after each batch with the number of finished batches.
    """
    model.eval()
    places, batches = [], []
    for positions, inputs in examples.in_turn(size):
        places.append(positions)
        batches.append((call or model)(**inputs))
        if report is not None:
            report(len(batches))
    outputs = torch.cat(batches)
    return outputs[torch.cat(places).argsort().to(outputs.device)]


class Trainee:
    """A training run in epochs. A subclass defines :meth:`epoch`, which changes only ``module`` and ``optimizer``."""

    module: nn.Module
    optimizer: torch.optim.Optimizer

    def epoch(self, number: int) -> float:
        """Train epoch ``number``, counted from 1, and return its mean loss."""
        raise NotImplementedError

    def score(self, epoch: int) -> float | None:
        """Return the score on held-out examples after ``epoch`` (larger is better); None without such examples."""
        return None

    def weights(self) -> Tensors:
        """Return a copy of the weights to keep."""
        return copy_weights(self.module)


class StageTraining(Trainee):
    """The training of ``module`` on ``examples`` in a stage. A subclass defines :meth:`losses`.

    Attributes:
        names: Names that, with seed and epoch, seed the batch order and dropout.
        by_examples: See :func:`train`.
    """

    by_examples = True

    def __init__(
        self, request: Train | OwnTraining, module: nn.Module, examples: ClientExamples, report: Report, *names: str
    ) -> None:
        self.request, self.module, self.examples, self.report = request, module, examples, report
        self.names, settings = names, request.training
        self._recipe = Recipe(
            (Phase(1),), settings.batch_size, False, settings.lr, settings.momentum, settings.weight_decay,
            augment=request.augment, optimizer=settings.optimizer,
        )  # fmt: skip
        self.optimizer = make_optimizer(self._recipe, module, fused_sgd=True)

    def begin(self, epoch: int) -> None:
        """Prepare ``epoch``, counted from 1. Called when ``module`` is in training mode."""

    def losses(self, batch: InputBatch) -> Tensor:
        """Return the loss on ``batch``, a scalar or of shape [m]; see :func:`train`."""
        raise NotImplementedError

    def epoch(self, number: int) -> float:
        """Train epoch ``number``, counted from 1: one pass over the examples. Return the mean loss.

        Raises:
            DivergedError: The loss is not finite.
        """
        request, settings = self.request, self.request.training
        passed = sum(number > milestone for milestone in settings.milestones)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * settings.decay**passed
        count = batch_count(len(self.examples), settings.batch_size, False)

        def report_step(steps: int) -> None:
            self.report((number - 1) * count + steps, settings.epochs * count, f"epoch {number}")

        order = generator(request.seed, "order", *self.names, number)
        with seeded(request.seed, "dropout", *self.names, number, device=self.examples.labels.device):
            self.module.train()
            self.begin(number)
            loss, _ = train(
                self._recipe, self.examples, self.losses, {"all": self.optimizer}, order,
                by_examples=self.by_examples, ends=report_step,
            )  # fmt: skip
        if not all_finite(loss):
            raise DivergedError(f"{request.stage} {request.party}: loss is not finite in epoch {number}")
        return loss


def train_epochs(
    trainee: Trainee, work: Path, epochs: int, keep: Literal["best", "last"], select: Literal["score", "loss"]
) -> TensorsAndFacts:
    """Train ``epochs`` epochs in folder ``work``, resuming after the last finished epoch.

    Return the selected model weights and a dict of training facts. The commits stay until the result is in the store,
    so that a kill in between loses nothing.

    The epoch with the best validation score is selected. With ``select="loss"``, the untrained start (epoch 0) is also
    a candidate, as in KNOT's public code. With ``keep="last"``, the last epoch is selected.
    """
    checkpoint = Checkpoint(work)
    commit = checkpoint.load()
    if commit.problem:
        print(commit.problem, file=sys.stderr, flush=True)
    best = _restore(commit.tensors, trainee)
    values = dict(commit.values) or {"best_epoch": -1, "best_score": None, "seconds": 0.0}
    if commit.step < 0 and select == "loss":
        score = trainee.score(0)
        if score is not None:
            values.update(best_epoch=0, best_score=score)
            best = trainee.weights()
    values["machines"] = all_machines([values])
    for epoch in range(max(commit.step, 0) + 1, epochs + 1):
        began = time.monotonic()
        row: dict[str, Any] = {"epoch": epoch, "loss": trainee.epoch(epoch)}
        score = trainee.score(epoch)
        if score is not None:
            row["valid"] = score
        if keep == "last" or values["best_score"] is None or score > values["best_score"]:
            best = trainee.weights()
            values.update(best_epoch=epoch, best_score=score)
        seconds = time.monotonic() - began
        values["seconds"] += seconds
        row["seconds"] = round(seconds, 3)
        checkpoint.save(epoch, _flatten(trainee, best if values["best_epoch"] != epoch else None), values, [row])
    facts = {name: values[name] for name in ("seconds", "machines", "best_epoch", "best_score")}
    return best, {"epochs": checkpoint.log(), "select": select, "kept": keep, **facts}


def copy_weights(module: nn.Module) -> Tensors:
    """Return a copy of all tensors of ``module``."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def _flatten(trainee: Trainee, best: Tensors | None) -> Tensors:
    """Return the tensors to commit. ``best`` is None if the current weights are the best."""
    tensors = {f"model.{name}": tensor for name, tensor in trainee.module.state_dict().items()}
    for index, state in trainee.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": torch.as_tensor(v) for k, v in state.items() if v is not None}
    if best is not None:
        tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    return tensors


def _restore(tensors: Tensors, trainee: Trainee) -> Tensors:
    """Restore ``trainee`` from the result of :func:`_flatten`; return the best weights (empty without a commit)."""
    if not tensors:
        return {}
    trainee.module.load_state_dict(_below(tensors, "model."))
    state: dict[int, Tensors] = {}
    for name, tensor in _below(tensors, "optimizer.").items():
        index, key = name.split(".")
        state.setdefault(int(index), {})[key] = tensor
    trainee.optimizer.load_state_dict({"state": state, "param_groups": trainee.optimizer.state_dict()["param_groups"]})
    return _below(tensors, "best.") or trainee.weights()


def _below(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors whose names begin with ``prefix``, under the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
