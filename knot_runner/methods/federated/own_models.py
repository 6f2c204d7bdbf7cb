"""Clients that keep their own models. Models are never averaged, and the clients' architectures may differ.

State: ``client/<k>/weights`` and ``client/<k>/buffers`` of clients that have trained. Other clients use the initial
model of their architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.methods.contract import ClientMessage, ClientWork, Method, PlanFunction
from knot_runner.methods.federated import averaging
from knot_runner.methods.federation import FederatedState, Federation, RoundRow


def init(config: FederatedSettings, federation: Federation) -> FederatedState:
    """Return an empty state: every client starts from the initial model of its architecture."""
    return {}


def plan(config: FederatedSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Return one training request per participant. Training starts from the participant's own model."""
    return averaging.drawn_requests(config, federation, round, partial(deployed, config, state, federation))


def plan_with(change: Callable[..., LocalTraining], plan: PlanFunction = averaging.plan) -> PlanFunction:
    """Return a plan function that calls ``plan`` and changes each request.

    ``change(config, state, federation, request)`` returns the changed request.
    """

    def changed_plan(
        config: FederatedSettings, state: FederatedState, federation: Federation, round: int
    ) -> list[LocalTraining]:
        """Return the changed requests."""
        return [change(config, state, federation, request) for request in plan(config, state, federation, round)]

    return changed_plan


def keep(config: FederatedSettings, state: FederatedState, federation: Federation, work: ClientWork) -> ClientMessage:
    """Return the client's own model after the round's training."""
    return model_parts(work.trained[-1])


def deployed(config: FederatedSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """Return the client's own model, or the initial model of its architecture if the client has not trained."""
    return kept_model(state, client) or federation.start_of(client)


def model_parts(result: Trained) -> ClientMessage:
    """Return the weights and buffers of a trained model, by name."""
    return {"weights": result.weights, "buffers": result.buffers}


def kept_models(trained: list[Trained], prefix: str = "client") -> FederatedState:
    """Return state entries ``<prefix>/<k>/weights`` and ``<prefix>/<k>/buffers`` of each client k in ``trained``."""
    kept: FederatedState = {}
    for result in trained:
        for name, tensor in model_parts(result).items():
            kept[f"{prefix}/{result.client}/{name}"] = tensor
    return kept


def kept_model(state: FederatedState, client: int) -> ClientModel | None:
    """Return the client's own model; None if the client has not trained."""
    weights = state.get(f"client/{client}/weights")
    if weights is None:
        return None
    return ClientModel(weights, state[f"client/{client}/buffers"])


def kept_means(works: list[ClientWork], **names: str) -> RoundRow:
    """Return log entries with the means of tensors that local training returned.

    ``names`` maps the name of each entry to the name of a tensor. The entry is the mean of the tensor's elements,
    averaged over the clients that returned the tensor. If no client returned the tensor, the entry is left out.
    """
    row: RoundRow = {}
    for entry, name in names.items():
        means = []
        for work in works:
            tensor = work.trained[0].kept.get(name)
            if tensor is not None:
                means.append(float(tensor.double().mean()))
        if means:
            row[entry] = sum(means) / len(means)
    return row


LOCAL = Method(init, plan, deployed=deployed, keep=keep, one_model=False)
