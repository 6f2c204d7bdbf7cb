"""Linear combinations of clients' models, computed as products of a weight matrix and the matrix of all models.

The sign of a weight shows whether one client's update helps another client, and thus reveals groups of clients
(docs/papers/soup.md).

Products are computed in float64, one block of parameters at a time, so no second copy of all models is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import ClientModel
from knot_runner.engine.tensor_file import Tensors
from knot_runner.util.files import Facts

#: Number of values of all models together that are converted to float64 at a time. These values take 2 MB, which fit
#: into the cache of a core. With blocks of 64 MB, a product takes four times as long.
STACKED_VALUES = 2**18


def weighted_sums(matrix: Tensor, models: Tensor) -> Tensor:
    """Return the product of ``matrix`` [M, K] and ``models`` [K, P], in the dtype of the models.

    Row m is sum_i matrix_mi models_i.
    """
    sums = models.new_empty(len(matrix), models.shape[1])
    for block in _blocks(models):
        sums[:, block] = (matrix.double() @ models[:, block].double()).to(models.dtype)
    return sums


def stacked_models(models: Sequence[ClientModel]) -> Tensors:
    """Return the state entries ``theta/weights`` [K, P] and ``theta/buffers`` [K, Q], one row per client."""
    weights = torch.stack([model.weights for model in models])
    return {"theta/weights": weights, "theta/buffers": torch.stack([model.buffers for model in models])}


def client_models(state: Tensors) -> list[ClientModel]:
    """Return the clients' models that a state holds; see :func:`stacked_models`."""
    return list(map(ClientModel, state["theta/weights"], state["theta/buffers"]))


@dataclass(frozen=True)
class Updates:
    """Clients' updates dW_i = W_i - W_0.

    ``trained`` [K, P] holds the trained models W_i. ``starts`` [U, P] holds U distinct initial models. The model W_0
    that client i started from is row ``begins[i]``. Clients that started from the same model share one row of
    ``starts``.
    """

    starts: Tensor
    begins: Tensor
    trained: Tensor

    @staticmethod
    def of(starts: Sequence[Tensor], trained: Tensor) -> Updates:
        """Return the updates of clients that trained from ``starts``, with one row for each distinct start."""
        distinct = {id(model): model for model in starts}
        numbers = list(distinct)
        begins = torch.tensor([numbers.index(id(model)) for model in starts])
        return Updates(torch.stack(list(distinct.values())), begins, trained)

    def applied(self, matrix: Tensor) -> Tensor:
        """Return W_k = W_0 + sum_i matrix_ki dW_i, [K, P].

        The identity matrix gives exactly the trained models, and the zero matrix exactly the starts. W_0 + (W_k - W_0)
        would differ from W_k by rounding. Therefore, the result is a weighted sum of the models W_i and the starts, in
        which W_0 has the weight 1 - sum_i matrix_ki if all clients share one start.
        """
        chosen = torch.nn.functional.one_hot(self.begins, len(self.starts)).double()
        left = chosen - matrix.double() @ chosen
        return weighted_sums(torch.cat([left, matrix.double()], 1), torch.cat([self.starts, self.trained]))

    def products(self, moved: Sequence[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Return <a - b, dW_i> for every pair (a, b) of models [P] in ``moved`` and every update, float64 [M, K].

        Without ``moved``, return the inner products of the updates with each other.
        """
        count = len(self.trained) if moved is None else len(moved)
        sums = torch.zeros(count, len(self.trained), dtype=torch.float64)
        for block in _blocks(self.trained):
            changes = self.trained[:, block].double() - self.starts[self.begins, block].double()
            differences = changes
            if moved is not None:
                differences = torch.stack([a[block].double() - b[block].double() for a, b in moved])
            sums += differences @ changes.T
        return sums


def _blocks(models: Tensor) -> Iterator[slice]:
    """Yield ranges that together cover all parameters."""
    size = max(1, STACKED_VALUES // max(len(models), 1))
    for first in range(0, models.shape[1], size):
        yield slice(first, first + size)


def same_group_auc(matrix: Tensor, groups: Sequence[int]) -> float | None:
    """Return the area under the ROC curve of the score ``matrix``_ki for the event "clients k and i share a group".

    The curve is computed over all pairs of different clients. Ties count one half. The result is None if all pairs, or
    no pairs, share a group.
    """
    from sklearn.metrics import roc_auc_score  # slow to import, and other personalizations do not need it

    same, others = _pairs(groups)
    if not same.any() or not others.any():
        return None
    pairs = same | others
    return float(roc_auc_score(same[pairs], matrix[pairs]))


def matrix_facts(matrix: Tensor, groups: Sequence[int] | None) -> Facts:
    """Return summary statistics of the weights lambda, ``matrix`` of shape [K, K].

    ``own``: the mean weight of a client's own update (the diagonal). ``others``: the mean weight of other clients'
    updates. ``negative``: the fraction of other clients' weights that are negative. If there are groups, ``within`` and
    ``across`` are the mean weights of other clients in the same and in different groups, and ``auc`` is the result of
    :func:`same_group_auc`.
    """
    off = ~torch.eye(len(matrix), dtype=torch.bool)
    facts = {
        "own": float(matrix.diagonal().mean()),
        "others": float(matrix[off].mean()),
        "negative": float((matrix[off] < 0).double().mean()),
    }
    if groups is None:
        return facts
    for name, pairs in zip(("within", "across"), _pairs(groups), strict=True):
        if pairs.any():
            facts[name] = float(matrix[pairs].mean())
    return facts | {"auc": same_group_auc(matrix, groups)}


def _pairs(groups: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return two masks, bool [K, K]: pairs of different clients in the same group, and in different groups."""
    numbers = torch.tensor(list(groups))
    same = numbers[:, None] == numbers
    return same & ~torch.eye(len(numbers), dtype=torch.bool), ~same
