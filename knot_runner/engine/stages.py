"""Training in stages: commit the state after every epoch, and select the weights of the best or the last epoch.

A stage is one part of a run, such as the training of a local model or a distillation. A commit is a saved state from
which an interrupted stage resumes.
"""

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
    """Base class of objects that :func:`train_epochs` trains.

    A subclass defines :meth:`epoch`. This method may change only ``module`` and ``optimizer``, because no other
    state of the object is saved after an epoch.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer

    def epoch(self, number: int) -> float:
        """Train for one epoch and return the mean loss. ``number``: the epoch, counted from 1."""
        raise NotImplementedError

    def score(self, epoch: int) -> float | None:
        """Return the validation score after ``epoch`` (larger is better), or None without validation examples."""
        return None

    def weights(self) -> Tensors:
        """Return a copy of the current weights. :func:`train_epochs` returns the copy of the selected epoch."""
        return copy_weights(self.module)


class StageTraining(Trainee):
    """Training of ``module`` on ``examples`` in a stage. A subclass defines the loss in the method :meth:`losses`.

    Attributes:
        names: Names, such as the stage and the party, that distinguish the random seeds of this training from those of
            the run's other trainings.
        by_examples: Whether a batch's weight in the mean loss is its number of examples. If false, all batches have
            equal weights.
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
        """Prepare for ``epoch``, counted from 1. ``module`` is already in training mode. The default does nothing."""

    def losses(self, batch: InputBatch) -> Tensor:
        """Return the loss on ``batch``: a scalar, or one loss for each of m models that train together, shape [m]."""
        raise NotImplementedError

    def epoch(self, number: int) -> float:
        """Train for one pass over the examples and return the mean loss. ``number``: the epoch, counted from 1.

        Raises:
            DivergedError: The mean loss is not finite.
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
    """Train for ``epochs`` epochs; return the weights of the selected epoch and a dict of facts about the training.

    The state is committed in the folder ``work`` after each epoch. A repeated call resumes after the last committed
    epoch. The last commit remains in ``work``.

    Args:
        trainee: The training to execute.
        work: The folder of the commits.
        epochs: Number of epochs.
        keep: The weights to return: "best" for the epoch with the best validation score, "last" for the last epoch.
        select: The metric of the validation score: macro-F1 ("score"), or the negative loss ("loss"). With
            ``keep="best"`` and ``select="loss"``, the initial model (epoch 0) can also be selected, as in KNOT's public
            code.
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
    # The store deletes the commits after it has stored the result, so a kill before that loses no finished epoch.
    facts = {name: values[name] for name in ("seconds", "machines", "best_epoch", "best_score")}
    return best, {"epochs": checkpoint.log(), "select": select, "kept": keep, **facts}


def _flatten(trainee: Trainee, best: Tensors | None) -> Tensors:
    """Return the tensors to commit. ``best``: the best weights so far; None if these are the current weights."""
    tensors = {f"model.{name}": tensor for name, tensor in trainee.module.state_dict().items()}
    for index, state in trainee.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": torch.as_tensor(v) for k, v in state.items() if v is not None}
    if best is not None:
        tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    return tensors


def _restore(tensors: Tensors, trainee: Trainee) -> Tensors:
    """Restore ``trainee`` from the result of :func:`_flatten`; return the best weights, or {} without a commit."""
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
    """Return the tensors whose names begin with ``prefix``. The new names are the old names without ``prefix``."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
