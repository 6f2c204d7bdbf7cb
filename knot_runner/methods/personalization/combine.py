"""Linear combinations of clients' models. Row k of a weight matrix holds the weights for client k's combination."""

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
    """Return the product of ``matrix`` [M, K] and ``models`` [K, P], in the dtype of the models."""
    sums = models.new_empty(len(matrix), models.shape[1])
    # Products are computed in float64, block by block, so that no second copy of all models is needed.
    for block in _blocks(models):
        sums[:, block] = (matrix.double() @ models[:, block].double()).to(models.dtype)
    return sums


def stacked_models(models: Sequence[ClientModel]) -> Tensors:
    """Return the state entries ``theta/weights`` [K, P] and ``theta/buffers`` [K, Q], one row per client."""
    weights = torch.stack([model.weights for model in models])
    return {"theta/weights": weights, "theta/buffers": torch.stack([model.buffers for model in models])}


def client_models(state: Tensors) -> list[ClientModel]:
    """Return the clients' models from the state entries that :func:`stacked_models` returns."""
    return list(map(ClientModel, state["theta/weights"], state["theta/buffers"]))


@dataclass(frozen=True)
class Updates:
    """Clients' updates dW_i = W_i - W_0. W_0 is the model from which client i started, and W_i is the trained model.

    Attributes:
        starts: The U distinct initial models of the clients, shape [U, P].
        begins: For each client, the row number of its initial model in ``starts``, shape [K].
        trained: The trained models W_i, shape [K, P].
    """

    starts: Tensor
    begins: Tensor
    trained: Tensor

    @staticmethod
    def of(starts: Sequence[Tensor], trained: Tensor) -> Updates:
        """Return the updates from the clients' initial models ``starts`` to their trained models ``trained`` [K, P].

        If several clients started from the same tensor object, this initial model is stored once.
        """
        distinct = {id(model): model for model in starts}
        numbers = list(distinct)
        begins = torch.tensor([numbers.index(id(model)) for model in starts])
        return Updates(torch.stack(list(distinct.values())), begins, trained)

    def applied(self, matrix: Tensor) -> Tensor:
        """Return the combined models, shape [K, P]: for client k, the client's initial model plus sum_i matrix_ki dW_i.

        With the identity matrix, the combined models are exactly the trained models. With the zero matrix, they are
        exactly the initial models.
        """
        chosen = torch.nn.functional.one_hot(self.begins, len(self.starts)).double()
        # W_0 + (W_k - W_0) would differ from W_k by rounding. The result is therefore a weighted sum of models.
        # In this sum, a start W_0 that all clients share has the weight 1 - sum_i matrix_ki.
        left = chosen - matrix.double() @ chosen
        return weighted_sums(torch.cat([left, matrix.double()], 1), torch.cat([self.starts, self.trained]))

    def products(self, moved: Sequence[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Return the inner products of M vectors with the K updates dW_i, float64 [M, K].

        The vectors are the differences a - b of the pairs (a, b) in ``moved``. If ``moved`` is None, the vectors are
        the updates dW_i.
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
    """Return the area under the ROC curve of ``matrix[k, i]`` as a predictor of whether clients k and i share a group.

    The curve is computed over all pairs of different clients. If all pairs share a group, or no pair does, the result
    is None. ``groups``: each client's group.
    """
    from sklearn.metrics import roc_auc_score  # slow to import, and other personalizations do not need it

    same, others = _pairs(groups)
    if not same.any() or not others.any():
        return None
    pairs = same | others
    return float(roc_auc_score(same[pairs], matrix[pairs]))


def matrix_facts(matrix: Tensor, groups: Sequence[int] | None) -> Facts:
    """Return summary statistics of the weights in ``matrix`` [K, K].

    Entry (k, i) is the weight of client i's update in the model of client k.

    - ``own``: the mean weight of a client's own update (the diagonal)
    - ``others``: the mean weight of other clients' updates (off the diagonal)
    - ``negative``: the fraction of negative weights off the diagonal

    If ``groups`` is given:

    - ``within``: the mean weight over pairs of different clients in the same group
    - ``across``: the mean weight over pairs of clients in different groups
    - ``auc``: the result of :func:`same_group_auc`
    """
    off = ~torch.eye(len(matrix), dtype=torch.bool)
    # The sign of a weight shows whether one client's update helps another client. Signs thus reveal groups of clients.
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
