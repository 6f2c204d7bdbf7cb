"""Training objectives: the loss of each sample as a function of its logits, for texts and images and for every engine.

An objective is a function ``make(settings, inputs)``, which is called with the examples of one request. The function
``make`` returns tensors with one row per example ("rows"), and the loss as a function of the logits and the rows of a
batch. The loss function is the same for all clients; only the rows differ. A request holds the objective as
``Objective(make, settings)``. Worker processes look up ``make`` by its module and name, so it must be defined at the
top level of a module of the package or of a plug-in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.util.errors import UserError

#: Tensors by name, each of shape [n, ...] with one row per example.
LossRows = dict[str, Tensor]
#: Function of the logits, shape [B, C], and the rows of a batch that returns the loss of each sample, shape [B]. If the
#: objective reads features, their values for the batch, shape [B, H], are a third argument.
SampleLoss = Callable[..., Tensor]


@dataclass(frozen=True)
class ObjectiveInputs:
    """Inputs for building an objective.

    Attributes:
        labels: The labels of the n examples, shape [n]; -1 for an example without a label.
        tensors: Further tensors of the request by name, each of shape [n, ...], such as a teacher's logits.
        start_logits: A function that returns the logits, shape [n, C], of the model with its initial weights.
        head: The last layer of the model in training, which maps features of shape [B, H] to logits of shape [B, C].
            None for objectives that do not use it.
        features: ``features(name)`` returns the inputs of the last layer, shape [n, H], of the request's model
            ``name``. The name ``start`` stands for the initial model. If the loss uses these features, ``make`` must
            include them in the rows that it returns.
    """

    labels: Tensor
    tensors: dict[str, Tensor]
    start_logits: Callable[[], Tensor]
    head: Callable[[Tensor], Tensor] | None = None
    features: Callable[[str], Tensor] | None = None


@dataclass(frozen=True)
class CrossEntropy:
    """scale_i CE(z_i / T_i, y_i) (FLex&Chill, algorithm 1 lines 15 and 16).

    z_i are the logits and y_i is the label of sample i. T_i is ``temperature``. If ``hard_temperature`` is set, T_i
    lies between ``temperature`` and ``hard_temperature``, depending on the sample's initial hardness (see
    :func:`sample_temperatures`). scale_i is 1. ``per_sample_rate`` selects the control experiment for per-sample
    temperatures: the softmax uses the temperature 1, and scale_i is 1 / T_i. For a constant temperature, the control
    experiment changes the learning rate instead (``method.lr_control``).
    """

    temperature: float = 1.0
    hard_temperature: float | None = None
    per_sample_rate: bool = False


def cross_entropy(settings: dict[str, Any], inputs: ObjectiveInputs) -> tuple[LossRows, SampleLoss]:
    """Return the cross-entropy with the true labels, with or without temperatures (:class:`CrossEntropy`)."""
    options = CrossEntropy(**settings)
    if options.hard_temperature is None:

        def plain(logits: Tensor, rows: LossRows) -> Tensor:
            return F.cross_entropy(logits / options.temperature, rows["labels"], reduction="none")

        return {"labels": inputs.labels}, plain

    def per_sample(logits: Tensor, rows: LossRows) -> Tensor:
        losses = F.cross_entropy(logits / rows["temperatures"][:, None], rows["labels"], reduction="none")
        return rows["scales"] * losses

    values, scales = sample_temperatures(options, inputs.start_logits(), inputs.labels)
    return {"labels": inputs.labels, "temperatures": values, "scales": scales}, per_sample


@dataclass(frozen=True)
class Objective:
    """The training objective of a request.

    ``settings``: plain data, so that a request can be hashed and sent. ``reads_head``: whether the gradient also flows
    directly into the last layer, which only autograd engines support. ``reads_features``: whether the loss is a
    function of (logits, rows, features [B, H]), where the features are the input of the last layer.
    """

    make: Callable[[dict[str, Any], ObjectiveInputs], tuple[LossRows, SampleLoss]] = cross_entropy
    settings: dict[str, Any] = field(default_factory=dict)
    reads_head: bool = False
    reads_features: bool = False

    @property
    def name(self) -> str:
        """Return the name of the function ``make``."""
        return self.make.__qualname__


def make_loss(objective: Objective, inputs: ObjectiveInputs) -> tuple[LossRows, SampleLoss]:
    """Return the rows and the loss of ``objective`` for these inputs.

    The returned loss function raises :class:`UserError` unless it computes one value per sample.
    """
    rows_and_loss = objective.make(objective.settings, inputs)
    if objective.make is cross_entropy:
        return rows_and_loss
    is_pair = isinstance(rows_and_loss, tuple) and len(rows_and_loss) == 2
    if not (is_pair and isinstance(rows_and_loss[0], dict) and callable(rows_and_loss[1])):
        kind = type(rows_and_loss).__name__
        raise UserError(f"objective {objective.name}: returned {kind} instead of (rows, loss function)")
    rows, loss = rows_and_loss

    def checked(logits: Tensor, batch: LossRows, *features: Tensor) -> Tensor:
        values = loss(logits, batch, *features)
        if not isinstance(values, Tensor) or values.shape != logits.shape[:1]:
            shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise UserError(
                f"objective {objective.name}: the loss has shape {shape} instead of [{len(logits)}] (one per sample)"
            )
        return values

    return rows, checked


def tempered(objective: Objective) -> CrossEntropy | None:
    """Return the options of the objective if it is cross-entropy, whose gradient has a closed form; otherwise None."""
    if objective.make is not cross_entropy:
        return None
    return CrossEntropy(**objective.settings)


def sample_temperatures(options: CrossEntropy, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return T_i and scale_i of each example, each of shape [n], from the initial logits, shape [n, C].

    Hardness is 1 - p_i(truth), so T_i increases from ``temperature`` (certainly correct) to ``hard_temperature``
    (certainly wrong). The paper discusses per-sample temperatures without defining hardness; this definition is ours.
    """
    hardness = 1 - torch.softmax(logits, 1).gather(1, labels[:, None])[:, 0]
    values = options.temperature + (options.hard_temperature - options.temperature) * hardness
    ones = torch.ones_like(values)
    if options.per_sample_rate:
        return ones, 1 / values
    return values, ones
