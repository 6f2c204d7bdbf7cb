"""Clients that keep models of their own: nothing is averaged, whatever they exchange. Their architectures may differ.

State: ``client/<k>/weights`` and ``client/<k>/buffers`` of clients that have trained; others have the first model
of their architecture.
"""

from __future__ import annotations

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.methods.federated import averaging
from knot_runner.methods.federation import FederatedState, Federation


def init(hp: FederatedSettings, federation: Federation) -> FederatedState:
    """No model but the first, which all begin with."""
    return {}


def plan(hp: FederatedSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Every participant goes on with its own model."""
    if round >= federation.training.rounds:
        return []
    found = []
    for client in federation.drawn(round):
        model = deployed(hp, state, federation, client)
        own = {"weights": model.weights, "buffers": model.buffers}
        found.append(averaging.request(hp, own, federation, round, client))
    return found


def fold(
    hp: FederatedSettings, state: FederatedState, federation: Federation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> tuple[FederatedState, dict[str, float]]:  # fmt: skip
    """Every participant keeps what it has trained."""
    return state | kept_models(trained), {}


def deployed(hp: FederatedSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """The client's own model; the first one of its architecture while it has not trained."""
    return kept_model(state, client) or federation.start_of(client)


def kept_models(trained: list[Trained]) -> FederatedState:
    """The part of the state that holds what clients have ``trained``."""
    kept: FederatedState = {}
    for result in trained:
        kept |= {f"client/{result.client}/weights": result.weights, f"client/{result.client}/buffers": result.buffers}
    return kept


def kept_model(state: FederatedState, client: int) -> ClientModel | None:
    """The own model of ``client``; None while it has not trained."""
    weights = state.get(f"client/{client}/weights")
    if weights is None:
        return None
    return ClientModel(weights, state[f"client/{client}/buffers"])
