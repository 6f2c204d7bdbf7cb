"""Signs of a transfer matrix and groups of clients: whose updates help whom (personalisation.md 3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def same_group_auc(matrix: Tensor, groups: Sequence[int]) -> float | None:
    """Area under the ROC curve of "i is in k's group" by lambda_ki over all pairs of two clients, ties counting half;
    None where all pairs are alike."""
    same, others = _pairs(groups)
    within, across = matrix[same], matrix[others].sort().values
    if not len(within) or not len(across):
        return None
    below = torch.searchsorted(across, within) + torch.searchsorted(across, within, right=True)
    return float(below.double().mean() / (2 * len(across)))


def matrix_facts(matrix: Tensor, groups: Sequence[int] | None) -> dict[str, Any]:
    """Means of lambda [K, K] over clients' ``own`` updates and those of ``others``; where there are groups, over others
    ``within`` and ``across`` them, with the ``auc`` of telling these apart; the share of others that are ``negative``.
    """
    off = ~torch.eye(len(matrix), dtype=torch.bool)
    found = {
        "own": float(matrix.diagonal().mean()),
        "others": float(matrix[off].mean()),
        "negative": float((matrix[off] < 0).double().mean()),
    }
    if groups is None:
        return found
    for name, pairs in zip(("within", "across"), _pairs(groups), strict=True):
        if pairs.any():
            found[name] = float(matrix[pairs].mean())
    return found | {"auc": same_group_auc(matrix, groups)}


def _pairs(groups: Sequence[int]) -> tuple[Tensor, Tensor]:
    """bool [K, K]: pairs of two clients in one group, and in two."""
    numbers = torch.tensor(list(groups))
    same = numbers[:, None] == numbers
    return same & ~torch.eye(len(numbers), dtype=torch.bool), ~same
