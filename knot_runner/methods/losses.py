"""Distillation losses T between the student and one teacher (KNOT eq. 1 and 3), as functions in the table LOSSES.

To add a loss, write a dataclass with its options, and a function. Register ``LOSSES["mine"] = Loss(Mine, mine)`` in a
module that the setting ``plugins`` lists, and set ``method.loss.name=mine``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from knot_runner.config.plugins import Table, checked, expect, unlike
from knot_runner.config.settings.methods.knot import LOSS_SETTINGS, EntropySettings, LossSettings, SinkhornSettings
from knot_runner.config.settings.methods.terms import SinkhornTermSettings
from knot_runner.engine.objectives import LossRows, ObjectiveInputs, SampleLoss
from knot_runner.methods.party import LabelPoints
from knot_runner.methods.weighting import WEIGHTINGS, equal_where_zero
from knot_runner.transport import Solver, transport_loss
from knot_runner.transport.trees import label_tree
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import Facts


@dataclass(frozen=True)
class Loss:
    """A distillation loss.

    Attributes:
        options: The class of the loss's options, a dataclass with a field ``name``.
        function: ``(options, log_p, q, points) -> losses``. ``log_p`` [B, 1, C]: the student's log-probabilities;
            ``q`` [B, K, C]: the teachers' probabilities; ``points`` [C, d]: the coordinates of the classes; ``losses``
            [B, K]: the loss of each example and teacher.
    """

    options: type
    function: Callable[[Any, Tensor, Tensor, Tensor], Tensor]


def entropy(options: EntropySettings, log_p: Tensor, q: Tensor, points: Tensor) -> Tensor:
    """Return the entropy loss of each example and teacher, shape [B, K].

    ``options.form`` selects the loss, for the student's output p and a teacher's output q:

    - ``kl``: KL(q || p), as in the KNOT paper
    - ``symmetric``: ``0.5 * (KL(p || q) + KL(q || p))``, as in KNOT's public code for sentiment analysis
    - ``cross_entropy``: ``-sum q log2 p``, as in KNOT's public code for emotion recognition

    Difference from the public code: we do not divide by the number of classes.
    """
    # A constant factor, such as 1 / C for C classes, does not change the steps of AdamW.
    if options.form == "cross_entropy":
        return -(q * log_p).sum(-1) / math.log(2)
    forward = (torch.xlogy(q, q) - q * log_p).sum(-1)
    if options.form == "kl":
        return forward
    log_q = q.clamp_min(torch.finfo(q.dtype).tiny).log()  # KL(p || q) is infinite where q = 0 < p; keep it finite
    return 0.5 * (forward + (log_p.exp() * (log_p - log_q)).sum(-1))


def sinkhorn(options: SinkhornSettings, log_p: Tensor, q: Tensor, points: Tensor) -> Tensor:
    """Return the regularized transport cost T_eps(p, q) of each example and teacher, shape [B, K] (KNOT eq. 1).

    p is the student's output, and q is a teacher's output. The ground cost is computed from ``points``, the coordinates
    of the classes. The gradient of T_eps with respect to p is the dual potential.
    """
    return transport_loss(log_p.exp().to(points.device), q.to(points.device), points, solver_of(options)).to(log_p)


def solver_of(options: SinkhornSettings | SinkhornTermSettings) -> Solver:
    """Return the transport solver that ``options`` select. The default solver is ``newton``."""
    return Solver(options.solver or "newton", options.epsilon, options.tolerance, options.scaling)


def _accepted(where: str, loss: Loss) -> Loss:
    expect(where, loss, Loss)
    return replace(loss, function=checked(where, loss.function, _problem))


def _problem(values: object, options: Any, log_p: Tensor, q: Tensor, points: Tensor) -> str:
    """Return why ``values`` are not valid losses [B, K] for ``q`` [B, K, C]; "" if they are valid."""
    if not isinstance(values, Tensor):
        return unlike(values, Tensor, "a tensor")
    if values.shape != q.shape[:2]:
        return f"losses of shape {list(values.shape)} instead of {list(q.shape[:2])} (batch, teachers)"
    return ""


LOSSES: Table[Loss] = Table(
    "LOSSES",
    {"entropy": Loss(EntropySettings, entropy), "sinkhorn": Loss(SinkhornSettings, sinkhorn)},
    _accepted,
    lambda loss: loss.options,
    LOSS_SETTINGS,
)


def check_loss_and_weighting(loss: Any, weighting: str, points: LabelPoints, where: str) -> None:
    """Raise :class:`UserError` if the weighting is unknown, or if the loss's solver does not support ``points``.

    Args:
        loss: The settings of the loss.
        weighting: The name of the weighting.
        points: The coordinates [C][d] of the classes, from which the solver computes transport costs.
        where: The settings group that the error message names.
    """
    if weighting not in WEIGHTINGS:
        raise UserError(f"unknown weighting '{weighting}'{nearest(weighting, WEIGHTINGS)}", f"{where}.weighting")
    if not isinstance(loss, SinkhornSettings):
        return
    if loss.solver == "line" and len(points[0]) != 1:
        raise UserError(
            "'line' requires labels with one coordinate each (points on a line). Use 'newton'",
            f"{where}.loss.solver",
        )
    if loss.solver == "tree":
        label_tree(torch.tensor(points, dtype=torch.float64))


@dataclass(frozen=True)
class Distillation:
    """Settings of the objective :func:`distillation`.

    Attributes:
        loss: The settings of a loss in :data:`LOSSES`.
        weighting: The name of an entry of :data:`WEIGHTINGS`.
        shares: Each teacher's fraction of all training data.
        biases: Each teacher's probability bias; None if the weighting does not use biases.
        points: Coordinates [C][d] of the classes.
    """

    loss: LossSettings
    weighting: str
    normalize: bool
    student_temperature: float
    teacher_temperature: float
    teachers: list[str]
    shares: list[float]
    biases: LabelPoints | None
    points: LabelPoints


def distillation(settings: Facts, inputs: ObjectiveInputs) -> tuple[LossRows, SampleLoss]:
    """Return the student's objective: for each example, ``sum_k W_k T(p, q_k)`` (KNOT eq. 3).

    T is the selected loss between the student's output p and the output q_k of teacher k. W_k is the weight of teacher
    k. With ``normalize``, the sum is divided by ``sum_k W_k``. For examples whose weights are all 0, ``normalize``
    first replaces every weight by 1.

    Args:
        settings: The fields of :class:`Distillation`.
        inputs: ``inputs.tensors[name]`` holds the logits [n, C] of the teacher ``name``.
    """
    spec = Distillation(**settings)
    between = LOSSES[spec.loss.name].function
    logits = torch.stack([inputs.tensors[name] for name in spec.teachers], dim=1)
    q = torch.softmax(logits.double() / spec.teacher_temperature, dim=-1).to(logits)
    biases = q.new_tensor(spec.biases) if spec.biases else None
    weights = WEIGHTINGS[spec.weighting](q, q.new_tensor(spec.shares), biases)
    if spec.normalize:
        weights = equal_where_zero(weights)
    points_on = cache(torch.tensor(spec.points, dtype=torch.float64).to)

    def loss(logits: Tensor, rows: LossRows) -> Tensor:
        log_p = torch.log_softmax(logits / spec.student_temperature, dim=-1)[:, None]
        pairs = between(spec.loss, log_p, rows["targets"], points_on(logits.device))
        w = rows["weights"]
        total = (w * pairs).sum(1)
        if spec.normalize:
            total = total / w.sum(1)
        return total

    return {"targets": q, "weights": weights}, loss
