"""Label coordinates, the ground cost between labels (KNOT eq. 1, App. C.1), and the settings of a solver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor


def support(coordinates: Tensor, kind: Literal["semantic", "onehot", "hybrid"]) -> Tensor:
    """Return one point per label, shape [n, D]. The distances between the points are the ground cost.

    ``coordinates`` has shape [n, d]. The argument ``kind`` selects the points:

    - ``semantic``: the coordinates, as in the paper's main runs
    - ``onehot``: one unit vector per label, as in the public code for emotion recognition; all distances are sqrt(2)
    - ``hybrid``: the unit vector followed by the coordinates, as in the public code for sentiment analysis
    """
    units = torch.eye(len(coordinates), dtype=coordinates.dtype, device=coordinates.device)
    return {"semantic": coordinates, "onehot": units, "hybrid": torch.cat([units, coordinates], 1)}[kind]


def unit_mass(rows: Tensor) -> Tensor:
    """Return ``rows`` [N, n] in float64, with each row scaled to sum to 1."""
    return rows.double() / rows.double().sum(-1, keepdim=True)


def ground_cost(coordinates: Tensor) -> Tensor:
    """Return the Euclidean distances [n, n] between n points with the given coordinates [n, d].

    >>> ground_cost(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[0., 5.],
            [5., 0.]])
    """
    # not torch.cdist: its matrix-product form loses half the digits of small distances
    return torch.linalg.vector_norm(coordinates[:, None] - coordinates, dim=-1)


@lru_cache(maxsize=16)
def host_cost(points: Tensor) -> Tensor:
    """Return the :func:`ground_cost` of ``points`` in float64 on the CPU, cached for each tensor object."""
    return ground_cost(points.detach().double()).cpu()


#: Transport costs, shape [N], and potentials, shape [N, n], of N transport problems on n labels.
Solution = tuple[Tensor, Tensor]


class TransportError(FloatingPointError):
    """An input row is not a probability vector, or a transport problem did not converge."""


@dataclass
class Solver:
    """Settings of :func:`knot_runner.transport.transport_loss`.

    The solver ``newton`` uses ``epsilon`` and ``tolerance``. The solver ``geomloss`` uses ``epsilon`` and ``scaling``.
    The solvers ``exact``, ``line`` and ``tree`` compute costs without regularization and use none of these settings.
    """

    #: a key of :data:`knot_runner.transport.SOLVERS`
    name: str
    #: weight of KL(pi | p x q), in units of the coordinates, at least 1e-4. KNOT's code uses .001. The paper states
    #: .001 and, in one place, .003
    epsilon: float
    #: newton: maximum error of the plan's second marginal, summed over labels; the first marginal is exact
    tolerance: float
    #: geomloss: factor of eps from one update to the next; .5 as published (far from converged); .99 for values within
    #: a few tenths of a percent
    scaling: float
