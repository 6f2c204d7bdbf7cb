"""Requests of methods that train in stages: plain data that can be hashed, pickled and compared.

A request contains no tensors, but references to artifacts, which are stored results of earlier stages. If several runs
have equal requests, the result is computed once.

Federated clients train in rounds and use the requests in :mod:`knot_runner.engine.federated.cohort` instead.
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
    """Split an artifact's ``name``, which has the form ``stage/key``, into the pair (stage, key)."""
    stage, key = name.split("/")
    return stage, key


@dataclass(frozen=True)
class StoredPart:
    """References to stored examples, and to stored inputs of the objective, such as soft labels."""

    examples: Ref
    inputs: dict[str, Ref] = field(default_factory=dict)


@dataclass(frozen=True)
class Train:
    """A request to train one model in a stage.

    ``start``: the artifact with the initial weights. If ``start`` is None, all weights that are not pretrained are
    drawn at random, with a seed that depends on ``seed`` and ``party``.
    """

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
    """A request for the logits of a model, shape [N, C], or for its features, shape [N, H].

    Features are the inputs of the last layer. ``weights`` and ``examples`` refer to artifacts.
    """

    stage: Literal["soft_labels", "bias", "predictions", "features", "probe"]
    party: str
    network: Network
    weights: Ref
    examples: Ref
    output: Literal["logits", "features"] = "logits"


class OwnRequest(ABC):
    """Base class for request types that a method defines.

    A subclass is a frozen dataclass of plain data with the fields ``stage`` and ``party``. Its function :meth:`run`
    executes the request.
    """

    stage: str
    party: str

    @abstractmethod
    def run(self, resources: Any, work: Path, report: Any) -> TensorsAndFacts:
        """Execute the request; return the tensors of the result and a dict of facts.

        The dict must hold the duration of the execution as ``seconds``.

        Args:
            resources: The store and the device (:class:`~knot_runner.engine.loop.Resources`).
            work: The folder for saved states.
            report: Function for progress messages, called with (finished steps, total steps, short text).
        """


class OwnTraining(OwnRequest):
    """Base class for an :class:`OwnRequest` that trains models for a number of epochs."""

    training: StageSettings
    seed: int
    augment: Augment


StageRequest = Train | Predict | OwnRequest


def request_title(request: StageRequest) -> str:
    """Return the title of the request in the progress bar: its stage and its party."""
    return f"{request.stage} {request.party}".strip()


def request_key(request: StageRequest) -> str:
    """Return the key of the request's result in the store: a digest of everything that determines the result."""
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
