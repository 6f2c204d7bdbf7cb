"""The models that a distillation ends with, as evaluation sees them, and what they predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from knot_runner.engine.requests import Predict, Ref, ref_of
from knot_runner.engine.store import Artefact
from knot_runner.methods.federation import Federation
from knot_runner.methods.party import Party
from knot_runner.models.network import Network


@dataclass(frozen=True)
class TrainedModel:
    """A network and its weights in the store."""

    name: str
    network: Network
    weights: Ref

    def predict(self, stage: Any, examples: Ref, output: Any = "logits") -> Predict:
        """The request for its ``output`` on stored ``examples``."""
        return Predict(stage, self.name, self.network, self.weights, examples, output)


def trained_models(
    federation: Federation, state: dict[str, Any]
) -> tuple[TrainedModel, TrainedModel | None, dict[str, TrainedModel]]:
    """(The student, the global model before distillation where there is one, every other model by its party)."""
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


def parties_after(federation: Federation, state: dict[str, Any]) -> dict[str, TrainedModel]:
    """Every party's own model after they learnt from each other, the global one as it is now; {} where they did not."""
    parties = [party for party in federation.teachers if f"after/{party.name}" in state]
    if not parties:
        return {}
    found = {party.name: _trained(party, state[f"after/{party.name}"]) for party in parties}
    return {**found, federation.server.name: _trained(federation.server, state["student"])}


def _trained(party: Party, artefact: str) -> TrainedModel:
    return TrainedModel(party.name, party.network, ref_of(artefact))


def probabilities_of(predicted: Artefact) -> np.ndarray:
    """float32 [N, C] of predicted logits."""
    return torch.softmax(predicted.tensors()["logits"].double(), dim=1).float().numpy()
