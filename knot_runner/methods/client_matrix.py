"""The K x K record: every client's model on every client's test examples, and the metrics computed from it.

In distribution (ID) is a client's model on its own test examples, the diagonal; out of distribution (OOD) is the same
model on the others', each of them alike. A test example that two clients have is ID for both: it is left out of the OOD
of either (personalisation.md 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

#: A client is hurt by its own model where this many more of its test examples are wrong than under the global model.
HURT_EXAMPLES = 2


@dataclass(frozen=True)
class TestRows:
    """Index of clients' test examples. ``rows`` [N]: the distinct test examples of all clients; ``places`` [M]: the
    position in ``rows`` of each client's examples, concatenated over clients; ``owners`` [M]: their clients."""

    __test__ = False  # not a class of tests

    rows: Tensor
    places: Tensor
    owners: Tensor
    clients: int

    @staticmethod
    def of(test: Sequence[Tensor]) -> TestRows:
        """``test``: the rows of each client's test examples."""
        rows, places = torch.cat(list(test)).unique(return_inverse=True)
        owners = torch.repeat_interleave(torch.arange(len(test)), torch.tensor([len(own) for own in test]))
        return TestRows(rows, places, owners, len(test))

    def own(self, client: int) -> Tensor:
        """Places [n] in ``rows`` of the client's examples."""
        return self.places[self.owners == client]

    def sums(self, values: Tensor, client: int) -> Tensor:
        """Sums [..., K] of ``values`` [..., N] (one per row) over each client's examples; other clients' examples that
        ``client`` also has are left out."""
        kept = values.double()[..., self.places]
        if len(self.rows) < len(self.places):  # some rows are those of several clients
            has = torch.zeros(len(self.rows), dtype=torch.bool)
            has[self.own(client)] = True
            kept *= ~has[self.places] | (self.owners == client)
        return kept.new_zeros(*kept.shape[:-1], self.clients).index_add_(-1, self.owners, kept)

    def examples(self) -> Tensor:
        """int32 [K, K]: examples of client j (column) that count for the model of client k (row)."""
        ones = torch.ones(len(self.rows))
        return torch.stack([self.sums(ones, client) for client in range(self.clients)]).int()


@dataclass(frozen=True)
class ModelCounts:
    """One client's model on every client's examples: ``correct`` [K] of them, and their summed cross-entropy ``loss``
    [K] in nats."""

    correct: Tensor
    loss: Tensor


def count(tests: TestRows, logits: Tensor, labels: Tensor, client: int) -> ModelCounts:
    """``logits`` [N, C] and ``labels`` [N] of ``tests.rows`` under the model of ``client``."""
    right = logits.argmax(1) == labels
    losses = F.cross_entropy(logits.double(), labels, reduction="none")
    correct, loss = tests.sums(torch.stack([right.double(), losses]), client)
    return ModelCounts(correct.int(), loss)


def matrix_measures(
    examples: Tensor, correct: Tensor, loss: Tensor, clients: Sequence[int], global_correct: Tensor | None = None
) -> dict[str, float]:
    """Measures of a K x K record (personalisation.md 5).

    ``examples``, ``correct``, ``loss`` [K, K]; ``clients``: those that took part, over which all metrics are taken
    except ``unseen_accuracy``, the ID accuracy of the others; ``global_correct`` [K]: the global model's correct
    predictions on each client's examples, for the share ``clients_hurt`` whose own model has at least ``HURT_EXAMPLES``
    fewer. A client without test examples has no ID accuracy and is not part of OOD.
    """
    share = correct.double() / examples.clamp(min=1)
    mean_loss = loss / examples.clamp(min=1)
    having = [client for client in clients if examples[client, client]]
    diagonal = torch.tensor([float(share[client, client]) for client in having], dtype=torch.float64)
    worst = diagonal.sort().values[: math.ceil(len(having) / 10)]
    found = {
        "id_accuracy": float(diagonal.mean()),
        "id_loss": float(torch.stack([mean_loss[client, client] for client in having]).mean()),
        "all_accuracy": float(torch.stack([share[client, having].mean() for client in clients]).mean()),
        "worst_decile": float(worst.mean()),
        **_out_of_distribution(examples, correct, share, mean_loss, clients),
    }
    if global_correct is not None:
        lost = torch.tensor([int(global_correct[client] - correct[client, client]) for client in having])
        found["clients_hurt"] = float((lost >= HURT_EXAMPLES).double().mean())
    unseen = [client for client in range(len(examples)) if client not in set(clients) and examples[client, client]]
    if unseen:
        found["unseen_accuracy"] = float(torch.stack([share[client, client] for client in unseen]).mean())
    return found


def _out_of_distribution(
    examples: Tensor, correct: Tensor, share: Tensor, mean_loss: Tensor, clients: Sequence[int]
) -> dict[str, float]:
    """Returns off-diagonal means, unweighted over the other clients and weighted by their examples; {} where there are
    none."""
    even, weighted, losses = [], [], []
    for client in clients:
        others = [other for other in clients if other != client and examples[client, other]]
        if others:
            even.append(share[client, others].mean())
            weighted.append(correct[client, others].sum() / examples[client, others].sum())
            losses.append(mean_loss[client, others].mean())
    names = ("ood_accuracy", "ood_weighted", "ood_loss")
    values = (even, weighted, losses)
    return {name: float(torch.stack(own).mean()) for name, own in zip(names, values, strict=True) if own}
