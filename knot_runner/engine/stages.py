"""Training in stages: run epochs with a commit after each, and select the weights of the best or the last epoch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from knot_runner.engine.commit import Checkpoint
from knot_runner.engine.examples import ClientExamples, InputBatch, batch_count
from knot_runner.engine.federated.cohort import Phase, Recipe
from knot_runner.engine.hardware import all_machines
from knot_runner.engine.requests import OwnTraining, TensorsAndFacts, Train
from knot_runner.engine.seeds import generator, seeded
from knot_runner.engine.tensor_file import Tensors
from knot_runner.engine.training import all_finite, copy_weights, make_optimizer, train
from knot_runner.util.errors import DivergedError

#: (finished steps, all steps, short text) -> None
Report = Callable[[int, int, str], None]


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
        """Return a copy of the weights, which is the result of the training if the current epoch is selected."""
        return copy_weights(self.module)


class StageTraining(Trainee):
    """The training of ``module`` on ``examples`` in a stage. A subclass defines :meth:`losses`.

    Attributes:
        names: Names that, with seed and epoch, seed the batch order and dropout.
        by_examples: See :func:`~knot_runner.engine.training.train`.
    """

    by_examples = True

    def __init__(
        self, request: Train | OwnTraining, module: nn.Module, examples: ClientExamples, report: Report, *names: str
    ) -> None:
        self.request, self.module, self.examples, self.report = request, module, examples, report
        self.names = names
        settings = request.training
        self._recipe = Recipe(
            (Phase(1),), settings.batch_size, False, settings.lr, settings.momentum, settings.weight_decay,
            augment=request.augment, optimizer=settings.optimizer,
        )  # fmt: skip
        self.optimizer = make_optimizer(self._recipe, module, fused_sgd=True)

    def begin(self, epoch: int) -> None:
        """Prepare ``epoch``, counted from 1. Called when ``module`` is in training mode."""

    def losses(self, batch: InputBatch) -> Tensor:
        """Return the loss on ``batch``, a scalar or of shape [m]; see :func:`~knot_runner.engine.training.train`."""
        raise NotImplementedError

    def epoch(self, number: int) -> float:
        """Train epoch ``number``, counted from 1: one pass over the examples. Return the mean loss.

        Raises:
            DivergedError: The loss is not finite.
        """
        request = self.request
        settings = self.request.training
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

    Return the selected model weights and a dict of training facts. The commits are deleted only when the result is in
    the store, so a kill before that time loses no finished epoch.

    With ``keep="best"``, the epoch with the best validation score is selected. If also ``select="loss"``, the initial
    model (epoch 0) is a candidate too, as in KNOT's public code. With ``keep="last"``, the last epoch is selected.
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
