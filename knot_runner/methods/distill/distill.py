"""Distillation by loss terms: from trained teachers, among students, or from one student generation to the next.

Rounds with schedule ``offline``: round 0 trains the teachers, and round 1 the student. Without teachers, round 0 trains
the student. Each phase of the student's training is a separate round before the student's last round. With schedule
``generations``, each student has one round. With other schedules, round 0 trains all students. Data-free distillation
has two more rounds before the student's rounds. The first computes records of the teacher's activations, and the second
synthesizes images from the teacher.

Facts of the result: ``terms`` holds the weight of each loss term, and the initial ratio of the weighted term to the
cross-entropy. ``phases`` holds the same values for each phase, and ``synthesis`` holds facts about the synthesized
images.

Each phase of a student's training has its own loss. For example, FitNets has two stages (Romero et al. 2015, algorithm
1). Stage 1 is a phase with ``hint`` only, whose gradient reaches the regressor and the student up to the guided layer.
Stage 2 is the training with ``method.terms``. The next phase continues from the student's weights, but with a new
optimizer and new adapters.
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
    """Return a state that names the weights of each teacher whose weights are already in the store.

    Raises:
        UserError: A term does not fit the networks.
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
    """Return the training requests of this round; [] when the method has finished."""
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
    """Return the next state and the round's log entries."""
    state = copy.deepcopy(state)
    row = {}
    for request, artifact in zip(requests, artifacts, strict=True):
        name = f"{artifact.stage}/{artifact.key}"
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
    """Return the request that synthesizes images, or the request for the teacher's records if these are missing."""
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
    """Return the request that trains the student of generation ``round``. The last generation is the run's student."""
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
    """Return the request that trains the student ``party``, or all students that train together.

    If ``generated`` is given, these examples replace the real examples, both in training and in the selection of the
    epoch.
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
    """Return the name of the student of generation ``number`` (from 0), the teacher of the next generation."""
    return f"generation {number + 1}"


DISTILL = StageMethod(init, plan, fold)


def phases_of(config: DistillSettings) -> list[PhaseSettings]:
    """Return the phases before the training with ``method.terms``; [] if there are none."""
    if isinstance(config.schedule, OfflineSchedule):
        return config.schedule.phases
    return []


def in_phase(config: DistillSettings, state: StageState, last: TrainStudents) -> TrainStudents:
    """Return the request for the student's next phase.

    This is the first phase whose weights ``state`` does not hold. After all phases it is ``last``, the training with
    ``method.terms``. Each phase starts from the weights of the previous phase and has its own batch order. A phase
    returns the weights of its last epoch, not of the best, because the network may not be able to classify yet.
    """
    phases = phases_of(config)
    done = len(state.phases)
    if done:
        last = replace(last, start=ref_of(state.phases[-1]))
    if done == len(phases):
        return last
    training = replace(last.training, epochs=phases[done].epochs, select="last", milestones=[])
    return replace(last, stage=f"phase{done + 1}", terms=phases[done].terms, training=training)
