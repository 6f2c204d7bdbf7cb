"""Training objectives: the loss of each sample as a function of its logits.

An objective is defined by a function ``make(settings, inputs)``, where ``inputs`` describe the examples of one request.
``make`` returns a pair:

- the rows: a dict of tensors with one row per example, such as the labels
- the loss function, which returns the losses of a batch, given the logits and the rows of the batch

The loss function should be the same for all clients, and only the rows should differ. A request holds the objective as
``Objective(make, settings)``. Define ``make`` at the top level of a module, so that worker processes can import it.
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
    """Inputs for building an objective. Features are the inputs of a model's last layer.

    Attributes:
        labels: The labels of the n examples, shape [n]; -1 for an example without a label.
        tensors: Tensors from the request by name, each of shape [n, ...], such as a teacher's logits.
        start_logits: A function that returns the logits of the examples under the initial weights, shape [n, C].
        head: The last layer of the model being trained: a function from features [B, H] to logits [B, C]. None if
            the objective does not set ``reads_head``.
        features: A function that returns the features of the examples under a given model, shape [n, H]. The argument
            is the model's name: a key of the request's ``models``, or "start" for the initial model. If the loss uses
            these features, ``Objective.make`` must include them in the returned rows.
    """

    labels: Tensor
    tensors: dict[str, Tensor]
    start_logits: Callable[[], Tensor]
    head: Callable[[Tensor], Tensor] | None = None
    features: Callable[[str], Tensor] | None = None


@dataclass(frozen=True)
class CrossEntropy:
    """Options of the cross-entropy with temperatures (FLex&Chill, algorithm 1 lines 15 and 16).

    The loss of sample i with the logits z_i and the label y_i is ``CE(z_i / T_i, y_i)``.

    Attributes:
        temperature: The temperature T_i of every sample, unless ``hard_temperature`` is set.
        hard_temperature: If set, T_i is linear in the hardness of sample i (:func:`sample_temperatures`):
            ``temperature`` at hardness 0, and ``hard_temperature`` at hardness 1.
        per_sample_rate: Whether the loss is ``CE(z_i, y_i) / T_i`` instead. If true, samples differ in learning rate,
            not in temperature. This option is ignored without ``hard_temperature``.
    """

    temperature: float = 1.0
    hard_temperature: float | None = None
    per_sample_rate: bool = False


def cross_entropy(settings: dict[str, Any], inputs: ObjectiveInputs) -> tuple[LossRows, SampleLoss]:
    """Return the rows and the loss function of the cross-entropy. ``settings``: the fields of :class:`CrossEntropy`."""
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

    Attributes:
        make: Function that returns the rows (loss inputs per example) and the loss function. See
            :mod:`knot_runner.engine.objectives`.
        settings: Settings for ``make``, as plain data that can be hashed and sent to worker processes.
        reads_head: Whether the loss function calls ``ObjectiveInputs.head``, the last layer. If true, clients are
            trained with autograd.
        reads_features: Whether the loss function has a third argument: the features of the batch (the inputs of the
            last layer), shape [B, H].
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
    """Return the rows (loss inputs per example) and the loss function that ``objective`` makes for ``inputs``.

    Raises:
        UserError: ``objective.make`` does not return a pair of a dict and a function. The returned loss function also
            raises this error if its result does not have one value per sample.
    """
    rows_and_loss = objective.make(objective.settings, inputs)
    if objective.make is cross_entropy:
        return rows_and_loss
    is_pair = isinstance(rows_and_loss, tuple) and len(rows_and_loss) == 2
    if not (is_pair and isinstance(rows_and_loss[0], dict) and callable(rows_and_loss[1])):
        kind = type(rows_and_loss).__name__
        raise UserError(f"objective {objective.name!r}: returned {kind} instead of a tuple (rows, loss function)")
    rows, loss = rows_and_loss

    def checked(logits: Tensor, batch: LossRows, *features: Tensor) -> Tensor:
        values = loss(logits, batch, *features)
        if not isinstance(values, Tensor) or values.shape != logits.shape[:1]:
            shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise UserError(
                f"objective {objective.name!r}: the loss has shape {shape}, not [{len(logits)}] (one loss per sample)"
            )
        return values

    return rows, checked


def tempered(objective: Objective) -> CrossEntropy | None:
    """Return the temperature options of ``objective`` if it is the cross-entropy, and None otherwise."""
    if objective.make is not cross_entropy:
        return None
    return CrossEntropy(**objective.settings)


def sample_temperatures(options: CrossEntropy, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the temperature of each example, shape [n], and the factor of each example's loss, shape [n].

    ``logits``: the logits under the initial weights, shape [n, C]. Hardness is 1 minus the predicted probability of
    the true label. The temperature T_i is linear in the hardness: ``temperature`` at hardness 0, ``hard_temperature``
    at hardness 1. By default, the results are T_i and 1. If ``per_sample_rate`` is true, they are 1 and 1 / T_i.

    FLex&Chill discusses per-sample temperatures without defining hardness. This definition of hardness is ours.
    """
    hardness = 1 - torch.softmax(logits, 1).gather(1, labels[:, None])[:, 0]
    values = options.temperature + (options.hard_temperature - options.temperature) * hardness
    ones = torch.ones_like(values)
    if options.per_sample_rate:
        return ones, 1 / values
    return values, ones
