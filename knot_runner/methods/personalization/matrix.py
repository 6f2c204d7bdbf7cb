"""Metrics of the K x K matrix with the accuracy of client k's model on client j's test examples.

In-distribution (ID) accuracy is the accuracy of a client's model on the client's own test examples (the diagonal).
Out-of-distribution (OOD) accuracy is the accuracy of the same model on the test examples of the other clients, averaged
over these clients with equal weights.

If two clients have the same test example, it counts as ID for both clients. The OOD accuracies between these two
clients exclude this example (docs/papers/soup.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.methods.federation import Federation
from knot_runner.metrics import Measures
from knot_runner.util.errors import UserError

#: A client counts as hurt if its own model misclassifies at least this many more of its test examples than the global
#: model.
HURT_EXAMPLES = 2


@dataclass(frozen=True)
class TestRows:
    """The distinct test examples of all clients, and the clients to which each example belongs.

    Attributes:
        rows: The row numbers [N] of the distinct test examples.
        places: All clients' test examples, client by client, as indices into ``rows``, shape [M].
        owners: The client number of each entry of ``places``, shape [M].
    """

    __test__ = False  # tells pytest that this is not a class of tests

    rows: Tensor
    places: Tensor
    owners: Tensor
    clients: int

    @staticmethod
    def of(test: Sequence[Tensor]) -> TestRows:
        """Return the clients' test examples. ``test`` holds one tensor of row numbers per client."""
        rows, places = torch.cat(list(test)).unique(return_inverse=True)
        owners = torch.repeat_interleave(torch.arange(len(test)), torch.tensor(list(map(len, test))))
        return TestRows(rows, places, owners, len(test))

    def own(self, client: int) -> Tensor:
        """Return the client's test examples as indices into ``rows``, shape [n]."""
        return self.places[self.owners == client]

    def sums(self, values: Tensor, client: int) -> Tensor:
        """Return the sum of ``values`` over each client's test examples, shape [..., K] for K clients.

        Test examples that ``client`` shares with another client are left out of the other client's sum.
        ``values`` [..., N] has one entry per distinct test example.
        """
        kept = values.double()[..., self.places]
        has = torch.zeros(len(self.rows), dtype=torch.bool)
        has[self.own(client)] = True
        kept *= ~has[self.places] | (self.owners == client)
        return kept.new_zeros(*kept.shape[:-1], self.clients).index_add_(-1, self.owners, kept)

    def examples(self) -> Tensor:
        """Return the counts of evaluated test examples, int32 [K, K].

        Entry (k, j) is the count of client j's test examples on which the model of client k is evaluated.
        """
        ones = torch.ones(len(self.rows))
        return torch.stack([self.sums(ones, client) for client in range(self.clients)]).int()


def count(tests: TestRows, logits: Tensor, labels: Tensor, client: int) -> tuple[Tensor, Tensor]:
    """Return the number of correct predictions and the summed loss of one model on each client's test examples.

    Args:
        tests: The clients' test examples.
        logits: The outputs [N, C] of the model for ``tests.rows``.
        labels: The labels [N] of ``tests.rows``.
        client: The client to which the model belongs.

    Returns:
        The counts of correct predictions, int32 [K], and the summed cross-entropy in nats, shape [K].
    """
    right = logits.argmax(1) == labels
    losses = F.cross_entropy(logits.double(), labels, reduction="none")
    correct, loss = tests.sums(torch.stack([right.double(), losses]), client)
    return correct.int(), loss


def matrix_measures(
    examples: Tensor, correct: Tensor, loss: Tensor, clients: Sequence[int], global_correct: Tensor | None = None
) -> Measures:
    """Return the ID and OOD measures of the clients' models (docs/papers/soup.md).

    In each K x K matrix, row k belongs to the model of client k, and column j to the test examples of client j. OOD
    measures are averaged over the off-diagonal entries of each row, and then over the rows. Within a row,
    ``ood_weighted`` weights the entries by ``examples``. All other OOD measures weight the entries equally. A client
    without test examples has no ID accuracy, and its column is left out. OOD measures are absent if no off-diagonal
    entry has examples.

    Args:
        examples: Number of test examples [K, K].
        correct: Number of correct predictions [K, K].
        loss: Summed loss [K, K].
        clients: The clients that may take part in rounds. ``unseen_accuracy`` is the ID accuracy of the remaining
            clients. All other measures cover only ``clients``.
        global_correct: Number of the global model's correct predictions on each client's examples, shape [K]. If given,
            ``clients_hurt`` is the fraction of clients whose own model has at least ``HURT_EXAMPLES`` fewer correct
            predictions than the global model.
    """
    share = correct.double() / examples.clamp(min=1)
    mean_loss = loss / examples.clamp(min=1)
    having = [client for client in clients if examples[client, client]]
    diagonal = share.diagonal()[having]
    worst = diagonal.sort().values[: math.ceil(len(having) / 10)]
    measures = {
        "id_accuracy": float(diagonal.mean()),
        "id_loss": float(mean_loss.diagonal()[having].mean()),
        "all_accuracy": float(torch.stack([share[client, having].mean() for client in clients]).mean()),
        "worst_decile": float(worst.mean()),
    }
    even = []
    weighted = []
    losses = []
    for client in clients:
        others = [other for other in clients if other != client and examples[client, other]]
        if others:
            even.append(share[client, others].mean())
            weighted.append(correct[client, others].sum() / examples[client, others].sum())
            losses.append(mean_loss[client, others].mean())
    for name, means in (("ood_accuracy", even), ("ood_weighted", weighted), ("ood_loss", losses)):
        if means:
            measures[name] = float(torch.stack(means).mean())
    if global_correct is not None:
        lost = (global_correct - correct.diagonal())[having]
        measures["clients_hurt"] = float((lost >= HURT_EXAMPLES).double().mean())
    unseen = [client for client in range(len(examples)) if client not in set(clients) and examples[client, client]]
    if unseen:
        measures["unseen_accuracy"] = float(share.diagonal()[unseen].mean())
    return measures


def check_own_models(spec: Any, federation: Federation) -> None:
    """Raise :class:`UserError` if the clients' own models cannot be evaluated on other clients' test examples.

    ``spec``: the personalization settings; None without personalization.
    """
    key = "evaluate.matrix" if spec is None else "method.personalization"
    clients = len(federation.clients)
    if len(federation) < 2:
        raise UserError("there is only one client, so no other client to evaluate on. Use null", key)
    having = [client for client in federation.numbers if len(federation.clients[client].test)]
    if len(having) < 2:
        raise UserError(f"expected at least 2 clients with test examples, got {len(having)} of {len(federation)}", key)
    outside = [client for client in getattr(spec, "clients", None) or [] if client >= clients]
    if outside:
        raise UserError(f"unknown client {outside[0]}. Use 0 to {clients - 1}", "method.personalization.clients")


def untested_notes(federation: Federation) -> list[str]:
    """Return a list with a note about clients without test examples; [] if all clients have test examples."""
    without = [client.name for client in federation.clients if not len(client.test)]
    if not without:
        return []
    shown = without[:3]
    if len(without) > 3:
        shown.append("...")
    return [
        f"no test examples at {len(without)} of {len(federation.clients)} clients ({', '.join(shown)}): these clients "
        "have no ID accuracy and do not count in the OOD accuracy of other clients"
    ]
