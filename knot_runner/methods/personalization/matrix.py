"""Metrics of the K x K record: every client's model on every client's test examples.

In-distribution (ID) accuracy is the accuracy of a client's model on the client's own test examples (the diagonal).
Out-of-distribution (OOD) accuracy is the accuracy of the same model on the test examples of the other clients, averaged
over these clients with equal weights. If two clients have the same test example, it counts as ID for both, and is
excluded from the OOD accuracies of both (docs/papers/soup.md).
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
    """The distinct test examples of all clients, and the client to which each belongs.

    Attributes:
        rows: The distinct test examples [N] of all clients.
        places: The positions [M] in ``rows`` of each client's examples, concatenated over clients.
        owners: The client that has the example at each of these positions, shape [M].
    """

    __test__ = False  # tells pytest that this is not a class of tests

    rows: Tensor
    places: Tensor
    owners: Tensor
    clients: int

    @staticmethod
    def of(test: Sequence[Tensor]) -> TestRows:
        """Return the index of ``test``, the rows of each client's test examples."""
        rows, places = torch.cat(list(test)).unique(return_inverse=True)
        owners = torch.repeat_interleave(torch.arange(len(test)), torch.tensor(list(map(len, test))))
        return TestRows(rows, places, owners, len(test))

    def own(self, client: int) -> Tensor:
        """Return the positions [n] in ``rows`` of the client's examples."""
        return self.places[self.owners == client]

    def sums(self, values: Tensor, client: int) -> Tensor:
        """Return the sums of ``values`` over each client's test examples, shape [..., K].

        ``values``, shape [..., N], has one entry per distinct test example.

        Other clients' examples that ``client`` also has are excluded.
        """
        kept = values.double()[..., self.places]
        has = torch.zeros(len(self.rows), dtype=torch.bool)
        has[self.own(client)] = True
        kept *= ~has[self.places] | (self.owners == client)
        return kept.new_zeros(*kept.shape[:-1], self.clients).index_add_(-1, self.owners, kept)

    def examples(self) -> Tensor:
        """Return int32 [K, K]: the number of test examples of client j (column) on which model k (row) is evaluated."""
        ones = torch.ones(len(self.rows))
        return torch.stack([self.sums(ones, client) for client in range(self.clients)]).int()


def count(tests: TestRows, logits: Tensor, labels: Tensor, client: int) -> tuple[Tensor, Tensor]:
    """Return the number of correct predictions and the summed loss of one model on every client's examples.

    The numbers of correct predictions are int32, shape [K]; the loss is the cross-entropy in nats, shape [K]. Both are
    computed from the ``logits`` [N, C] of the model of ``client`` and the ``labels`` [N] of ``tests.rows``.
    """
    right = logits.argmax(1) == labels
    losses = F.cross_entropy(logits.double(), labels, reduction="none")
    correct, loss = tests.sums(torch.stack([right.double(), losses]), client)
    return correct.int(), loss


def matrix_measures(
    examples: Tensor, correct: Tensor, loss: Tensor, clients: Sequence[int], global_correct: Tensor | None = None
) -> Measures:
    """Return the measures of a K x K record (docs/papers/soup.md).

    A client without test examples has no ID accuracy and is not part of OOD accuracies. OOD measures are means over
    off-diagonal entries, either unweighted or weighted by the other clients' numbers of examples (``ood_weighted``). If
    there are no off-diagonal entries, these measures are absent.

    Args:
        examples: Number of test examples [K, K].
        correct: Correct predictions [K, K].
        loss: Summed loss [K, K].
        clients: The clients that took part. All metrics cover these clients, except ``unseen_accuracy``, the ID
            accuracy of the other clients.
        global_correct: The global model's correct predictions [K] on each client's examples. ``clients_hurt`` is
            computed only if this argument is given. It is the fraction of clients whose own model has at least
            ``HURT_EXAMPLES`` fewer correct predictions than the global model.
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
    """Raise :class:`UserError` if clients' models cannot be evaluated on other clients' examples.

    ``spec``: the personalization settings, if any.
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
    """Return a note that the record omits clients without test examples; [] if all clients have test examples."""
    without = [client.name for client in federation.clients if not len(client.test)]
    if not without:
        return []
    shown = without[:3]
    if len(without) > 3:
        shown.append("...")
    return [
        f"no test examples at {len(without)} of {len(federation.clients)} clients ({', '.join(shown)}): they have no "
        "ID accuracy and do not count in the OOD accuracy of others"
    ]
