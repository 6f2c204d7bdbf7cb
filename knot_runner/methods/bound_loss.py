"""The loss that the bound of Theorem 5.2 is on, per text and exactly, and that of the best constant prediction."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from knot_runner.methods.bound import require_normalised
from knot_runner.transport.exact import exact_transport

#: The best constant prediction is found to this share of the largest loss, or in so many cuts.
CONSTANT_TOLERANCE, MOST_CUTS = 1e-4, 200


def transport_losses(p: Tensor, q: Tensor, weights: Tensor, points: Tensor) -> Tensor:
    """sum_k W_k W1(p, q_k) of each text [N], eps = 0, for p [N, C], q [N, K, C], ``weights`` [N, K].

    Raises :class:`UserError` for weights that do not sum to 1.
    """
    require_normalised(weights)
    return _teacher_costs(p, q, points)[0].mul(weights.double()).sum(1)


def constant_best(q: Tensor, weights: Tensor, points: Tensor) -> tuple[Tensor, float]:
    """The distribution [C] that is best as every text's prediction, and its mean loss, from below.

    The mean loss is convex in the prediction: cutting planes (Kelley 1960), each a subgradient of all texts at once,
    until the least value that the cuts allow is within ``CONSTANT_TOLERANCE`` of one that is reached. Raises
    :class:`UserError` for weights that do not sum to 1.
    """
    from scipy.optimize import linprog

    require_normalised(weights)
    weights, classes = weights.double(), q.shape[2]
    guess, found, least = torch.full((classes,), 1 / classes, dtype=torch.float64), None, np.inf
    slopes, offsets, low = [], [], 0.0
    for _ in range(MOST_CUTS):
        costs, potentials = _teacher_costs(guess.expand(len(q), classes), q, points)
        value = float((costs * weights).sum(1).mean())
        slope = (potentials * weights[..., None]).sum(1).mean(0)
        if value < least:
            found, least = guess, value
        slopes.append(slope.numpy())
        offsets.append(value - float(slope @ guess))
        cuts = np.column_stack([np.array(slopes), -np.ones(len(slopes))])  # slope . c - t <= - offset
        answer = linprog(
            np.append(np.zeros(classes), 1.0), A_ub=cuts, b_ub=-np.array(offsets),
            A_eq=np.append(np.ones(classes), 0.0)[None], b_eq=[1.0], bounds=[(0, 1)] * classes + [(0, None)],
        )  # fmt: skip
        low, guess = answer.fun, torch.from_numpy(answer.x[:-1]).clamp_min(0)
        guess = guess / guess.sum()
        if least - low <= CONSTANT_TOLERANCE * least:
            break
    assert found is not None, "the first guess has a value"
    return found, low


def _teacher_costs(p: Tensor, q: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """W1 of each text's prediction p [N, C] to each teacher's q [N, K, C]: costs [N, K], potentials [N, K, C]."""
    pairs = p[:, None].expand(q.shape).reshape(-1, q.shape[2])
    costs, potentials = exact_transport(pairs, q.reshape(pairs.shape), points)
    return costs.reshape(q.shape[:2]), potentials.reshape(q.shape)
