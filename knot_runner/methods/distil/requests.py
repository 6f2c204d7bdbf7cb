"""Requests of distillation by loss terms: train students, or pick one of several trained together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from knot_runner.config.settings import StageSettings
from knot_runner.engine.examples import Augment
from knot_runner.engine.loop import Place, Report
from knot_runner.engine.requests import OwnRequest, Ref, StoredPart
from knot_runner.engine.training import Trainee, make_optimiser, train_epochs
from knot_runner.methods.distil.students import Students
from knot_runner.models.network import Network


@dataclass(frozen=True)
class TrainStudents(OwnRequest):
    """Train one student, or several that teach each other; the artefact holds the weights of the one, or of each
    student i under ``i.``."""

    #: distil, or that of a phase before (:mod:`knot_runner.methods.distil.distil`)
    stage: str
    party: str
    network: Network
    train: StoredPart
    valid: StoredPart
    #: ``method.terms``
    terms: dict[str, dict[str, Any]]
    #: ``method.schedule``
    schedule: dict[str, Any]
    #: frozen ones: network and weights of each
    teachers: tuple[tuple[Network, Ref], ...]
    #: [C][d], where the classes lie
    points: list[list[float]]
    auto_ratio: float
    training: StageSettings
    seed: int
    augment: Augment = "none"
    #: digest of a pre-trained encoder's settings
    weights: str = "scratch"
    #: the training images as the frozen teachers read them, in the same order, where the student sees a view of them
    originals: Ref | None = None
    #: weights of the one student that an earlier phase ended with; None = from the seed, or pre-trained
    start: Ref | None = None

    def carry_out(self, place: Place, work: Path, report: Report) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The weights kept, and facts: those of :func:`knot_runner.engine.training.train_epochs`, and ``terms``, the
        weight of each and its first ratio to the cross-entropy. Raises :class:`DivergedError`, and :class:`UserError`
        for terms that do not fit the networks."""
        students = Students(self, place, report)
        settings = self.training
        trainee = Trainee(
            students.module,
            make_optimiser(settings, [p for p in students.module.parameters() if p.requires_grad]),
            epoch=lambda number: students.epoch(number, trainee.optimiser),
            score=students.score,
            weights=students.weights,
        )
        best, facts = train_epochs(trainee, work, settings, "f1")
        return best, {**facts, "terms": students.first_values}


@dataclass(frozen=True)
class PickStudent(OwnRequest):
    """One of several students that were trained together, as an artefact of its own."""

    stage: Literal["picked"]
    party: str
    together: Ref
    number: int

    def carry_out(self, place: Place, work: Path, report: Report) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns the student's weights, and the facts of all; it takes no time of its own."""
        found, prefix = place.store.get(*self.together), f"{self.number}."
        tensors = {name.removeprefix(prefix): t for name, t in found.tensors().items() if name.startswith(prefix)}
        return tensors, {**found.info, "seconds": 0.0}
