"""Transport in closed form where the labels are leaves of a tree, as superclasses and one-hot labels are.

On a tree, what has to pass an edge is the difference of the masses below it, so (Le et al. 2019, eq. 3)::

    W1(p, q) = sum over edges e of  w_e |p(below e) - q(below e)|,    dW1 / dp_i = sum over e above i of  w_e sign(...)

Labels with an ultrametric cost are such leaves: groups of labels at most d_l apart, for the distances d_1 < d_2 < ...
that occur, are the subtrees of level l, and the edge above one weighs (d_l+1 - d_l) / 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from knot_runner.transport.costs import ground_cost, unit_mass
from knot_runner.transport.solver import Solver
from knot_runner.util.errors import UserError

#: Distances that differ by less, relatively, are one level.
SAME_LEVEL = 1e-9


def tree(p: Tensor, q: Tensor, points: Tensor, solver: Solver) -> tuple[Tensor, Tensor]:
    """eps = 0 for p, q [N, n] on ``points`` that are leaves of a tree: (value [N], potential of p [N, n]).

    Raises :class:`UserError` for points that are not.
    """
    weights, below = tree_edges(ground_cost(points.double()))
    p, q = unit_mass(p), unit_mass(q)
    excess = (p - q) @ below.T
    return excess.abs() @ weights, (excess.sign() * weights) @ below


def tree_edges(cost: Tensor) -> tuple[Tensor, Tensor]:
    """(Weight [E] of each edge, the labels below it [E, n] as 0 and 1) of the tree with leaf distances ``cost`` [n, n].

    Raises :class:`UserError` where two labels of one group are not alike far from a third.
    """
    levels = [0.0]
    for distance in cost.unique().tolist():
        if distance > levels[-1] + SAME_LEVEL * float(cost.max()):
            levels.append(distance)
    weights, below = [], []
    for near, far in zip(levels, levels[1:], strict=False):
        together = (cost <= near + SAME_LEVEL * float(cost.max())).double()
        if bool(((together @ together > 0) != (together > 0)).any()):
            raise UserError(
                "method.loss.solver: tree needs labels that are leaves of a tree, such as superclasses or one-hot "
                "labels; newton takes any points"
            )
        groups = together.unique(dim=0)
        below.append(groups)
        weights.append(torch.full((len(groups),), (far - near) / 2, dtype=cost.dtype, device=cost.device))
    return torch.cat(weights), torch.cat(below)
