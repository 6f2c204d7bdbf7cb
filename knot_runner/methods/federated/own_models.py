"""Clients with their own models, which are never averaged, whatever they exchange. Architectures may differ.

State: ``client/<k>/weights`` and ``client/<k>/buffers`` of clients that have trained; others have the first model
of their architecture.
"""

from __future__ import annotations

import functools

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.methods.contract import Method
from knot_runner.methods.federated.chilling import drawn_requests
from knot_runner.methods.federated.costs import NOTHING_SENT
from knot_runner.methods.federation import FederatedState, Federation, Folded


def init(hp: FederatedSettings, federation: Federation) -> FederatedState:
    """Returns an empty state: all clients start from their architecture's initial model."""
    return {}


def plan(hp: FederatedSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Requests that every participant trains its own model further."""
    return drawn_requests(hp, federation, round, functools.partial(deployed, hp, state, federation))


def fold(
    hp: FederatedSettings, state: FederatedState, federation: Federation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> Folded:  # fmt: skip
    """Stores every participant's trained model."""
    return state | kept_models(trained), {}


def deployed(hp: FederatedSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """The client's own model; the first one of its architecture while it has not trained."""
    return kept_model(state, client) or federation.start_of(client)


def kept_models(trained: list[Trained], prefix: str = "client") -> FederatedState:
    """The part of the state that holds what clients have ``trained``, below ``prefix``."""
    kept: FederatedState = {}
    for result in trained:
        name = f"{prefix}/{result.client}"
        kept |= {f"{name}/weights": result.weights, f"{name}/buffers": result.buffers}
    return kept


def kept_model(state: FederatedState, client: int) -> ClientModel | None:
    """The own model of ``client``; None while it has not trained."""
    weights = state.get(f"client/{client}/weights")
    if weights is None:
        return None
    return ClientModel(weights, state[f"client/{client}/buffers"])


LOCAL = Method(init, plan, fold, deployed, one_model=False, traffic=NOTHING_SENT)
