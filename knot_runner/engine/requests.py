"""Requests of a method to the engine (train, predict): plain data that can be hashed, pickled and compared."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from knot_runner.config.settings import ModelSettings, StageSettings
from knot_runner.config.settings.run_id import used_of_stage
from knot_runner.config.strict import digest
from knot_runner.engine.objectives import Objective
from knot_runner.models.network import Network

#: Bump when a change of code changes what a stage computes: older artefacts are then not found.
REQUEST_FORMAT = 1
#: (stage, key) of an artefact in the store.
Ref = tuple[str, str]


@dataclass(frozen=True)
class EncodedPart:
    """Encoded texts, and the objective's other inputs for them (the teachers' soft labels)."""

    tokens: Ref
    inputs: dict[str, Ref] = field(default_factory=dict)


@dataclass(frozen=True)
class Train:
    """Train one model. ``start`` = weights to begin from (None: initialised from the seed and the party's name)."""

    stage: Literal["local", "pretrain", "distil"]
    party: str
    network: Network
    start: Ref | None
    train: EncodedPart
    valid: EncodedPart
    objective: Objective
    training: StageSettings
    #: selection metric of the best epoch, on the valid part: macro-F1 or loss (``training.select``: whether it is kept)
    select: Literal["f1", "loss"]
    seed: int
    #: digest of a pre-trained encoder's settings, when ``start`` is None and model.weights is not scratch
    weights: str = "scratch"


@dataclass(frozen=True)
class Predict:
    """Logits [N, C] (or [CLS] features [N, H]) of one model on encoded texts."""

    stage: Literal["soft_labels", "bias", "predictions", "features", "probe"]
    party: str
    network: Network
    weights: Ref
    tokens: Ref
    output: Literal["logits", "features"] = "logits"


TextRequest = Train | Predict


def request_title(request: TextRequest) -> str:
    """The request's name in the progress bar."""
    return f"{request.stage} {request.party}".strip()


def request_key(request: TextRequest) -> str:
    """Content address of a request's result: everything that decides it, and nothing else."""
    plain = {}
    for spec in dataclasses.fields(request):
        value = getattr(request, spec.name)
        if isinstance(value, Objective):
            value = {"make": value.name, "settings": value.settings}
        elif isinstance(value, Network):
            value = {"spec": _architecture(value.spec), "vocabulary": value.inputs, "classes": value.classes}
        elif isinstance(value, StageSettings):  # the length of its texts is in the texts' own key
            value = used_of_stage({**dataclasses.asdict(value), "max_length": None})
        plain[spec.name] = value
    if isinstance(request, Predict):  # whose model it is follows from the weights; two roles may share one prediction
        del plain["party"], plain["stage"]
    return digest({"format": REQUEST_FORMAT, **plain})


def _architecture(spec: ModelSettings) -> dict[str, Any]:
    names = ("head", "hidden", "layers", "heads", "intermediate", "dropout")
    return {name: getattr(spec, name) for name in names}
