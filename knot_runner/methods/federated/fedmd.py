"""FedMD (Li and Wang 2019): clients keep their models and share logits of public examples.

In a round they train on their own examples, then give their logits for the transfer set; each fits the consensus there
by the same distillation as FedDF's server (``method.server_distillation``). Their architectures may differ
(``method.models``). State: :mod:`own_models`.
"""

from __future__ import annotations

from torch import Tensor

from knot_runner.config.settings import FedMdSettings
from knot_runner.engine.federated.cohort import LocalTraining, Trained
from knot_runner.methods.contract import Exchange, Method
from knot_runner.methods.federated import own_models
from knot_runner.methods.federated.costs import PUBLIC_LOGITS
from knot_runner.methods.federated.own_models import kept_models
from knot_runner.methods.federated.server_distillation import client_inferences, distillation_request, distilled_row
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow


def client_training(
    hp: FedMdSettings, state: FederatedState, federation: Federation, round: int, trained: list[Trained],
    logits: list[Tensor],
) -> list[LocalTraining]:  # fmt: skip
    """Requests that each participant distills from all participants' logits, starting from its trained model."""
    return [
        distillation_request(
            hp, hp.server_distillation, federation, round, trained, logits, result.client, result.model,
            federation.clients[result.client].test,
        )
        for result in trained
    ]  # fmt: skip


def fold_clients(
    hp: FedMdSettings, state: FederatedState, federation: Federation, round: int, trained: list[Trained],
    logits: list[Tensor], distilled: list[Trained],
) -> Folded:  # fmt: skip
    """Stores every participant's distilled model; accuracies are on its own test examples. In private training also
    the norms of the participants' logits before clipping."""
    norms: RoundRow = {}
    if federation.privacy is not None:
        from knot_runner.methods.federated.user_privacy import logits_row

        norms = logits_row(federation.privacy, logits)
    if not distilled:
        return state, norms
    tested = sum(len(federation.clients[result.client].test) for result in distilled)
    row = distilled_row(distilled, tested if federation.training.measures(round) else 0)
    return {**state, **kept_models(distilled)}, row | norms


FEDMD = Method(
    own_models.init,
    own_models.plan,
    own_models.fold,
    own_models.deployed,
    one_model=False,
    exchange=Exchange(client_inferences, client_training, fold_clients, answered_by="clients"),
    traffic=PUBLIC_LOGITS,
)
