"""Clients that keep models of their own: nothing is averaged, whatever they exchange. Their architectures may differ.

State: ``client/<k>/weights`` and ``client/<k>/buffers`` of clients that have trained; others have the first model
of their architecture.
"""

from __future__ import annotations

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated.cohort import LocalTraining, Trained
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.population import ClientModel, FederatedState, Population


def init(hp: FederatedSettings, population: Population) -> FederatedState:
    """No model but the first, which all begin with."""
    return {}


def plan(hp: FederatedSettings, state: FederatedState, population: Population, round: int) -> list[LocalTraining]:
    """Every participant goes on with its own model."""
    if round >= population.training.rounds:
        return []
    found = []
    for client in population.drawn(round):
        model = deployed(hp, state, population, client)
        own = {"weights": model.weights, "buffers": model.buffers}
        found.append(averaging.request(hp, own, population, round, client))
    return found


def fold(
    hp: FederatedSettings, state: FederatedState, population: Population, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> tuple[FederatedState, dict[str, float]]:  # fmt: skip
    """Every participant keeps what it has trained."""
    return state | kept_models(trained), {}


def deployed(hp: FederatedSettings, state: FederatedState, population: Population, client: int) -> ClientModel:
    """The client's own model; the first one of its architecture while it has not trained."""
    weights = state.get(f"client/{client}/weights")
    if weights is None:
        return population.start_of(client)
    return ClientModel(weights, state[f"client/{client}/buffers"])


def kept_models(trained: list[Trained]) -> FederatedState:
    """The part of the state that holds what clients have ``trained``."""
    kept: FederatedState = {}
    for result in trained:
        kept |= {f"client/{result.client}/weights": result.weights, f"client/{result.client}/buffers": result.buffers}
    return kept
