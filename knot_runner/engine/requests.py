"""Requests of methods that train in stages: plain data that can be hashed, pickled and compared.

Requests refer to artifacts in the store, so that runs with equal requests share results. Clients that train in rounds
use :mod:`knot_runner.engine.federated.cohort` instead. The requests of that module contain tensors, because a round's
weights are read only once and are not stored. ``network``, ``start``, ``objective`` and ``seed`` have the same meaning
in both modules.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from knot_runner.config.settings.groups import ModelSettings, StageSettings
from knot_runner.config.settings.networks import ImageModel
from knot_runner.config.strict import digest, without
from knot_runner.engine.examples import Augment
from knot_runner.engine.objectives import Objective
from knot_runner.models.network import Network

#: (stage, key) of an artifact in the store.
Ref = tuple[str, str]
#: The content of an artifact: its tensors, and a dict of facts about the stage.
TensorsAndFacts = tuple[dict[str, Tensor], dict[str, Any]]


def ref_of(name: str) -> Ref:
    """Return the reference to the artifact with the name ``stage/key``."""
    stage, key = name.split("/")
    return stage, key


@dataclass(frozen=True)
class StoredPart:
    """Stored texts or images, and stored inputs of the objective, such as the teachers' soft labels."""

    examples: Ref
    inputs: dict[str, Ref] = field(default_factory=dict)


@dataclass(frozen=True)
class Train:
    """A request to train one model. If ``start`` is None, seed and party name determine the random initial weights."""

    stage: Literal["local", "pretrain", "distill"]
    party: str
    network: Network
    start: Ref | None
    train: StoredPart
    #: the validation examples; None if no examples are held out, in which case the last epoch's weights are used
    valid: StoredPart | None
    objective: Objective
    training: StageSettings
    #: the metric on validation examples that selects the best epoch: macro-F1 ("score") or the loss
    select: Literal["score", "loss"]
    seed: int
    #: the digest of the pretrained encoder's settings, if training starts from this encoder; otherwise "scratch"
    weights: str = "scratch"
    #: the augmentation of training images
    augment: Augment = "none"


@dataclass(frozen=True)
class Predict:
    """A request for a model's logits, shape [N, C], or its features (inputs of the last layer), shape [N, H]."""

    stage: Literal["soft_labels", "bias", "predictions", "features", "probe"]
    party: str
    network: Network
    weights: Ref
    examples: Ref
    output: Literal["logits", "features"] = "logits"


class OwnRequest(ABC):
    """Base class of a request type that a method defines.

    Subclasses are frozen dataclasses of plain data. These classes have the fields ``stage`` and ``party``, and a method
    ``run`` that executes the request.
    """

    stage: str
    party: str

    @abstractmethod
    def run(self, resources: Any, work: Path, report: Any) -> TensorsAndFacts:
        """Execute the request; return the artifact's tensors and a dict of facts. The dict must include ``seconds``.

        ``resources``, ``work`` and ``report`` are the arguments of :func:`knot_runner.engine.loop.train_network`.
        """


class OwnTraining(OwnRequest):
    """An :class:`OwnRequest` that trains for a number of epochs."""

    training: StageSettings
    seed: int
    augment: Augment


StageRequest = Train | Predict | OwnRequest


def request_title(request: StageRequest) -> str:
    """Return the request's name in the progress bar."""
    return f"{request.stage} {request.party}".strip()


def request_key(request: StageRequest) -> str:
    """Return the content address of a request's result: a digest of everything that determines the result."""
    plain = {spec.name: _plain(getattr(request, spec.name)) for spec in dataclasses.fields(request)}
    if isinstance(request, Predict):  # the weights imply the party; two parties may share a prediction
        del plain["party"], plain["stage"]
    return digest(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, StoredPart):
        return {"examples": value.examples, "inputs": value.inputs}
    if isinstance(value, Objective):
        return {"make": value.name, "settings": value.settings}
    if isinstance(value, Network):
        inputs = {"vocabulary" if value.reads_texts else "shape": value.inputs}
        return {"spec": _architecture(value.spec), **inputs, "classes": value.classes}
    if isinstance(value, StageSettings):  # length and number of the random texts are in the key of these texts
        return {**dataclasses.asdict(value), "max_length": None, "max_examples": None}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _architecture(spec: ModelSettings | ImageModel) -> dict[str, Any]:
    if not isinstance(spec, ModelSettings):
        return without(dataclasses.asdict(spec), "name")
    names = ("head", "hidden", "layers", "heads", "intermediate", "dropout")
    return {name: getattr(spec, name) for name in names}
