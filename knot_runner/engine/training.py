"""Training by autograd with any network and objective: steps, epochs, and forward passes over many examples.

Epoch training survives a kill: it commits after each epoch. It also selects the epoch whose weights are returned.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from knot_runner.config.settings.groups import StageSettings
from knot_runner.engine.commit import Checkpoint
from knot_runner.engine.examples import ClientExamples, InputBatch, batch_count
from knot_runner.engine.federated.cohort import Recipe
from knot_runner.engine.hardware import all_machines, zero_sum
from knot_runner.engine.objectives import LossRows, SampleLoss
from knot_runner.engine.requests import OwnTraining, TensorsAndFacts, Train
from knot_runner.engine.seeds import generator, keyed
from knot_runner.engine.tensor_file import Tensors
from knot_runner.util.errors import DivergedError

Batch = TypeVar("Batch")


def take_steps(
    batches: Iterable[Batch], step: Callable[[Batch], tuple[Tensor, int]], device: torch.device,
    ends: Callable[[int], bool | None] | None = None,
) -> tuple[float, int]:  # fmt: skip
    """Apply ``step`` to each of ``batches``; return the mean loss and the number of steps. All training uses this loop.

    ``step(batch)`` returns the loss [] on ``device`` and its weight in the mean. ``ends(steps so far)`` is called after
    each step and returns whether training ends.
    """
    total, weights, steps = zero_sum(device), 0, 0
    for batch in batches:
        loss, weight = step(batch)
        total += loss.to(total.dtype) * weight
        weights, steps = weights + weight, steps + 1
        if ends is not None and ends(steps):
            break
    return float(total) / max(weights, 1), steps


def train_batch(
    model: nn.Module,
    batch: InputBatch,
    loss: SampleLoss,
    rows: LossRows,
    optimizer: torch.optim.Optimizer,
    penalty: Callable[[], Tensor] | None = None,
    before_step: Callable[[], None] | None = None,
) -> Tensor:
    """Take one optimizer step on the mean of ``loss`` over a batch plus ``penalty()``; return the mean.

    The returned mean excludes the penalty and is on the device. ``rows`` cover all examples, and the batch's positions
    index them. ``before_step`` is called before the optimizer's step and may read or change the gradients.
    """
    positions, inputs = batch
    logits = model(**inputs)
    value = loss(logits, cut_rows(rows, positions, logits.device)).mean()
    optimizer.zero_grad(set_to_none=True)
    (value if penalty is None else value + penalty()).backward()
    if before_step is not None:
        before_step()
    optimizer.step()
    return value.detach()


def cut_rows(rows: LossRows, positions: Tensor, device: torch.device) -> LossRows:
    """Return the ``rows`` at the batch's ``positions``, on ``device``."""
    return {name: tensor[positions.to(tensor.device)].to(device, non_blocking=True) for name, tensor in rows.items()}


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
    """Return the output of ``call`` (default: the model) for every example, [n, ...], in order, in evaluation mode.

    ``size``: the batch size; ``report`` receives the number of finished batches.
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


def train_epoch(
    request: Train | OwnTraining,
    number: int,
    module: nn.Module,
    examples: ClientExamples,
    begin: Callable[[], Callable[[InputBatch], tuple[Tensor, int]]],
    report: Callable[[int, int, str], None],
    *names: str,
) -> float:
    """Train epoch ``number``, counted from 1, and return its mean loss.

    An epoch is one pass over ``examples``. The order and dropout are keyed by (seed, *names, number).

    ``begin()`` is called after ``module`` is set to training mode. It returns the step: a function from a batch to its
    loss [] and its weight in the mean. ``report(finished steps, all steps, text)`` reports the progress of the whole
    training.

    Raises:
        DivergedError: The loss is not finite.
    """
    size = request.training.batch_size
    torch.manual_seed(keyed(request.seed, "dropout", *names, number))
    order = generator(request.seed, "order", *names, number)
    module.train()
    count = batch_count(len(examples), size, False)

    def report_step(steps: int) -> None:
        report((number - 1) * count + steps, request.training.epochs * count, f"epoch {number}")

    batches = examples.epoch(size, order, drop_last=False, augment=request.augment)
    loss, _ = take_steps(batches, begin(), examples.labels.device, report_step)
    if not math.isfinite(loss):
        raise DivergedError(f"{request.stage} {request.party}: loss is not finite in epoch {number}")
    return loss


@dataclass(frozen=True)
class Trainee:
    """A training whose epochs change only ``module`` and ``optimizer``.

    ``epoch(number)`` trains one epoch, counted from 1, and returns its mean loss. ``score(number)`` scores the module
    on held-out examples (larger is better); None without held-out examples. Both raise
    :class:`~knot_runner.util.errors.DivergedError` if training diverged. ``weights()`` returns a copy of the weights to
    keep.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    epoch: Callable[[int], float]
    score: Callable[[int], float] | None
    weights: Callable[[], Tensors]


def make_optimizer(
    settings: StageSettings | Recipe, parameters: list[nn.Parameter] | list[dict[str, Any]], fused_sgd: bool = True
) -> torch.optim.Optimizer:
    """Return the optimizer for ``parameters``, or for parameter groups with their own settings.

    ``fused_sgd``: whether SGD may use torch's fused kernel, which rounds differently with momentum.
    """
    lr, decay = settings.lr, settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=settings.momentum, weight_decay=decay, fused=fused_sgd)
    return torch.optim.AdamW(parameters, lr, weight_decay=decay, fused=True)


def set_rate(settings: StageSettings, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Set the learning rate of ``epoch``, counted from 1. The rate is multiplied by ``decay`` after each milestone."""
    passed = sum(epoch > milestone for milestone in settings.milestones)
    for group in optimizer.param_groups:
        group["lr"] = settings.lr * settings.decay**passed


def train_epochs(
    trainee: Trainee, work: Path, settings: StageSettings, select: Literal["score", "loss"]
) -> TensorsAndFacts:
    """Train in folder ``work``, resuming after the last finished epoch.

    Return the selected model weights and a dict of training facts. The commits stay until the result is in the store,
    so that a kill in between loses nothing.

    The epoch with the best validation score is selected. With ``select="loss"``, the untrained start (epoch 0) is also
    a candidate, as in KNOT's public code. With ``settings.select="last"``, the last epoch is selected.
    """
    checkpoint = Checkpoint(work)
    commit = checkpoint.load()
    if commit.problem:
        print(commit.problem, file=sys.stderr, flush=True)
    best = _restore(commit.tensors, trainee)
    values = dict(commit.values) or {"best_epoch": -1, "best_score": None, "seconds": 0.0}
    if commit.step < 0 and select == "loss" and trainee.score is not None:
        values.update(best_epoch=0, best_score=trainee.score(0))
        best = trainee.weights()
    values["machines"] = all_machines([values])
    for epoch in range(max(commit.step, 0) + 1, settings.epochs + 1):
        began = time.monotonic()
        set_rate(settings, trainee.optimizer, epoch)
        loss = trainee.epoch(epoch)
        score = None if trainee.score is None else trainee.score(epoch)
        if settings.select == "last" or values["best_score"] is None or score > values["best_score"]:
            best = trainee.weights()
            values.update(best_epoch=epoch, best_score=score)
        values["seconds"] += time.monotonic() - began
        scored = {} if score is None else {"valid": score}
        row = {"epoch": epoch, "loss": loss, **scored, "seconds": round(time.monotonic() - began, 3)}
        checkpoint.save(epoch, _flatten(trainee, best if values["best_epoch"] != epoch else None), values, [row])
    facts = {
        "epochs": checkpoint.log(),
        "seconds": values["seconds"],
        "machines": values["machines"],
        "select": select,
        "kept": settings.select,
    }
    return best, facts | {"best_epoch": values["best_epoch"], "best_score": values["best_score"]}


def copy_weights(module: nn.Module) -> Tensors:
    """Return a copy of all tensors of ``module``."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def _flatten(trainee: Trainee, best: Tensors | None) -> Tensors:
    """Return the tensors to commit. ``best`` is None if the current weights are the best."""
    tensors = {f"model.{name}": tensor for name, tensor in trainee.module.state_dict().items()}
    kind = _kind(trainee.optimizer)
    for index, state in trainee.optimizer.state_dict()["state"].items():
        tensors |= {f"{kind}.{index}.{k}": torch.as_tensor(v) for k, v in state.items() if v is not None}
    if best is not None:
        tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    return tensors


def _restore(tensors: Tensors, trainee: Trainee) -> Tensors:
    """Restore ``trainee`` from the result of :func:`_flatten`; return the best weights (empty without a commit)."""
    if not tensors:
        return {}
    kind = _kind(trainee.optimizer)
    groups: dict[str, Tensors] = {"model": {}, kind: {}, "best": {}}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        groups[group][rest] = tensor
    trainee.module.load_state_dict(groups["model"])
    state: dict[int, Tensors] = {}
    for name, tensor in groups[kind].items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    trainee.optimizer.load_state_dict({"state": state, "param_groups": trainee.optimizer.state_dict()["param_groups"]})
    return groups["best"] or trainee.weights()


def _kind(optimizer: torch.optim.Optimizer) -> str:
    return type(optimizer).__name__.lower()
