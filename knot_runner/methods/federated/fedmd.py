"""FedMD (Li and Wang 2019): clients keep their models and share logits of public examples.

In a round they train on their own examples, then give their logits for the transfer set; each fits the consensus there
by the same distillation as FedDF's server (``method.server_distillation``). Their architectures may differ
(``method.models``). State: :mod:`own_models`.
"""

from __future__ import annotations

from dataclasses import replace

from knot_runner.config.settings import FedMdSettings
from knot_runner.engine.federated.cohort import LocalTraining, Trained
from knot_runner.methods.around.server_distillation import answer, ask, distillation_request, distilled_row, reads
from knot_runner.methods.contract import Answers, Exchange
from knot_runner.methods.federated import own_models
from knot_runner.methods.federated.own_models import kept_models
from knot_runner.methods.federation import FederatedState, Federation, Folded


def exchange(hp: FedMdSettings) -> Exchange:
    """Logits of public examples, and the clients' training on their consensus."""
    return Exchange(ask, answer, client_training, fold_clients, reads(hp.server_distillation), answered_by="clients")


def client_training(
    hp: FedMdSettings, state: FederatedState, federation: Federation, round: int, answers: Answers
) -> list[LocalTraining]:
    """Requests that each participant distills from all participants' logits, starting from its trained model."""
    spec = hp.server_distillation
    known = hp, spec, federation, round, answers
    return [
        distillation_request(*known, client, model, federation.clients[client].test)
        for client, model in answers.students.items()
    ]


def fold_clients(
    hp: FedMdSettings, state: FederatedState, federation: Federation, round: int, answers: Answers,
    distilled: list[Trained],
) -> Folded:  # fmt: skip
    """Stores every participant's distilled model; accuracies are on its own test examples."""
    if not distilled:
        return state, {}
    tested = sum(len(federation.clients[result.client].test) for result in distilled)
    row = distilled_row(distilled, tested if federation.training.measures(round) else 0)
    return {**state, **kept_models(distilled)}, row


FEDMD = replace(own_models.LOCAL, exchange=exchange)
