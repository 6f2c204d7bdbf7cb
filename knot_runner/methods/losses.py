"""Distillation losses between the student and one teacher, one function each, in one table (KNOT eq. 1, 3).

To add a loss, write a dataclass of its options and a function. Register ``LOSSES["mine"] = Loss(Mine, mine)`` in a
module that ``plugins`` lists, and set ``method.loss.name=mine``.
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
    """A loss: its options (a dataclass whose fields include ``name``) and its function.

    ``function(options, log_p [B, 1, C], q [B, K, C], points [C, d]) -> [B, K]``, for B examples, K teachers and C
    classes. ``log_p`` are the student's log-probabilities, ``q`` the teachers' probabilities, and ``points`` the
    coordinates of the labels.
    """

    options: type
    function: Callable[[Any, Tensor, Tensor, Tensor], Tensor]


def entropy(options: EntropySettings, log_p: Tensor, q: Tensor, points: Tensor) -> Tensor:
    """Return KL(q || p) as in the paper, or a form that the paper's public code uses.

    The public SA code uses 0.5 (KL(p || q) + KL(q || p)), and the public ERC code uses -sum q log2 p. Zeros in q add
    nothing. The public code also divides by the number of classes. We do not, because a constant factor does not change
    the steps of AdamW.
    """
    if options.form == "cross_entropy":
        return -(q * log_p).sum(-1) / math.log(2)
    forward = (torch.xlogy(q, q) - q * log_p).sum(-1)
    if options.form == "kl":
        return forward
    log_q = q.clamp_min(torch.finfo(q.dtype).tiny).log()  # KL(p || q) is infinite where q = 0 < p; keep it finite
    return 0.5 * (forward + (log_p.exp() * (log_p - log_q)).sum(-1))


def sinkhorn(options: SinkhornSettings, log_p: Tensor, q: Tensor, points: Tensor) -> Tensor:
    """Return the regularized transport cost T_eps(p, q) on the label points (eq. 1).

    The gradient of this cost with respect to p is the dual potential.
    """
    return transport_loss(log_p.exp().to(points.device), q.to(points.device), points, solver_of(options)).to(log_p)


def solver_of(options: SinkhornSettings | SinkhornTermSettings) -> Solver:
    """Return the solver that ``options`` select, by default ``newton``."""
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
    """Raise :class:`UserError` for an unknown weighting, or a solver that does not fit the labels.

    ``where``: the settings group that contains the weighting. The message names this group. ``points`` [C, d]: the
    label coordinates, from which the solver of ``loss`` computes costs.
    """
    if weighting not in WEIGHTINGS:
        raise UserError(f"unknown weighting '{weighting}'{nearest(weighting, WEIGHTINGS)}", f"{where}.weighting")
    if not isinstance(loss, SinkhornSettings):
        return
    if loss.solver == "line" and len(points[0]) != 1:
        raise UserError(
            "'line' requires labels that are points on a line, with one coordinate each. Use newton",
            f"{where}.loss.solver",
        )
    if loss.solver == "tree":
        label_tree(torch.tensor(points, dtype=torch.float64))


@dataclass(frozen=True)
class Distillation:
    """Settings of the objective :func:`distillation`.

    Attributes:
        loss: An entry of :data:`LOSSES`, with its options.
        weighting: The name of an entry of :data:`WEIGHTINGS`.
        shares: Each teacher's fraction of all training data, which the weighting may read.
        biases: Each teacher's probability bias, which the weighting may read.
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
    """Return the student's objective, eq. 3: sum_k W_k T(p, q_k).

    With ``normalize``, the sum is divided by the sum of the weights. If all weights of an example are 0, all teachers
    have equal weights for this example.

    ``settings``: see :class:`Distillation`. ``inputs.tensors[teacher]``: each teacher's logits [n, C].
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
