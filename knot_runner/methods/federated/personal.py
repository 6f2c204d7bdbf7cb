"""FedPer (Arivazhagan et al. 2019) and FedRep (Collins et al. 2021): a shared body, a personal head for each client.

FedPer trains both together; FedRep first the head, then the body. The head is the last linear layer (FedWaD's public
code). A head never leaves its client: one that has not trained yet uses the global body with its initial head, which is
that of the first global model for every client, as in PFLlib. With ``method.first_head=averaged`` it uses the mean of
the trained heads, as in FedWaD's public code. The state has that mean in either case: a server that distills (FedDF)
trains the averaged model on the outputs of the clients' models, and does not change their heads.
State, beyond FedAvg's: ``head/<client>``, the head's parameters of clients that have trained one.
"""

from __future__ import annotations

import dataclasses

from knot_runner.config.settings import FedPerSettings, FedRepSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.engine.federated.recipe import Phase
from knot_runner.methods.contract import Method
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.chilling import local_request
from knot_runner.methods.federated.costs import BODIES
from knot_runner.methods.federated.server_distillation import DISTILLATION
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow
from knot_runner.util.errors import UserError


def init(hp: FedPerSettings, federation: Federation) -> FederatedState:
    """The first global model. Raises :class:`UserError` when there is no body, or it gets no epoch."""
    if not federation.layout.mask("body").any():
        raise UserError(f"{hp.algorithm} shares all but the head; at least one hidden layer is right", "model.hidden")
    epochs = federation.training.local_epochs
    if isinstance(hp, FedRepSettings) and (hp.head_epochs or 0) >= epochs:
        raise UserError(
            f"{hp.head_epochs} of training.local_epochs={epochs} leaves none for the body. Use at most {epochs - 1}",
            "method.head_epochs",
        )
    return averaging.init(hp, federation)


def plan(hp: FedPerSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """The drawn clients in every round; all clients' heads alone in one more, if ``final_head_epochs`` is set."""
    rounds = federation.training.rounds
    if round == rounds and hp.final_head_epochs:
        chosen, phases = federation.numbers, (Phase(hp.final_head_epochs, "head"),)
    elif round < rounds:
        chosen, phases = federation.drawn(round), None
    else:
        return []
    return [_request(hp, state, federation, round, client, phases) for client in chosen]


def fold(
    hp: FedPerSettings, state: FederatedState, federation: Federation, round: int, requests: list[LocalTraining],
    trained: list[Trained],
) -> Folded:  # fmt: skip
    """Average the models and keep each client's head; a round of heads alone leaves the global model as it is. Clients
    keep their own running statistics (``batchnorm=local``) in either."""
    phases = [phase for request in requests for phase in request.recipe.phases]
    heads_alone = bool(phases) and all(phase.trains == "head" for phase in phases)
    row: RoundRow = {}
    if not heads_alone:
        state, row = averaging.fold(hp, state, federation, round, requests, trained)
    head = federation.layout.mask("head")
    heads = {f"head/{result.client}": result.weights[head] for result in trained}
    return state | averaging.own_statistics(hp, trained) | heads, row


def deployed(hp: FedPerSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """Return the global body with the client's own head, or with its first one (``method.first_head``)."""
    model = averaging.deployed(hp, state, federation, client)
    own = state.get(f"head/{client}")
    if own is None and hp.first_head == "averaged":
        return model
    if own is None:
        own = federation.model.weights[federation.layout.mask("head")]
    return ClientModel(federation.layout.with_head(model.weights, own), model.buffers)


def _request(
    hp: FedPerSettings, state: FederatedState, federation: Federation, round: int, client: int,
    phases: tuple[Phase, ...] | None,
) -> LocalTraining:  # fmt: skip
    whole = local_request(hp, federation, round, client, deployed(hp, state, federation, client))
    if phases is None:
        epochs = sum(phase.epochs for phase in whole.recipe.phases)
        phases = whole.recipe.phases
        if isinstance(hp, FedRepSettings):
            head = hp.head_epochs or epochs - 1
            phases = (Phase(head, "head"), Phase(max(epochs - head, 1), "body"))
    return dataclasses.replace(whole, recipe=dataclasses.replace(whole.recipe, phases=phases))


#: FedRep and FedPer
SHARED_BODY = Method(init, plan, fold, deployed, one_model=False, exchange=DISTILLATION, traffic=BODIES)
