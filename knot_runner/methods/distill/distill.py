"""Distillation by loss terms: from trained teachers, among students, or from one student generation to the next.

The rounds depend on the schedule:

- ``offline``: One round trains the teachers that are not trained yet. Then each phase of the student's training is a
  separate round.
- ``generations``: Each student has one round.
- other schedules: One round trains all students.

Data-free distillation adds rounds before the student's rounds. If the synthesis reads records (statistics) of the
teacher's activations, one round computes these records. Then one round synthesizes images from the teacher.

Facts of the result:

- ``terms``: for each loss term, its weight, and the initial ratio of the weighted term to the cross-entropy
- ``phases``: for each phase, its number of epochs and its ``terms``
- ``synthesis``: facts about the synthesized images

Each phase of a student's training has its own loss. For example, FitNets has two stages (Romero et al. 2015, algorithm
1). Stage 1 is a phase whose only term is ``hint``. It trains the regressor, and the student up to the guided layer.
Stage 2 is the training on ``method.terms``. Each phase continues from the student's weights, but with a new optimizer
and new adapters.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from knot_runner.config.settings.methods.distill import (
    DistillSettings,
    GenerationsSchedule,
    MutualSchedule,
    OfflineSchedule,
    PhaseSettings,
    RecordsSynthesis,
    StatisticsSynthesis,
    Synthesis,
)
from knot_runner.config.settings.methods.terms import Terms
from knot_runner.engine.requests import Ref, StageRequest, StoredPart, ref_of
from knot_runner.engine.store import Artifact
from knot_runner.methods.distill.learner import read_terms
from knot_runner.methods.distill.students import PickStudent, TrainStudents, student_name
from knot_runner.methods.distill.synthesis.images import batch_norms
from knot_runner.methods.distill.synthesis.requests import MakeImages, ReleaseRecords
from knot_runner.methods.distill.term import TERMS
from knot_runner.methods.party import PartyFederation, StageMethod, StageState, scored
from knot_runner.models.network import Network, build_network
from knot_runner.util.errors import UserError
from knot_runner.util.files import LogRow


def init(config: DistillSettings, federation: PartyFederation) -> StageState:
    """Return the initial state. The state lists the stored weights of each teacher that is already trained.

    Raises:
        UserError: A term does not fit the networks or the schedule, or the synthesis does not fit the teacher.
    """
    student = federation.server.network
    teachers = [teacher.network for teacher in federation.clients]
    if not isinstance(config.schedule, OfflineSchedule):
        teachers = [student]
    specs = read_terms(config.terms, student, teachers)
    for number, phase in enumerate(phases_of(config)):
        read_terms(phase.terms, student, teachers, f"method.schedule.phases[{number}].terms")
    if isinstance(config.synthesis, StatisticsSynthesis):
        with torch.device("meta"):
            model = build_network(teachers[0])
        if not batch_norms(model):
            name = teachers[0].spec.name
            raise UserError(
                f"the teacher needs batch normalization, but {name} has none. Use a teacher such as resnet8, "
                "wrn_16_1 or vgg8",
                "method.synthesis.kind=statistics",
            )
    if isinstance(config.schedule, GenerationsSchedule) and all(spec.needs_teacher for spec in specs):
        raise UserError("the first generation has no teacher, so the term 'ce' is required", "method.terms")
    return StageState({teacher.name: "/".join(teacher.trained) for teacher in federation.clients if teacher.trained})


def plan(config: DistillSettings, state: StageState, federation: PartyFederation, round: int) -> list[StageRequest]:
    """Return the requests of ``round``; [] when the method has finished."""
    schedule = config.schedule
    if state.student:
        return []
    if isinstance(schedule, GenerationsSchedule):
        return [plan_generation(config, state, federation, round, schedule.generations)]
    requests: list[StageRequest] = []
    for teacher in federation.clients:
        if teacher.name not in state.weights:
            requests.append(federation.supervised(teacher, "local"))
    if requests:
        return requests
    if isinstance(schedule, MutualSchedule) and state.together:
        for number in range(schedule.students):
            requests.append(PickStudent("picked", student_name("student", number), ref_of(state.together), number))
        return requests
    if config.synthesis is not None and not state.synthetic:
        return [plan_images(config.synthesis, state, federation)]
    frozen = [(teacher.network, ref_of(state.weights[teacher.name])) for teacher in federation.clients]
    images = None
    if state.synthetic:
        images = StoredPart(ref_of(state.synthetic))
    student = train_students(config, federation, federation.server.name, config.terms, frozen, images)
    return [in_phase(config, state, student)]


def fold(
    config: DistillSettings, state: StageState, federation: PartyFederation, round: int,
    requests: list[StageRequest], artifacts: list[Artifact],
) -> tuple[StageState, LogRow]:  # fmt: skip
    """Return the state after ``round``, and the log entries of the round."""
    state = copy.deepcopy(state)
    row = {}
    for request, artifact in zip(requests, artifacts, strict=True):
        name = artifact.name
        info = artifact.info
        party = request.party
        terms = info.get("terms")
        if isinstance(request, ReleaseRecords):
            state.records = name
        elif isinstance(request, MakeImages):
            state.synthetic = name
            facts = {fact: info[fact] for fact in ("images", "loss", "released")}
            state.facts["synthesis"] = {"kind": request.synthesis.kind, **facts}
        elif isinstance(request, TrainStudents) and request.stage != "distill":
            state.phases.append(name)
            state.facts.setdefault("phases", []).append({"epochs": request.training.epochs, "terms": terms})
        else:
            row[party] = info["best_score"]
            if isinstance(request, TrainStudents):
                state.facts["terms"] = terms
                state.selected_epoch = info["best_epoch"]
            if isinstance(request, TrainStudents) and isinstance(request.schedule, MutualSchedule):
                state.together = name
            elif party == federation.server.name:
                state.student = name
            else:
                state.weights[party] = name
    return state, scored(row)


def plan_images(synthesis: Synthesis, state: StageState, federation: PartyFederation) -> StageRequest:
    """Return the request that synthesizes images from the teacher.

    If the synthesis needs activation records, and these records do not exist yet, the result is the request that
    computes them.
    """
    (teacher,) = federation.clients
    network = teacher.network
    weights = ref_of(state.weights[teacher.name])
    records = None
    if state.records:
        records = ref_of(state.records)
    elif isinstance(synthesis, RecordsSynthesis):
        kind = synthesis.records
        components = None
        if kind == "spectral":
            components = synthesis.components
        return ReleaseRecords("records", teacher.name, network, weights, teacher.train, kind, components)
    return MakeImages(
        stage="synthetic",
        party=federation.server.name,
        network=network,
        weights=weights,
        synthesis=synthesis,
        records=records,
        mean=federation.mean,
        std=federation.std,
        seed=federation.seed,
    )


def plan_generation(
    config: DistillSettings, state: StageState, federation: PartyFederation, round: int, generations: int
) -> StageRequest:
    """Return the request that trains the student of one generation.

    ``round`` is the index of this generation, from 0 to ``generations``. The student of the last generation is the
    student of the run.
    """
    student = federation.server
    name = student.name
    if round < generations:
        name = generation_name(round)
    if round == 0:
        alone = {term: options for term, options in config.terms.items() if not TERMS[term].needs_teacher}
        return train_students(config, federation, name, alone, [])
    previous = (student.network, ref_of(state.weights[generation_name(round - 1)]))
    return train_students(config, federation, name, config.terms, [previous])


def train_students(
    config: DistillSettings, federation: PartyFederation, party: str, terms: Terms,
    teachers: list[tuple[Network, Ref]], generated: StoredPart | None = None,
) -> TrainStudents:  # fmt: skip
    """Return the request that trains the student ``party``.

    With the schedule ``mutual``, the request trains all students. ``generated``: synthetic examples that replace the
    real training and validation examples; None to use the real examples.
    """
    student = federation.server
    schedule = config.schedule
    originals = None
    if teachers and isinstance(schedule, OfflineSchedule):
        originals = student.originals.get("train")
    if isinstance(schedule, OfflineSchedule | GenerationsSchedule):
        schedule = OfflineSchedule("offline")
    return TrainStudents(
        stage="distill",
        party=party,
        network=student.network,
        train=generated or StoredPart(student.train),
        valid=generated or student.stored_valid,
        terms=terms,
        schedule=schedule,
        teachers=tuple(teachers),
        points=federation.label_points,
        auto_ratio=config.auto_ratio,
        training=federation.training.distill,
        seed=federation.seed,
        augment=federation.augment,
        weights=federation.weights,
        originals=originals,
    )


def generation_name(number: int) -> str:
    """Return the name of one generation's student. ``number`` is the generation's index, from 0."""
    return f"generation {number + 1}"


DISTILL = StageMethod(init, plan, fold)


def phases_of(config: DistillSettings) -> list[PhaseSettings]:
    """Return the phases that precede the training on ``method.terms``; [] if there are none."""
    if isinstance(config.schedule, OfflineSchedule):
        return config.schedule.phases
    return []


def in_phase(config: DistillSettings, state: StageState, last: TrainStudents) -> TrainStudents:
    """Return the request for the student's next phase. If all phases have finished, return the request ``last``.

    ``last`` trains on ``method.terms``. Each request starts from the weights after the last epoch of the previous
    phase.
    """
    phases = phases_of(config)
    done = len(state.phases)
    if done:
        last = replace(last, start=ref_of(state.phases[-1]))
    if done == len(phases):
        return last
    training = replace(last.training, epochs=phases[done].epochs, select="last", milestones=[])
    return replace(last, stage=f"phase{done + 1}", terms=phases[done].terms, training=training)
