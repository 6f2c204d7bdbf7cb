"""What a finished distillation has left in the store: its rounds, found by replanning the run, and its final models, as
evaluated, with their predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from knot_runner.engine.loop import key_of
from knot_runner.engine.requests import Predict, Ref, StageRequest, ref_of, request_title
from knot_runner.engine.store import Artifact, Store
from knot_runner.methods.contract import METHODS
from knot_runner.methods.party import PartyFederation, StoredParty
from knot_runner.models.network import Network
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.rounds.loop import State
from knot_runner.util.errors import UserError


@dataclass(frozen=True)
class TrainedModel:
    """A network and its weights in the store."""

    name: str
    network: Network
    weights: Ref

    def predict(self, stage: Any, examples: Ref, output: Any = "logits") -> Predict:
        """Returns the request for its ``output`` on stored ``examples``."""
        return Predict(stage, self.name, self.network, self.weights, examples, output)


def trained_models(
    federation: PartyFederation, state: State
) -> tuple[TrainedModel, TrainedModel | None, dict[str, TrainedModel]]:
    """Returns the student, the global model before distillation (if any), and every other model by party."""
    networks = {party.name: party.network for party in federation.teachers}
    own = federation.server.network
    student = TrainedModel("student", own, ref_of(state["student"]))
    before = TrainedModel("before", own, ref_of(state["before"])) if "before" in state else None
    teachers = {}
    for name in state:
        if name.startswith("weights/"):
            party = name.removeprefix("weights/")
            teachers[party] = TrainedModel(party, networks.get(party, own), ref_of(state[name]))
    return student, before, teachers


def parties_after(federation: PartyFederation, state: State) -> dict[str, TrainedModel]:
    """Returns every party's own model after mutual learning, including the current global one; {} without mutual
    learning."""
    parties = [party for party in federation.teachers if f"after/{party.name}" in state]
    if not parties:
        return {}
    found = {party.name: _trained(party, state[f"after/{party.name}"]) for party in parties}
    return {**found, federation.server.name: _trained(federation.server, state["student"])}


def _trained(party: StoredParty, artifact: str) -> TrainedModel:
    return TrainedModel(party.name, party.network, ref_of(artifact))


def probabilities_of(predicted: Artifact) -> np.ndarray:
    """float32 [N, C] of predicted logits."""
    return torch.softmax(predicted.tensors()["logits"].double(), dim=1).float().numpy()


@dataclass(frozen=True)
class FinishedRound:
    """The requests of a round, their artifacts in the same order, and the method's state."""

    requests: list[StageRequest]
    artifacts: list[Artifact]
    state: State


def finished_rounds(context: RunContext, federation: PartyFederation, store: Store) -> Iterator[FinishedRound]:
    """Yields every round of the run's method. Raises :class:`UserError` naming the first stage that is not in
    ``store``."""
    config, method = context.method, METHODS[context.method.algorithm]
    state, round = method.init(config, federation), 0
    while requests := method.plan(config, state, federation, round):
        artifacts: list[Artifact] = []
        for request in requests:
            found = store.find(*key_of(request))
            if found is None:
                raise UserError(
                    f"the run's {request_title(request)} is gone. Rerun with another paths.output_dir=DIR",
                    store.folder(*key_of(request)),
                )
            artifacts.append(found)
        state, _ = method.fold(config, state, federation, round, requests, artifacts)
        yield FinishedRound(requests, artifacts, state)
        round += 1
