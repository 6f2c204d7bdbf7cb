"""Label coordinates, the ground cost between labels (KNOT eq. 1, App. C.1), and the settings of a solver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor


def support(coordinates: Tensor, kind: Literal["semantic", "onehot", "hybrid"]) -> Tensor:
    """Return the points [n, d'] that define the ground cost, computed from the labels' coordinates [n, d].

    ``semantic``: the coordinates (the paper's main runs). ``onehot``: one unit vector per label, so that any two labels
    are sqrt(2) apart (the public ERC code). ``hybrid``: coordinates and unit vector, concatenated (the public SA code).
    """
    units = torch.eye(len(coordinates), dtype=coordinates.dtype, device=coordinates.device)
    return {"semantic": coordinates, "onehot": units, "hybrid": torch.cat([units, coordinates], 1)}[kind]


def unit_mass(rows: Tensor) -> Tensor:
    """Return ``rows`` [N, n] in float64, each scaled to sum 1."""
    return rows.double() / rows.double().sum(-1, keepdim=True)


def ground_cost(coordinates: Tensor) -> Tensor:
    """Return Euclidean distances [n, n] between the points [n, d].

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
    """An input row is not a probability vector, or a problem did not reach the tolerance."""


@dataclass
class Solver:
    """Settings of :func:`knot_runner.transport.transport_loss`.

    ``newton`` reads ``epsilon`` and ``tolerance``; ``geomloss`` reads ``epsilon`` and ``scaling``. ``exact``, ``line``
    and ``tree`` compute the limit epsilon = 0 and read none of these settings.
    """

    #: a key of :data:`knot_runner.transport.SOLVERS`
    name: str
    #: weight of KL(pi | p x q), in units of the coordinates, at least 1e-4. KNOT names .001 (code, "chose") and .003
    #: ("used")
    epsilon: float
    #: newton: maximum error of the plan's second marginal, summed over labels; the first marginal is exact
    tolerance: float
    #: geomloss: factor of eps from one update to the next; .5 as published (far from converged); .99 for values within
    #: a few tenths of a percent
    scaling: float
