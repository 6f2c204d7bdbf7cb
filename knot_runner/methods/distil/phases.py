"""Phases of a student's training, one after the other, each with a loss of its own.

FitNets' two stages (Romero et al. 2015, algorithm 1) are one phase on ``hint`` alone, whose gradient reaches the
regressor and the student up to the guided layer, and then the training by ``method.terms``. What carries over is the
student; its optimiser and the adapters of a phase's terms end with it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from knot_runner.config.settings import DistilSettings, build
from knot_runner.config.settings.methods.distil import SCHEDULE_SETTINGS, OfflineSchedule, PhaseSettings
from knot_runner.engine.requests import ref_of
from knot_runner.engine.store import Artefact
from knot_runner.methods.distil.requests import TrainStudents


def phases_of(hp: DistilSettings) -> list[PhaseSettings]:
    """Returns the phases before training by ``method.terms``; [] where there are none."""
    schedule = build(SCHEDULE_SETTINGS[hp.schedule["kind"]], hp.schedule, "method.schedule")
    return schedule.phases if isinstance(schedule, OfflineSchedule) else []


def in_phase(hp: DistilSettings, state: dict[str, Any], last: TrainStudents) -> TrainStudents:
    """The next training of the student: that of the first phase missing in ``state``, else the ``last`` one, by
    ``method.terms``; each starts from the weights of the previous phase.

    A phase's batches are in an order of its own, and its last epoch is kept: what it trains need not classify yet.
    """
    phases, done = phases_of(hp), len(state.get("phases", []))
    start = ref_of(state[f"phase/{done}"]) if done else None
    if done == len(phases):
        return dataclasses.replace(last, start=start)
    training = dataclasses.replace(last.training, epochs=phases[done].epochs, select="last", milestones=[])
    stage = f"phase{done + 1}"
    return dataclasses.replace(last, stage=stage, terms=phases[done].terms, training=training, start=start)


def phase_taken(state: dict[str, Any], request: TrainStudents, artefact: Artefact) -> dict[str, Any]:
    """Returns the state after a phase: its artefact's name under ``phase/<number>``, from 1, and in ``phases`` its
    epochs and the weights of its terms."""
    known = state.get("phases", [])
    facts = {"epochs": request.training.epochs, "terms": artefact.info["terms"]}
    return {f"phase/{len(known) + 1}": f"{artefact.stage}/{artefact.key}", "phases": [*known, facts]}
