"""The models that a distillation ends with, as evaluation sees them, and what they predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from knot_runner.engine.requests import Predict, Ref
from knot_runner.engine.store import Artefact
from knot_runner.methods.federation import Federation
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
) -> tuple[TrainedModel, TrainedModel, dict[str, TrainedModel]]:
    """(The student, the global model before distillation, every teacher by its party)."""
    networks = federation.networks
    student = TrainedModel("student", networks[federation.server], _ref(state["student"]))
    before = TrainedModel("before", networks[federation.server], _ref(state["before"]))
    teachers = {}
    for party in federation.teachers:
        teachers[party] = TrainedModel(party, networks[party], _ref(state[f"weights/{party}"]))
    return student, before, teachers


def probabilities_of(predicted: Artefact) -> np.ndarray:
    """float32 [N, C] of predicted logits."""
    return torch.softmax(predicted.tensors()["logits"].double(), dim=1).float().numpy()


def _ref(name: str) -> Ref:
    stage, key = name.split("/")
    return stage, key
