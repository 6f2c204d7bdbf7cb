"""Coordinates of labels, and the ground cost between them (KNOT section 1.1 and its ablation)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def support(coordinates: Tensor, kind: Literal["semantic", "onehot", "hybrid"]) -> Tensor:
    """Points [n, d'] on which the cost is measured, from the labels' coordinates [n, d].

    ``semantic``: the coordinates (the paper's main runs); ``onehot``: the unit vectors, so that any two labels are
    sqrt(2) apart (the public ERC code); ``hybrid``: both side by side (the public SA code).
    """
    units = torch.eye(len(coordinates), dtype=coordinates.dtype, device=coordinates.device)
    return {"semantic": coordinates, "onehot": units, "hybrid": torch.cat([units, coordinates], 1)}[kind]


def unit_mass(rows: Tensor) -> Tensor:
    """``rows`` [N, n] in float64, each scaled to sum to 1."""
    return rows.double() / rows.double().sum(-1, keepdim=True)


def ground_cost(coordinates: Tensor) -> Tensor:
    """Euclidean distances [n, n] between the points [n, d].

    >>> ground_cost(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[0., 5.],
            [5., 0.]])
    """
    # not torch.cdist: its matrix-product form loses half the digits of small distances
    return torch.linalg.vector_norm(coordinates[:, None] - coordinates, dim=-1)
