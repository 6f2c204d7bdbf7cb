"""Requests to train students by loss terms, from frozen teachers, from their own past or from each other, and to pick
one of several that were trained together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from knot_runner.config.settings import StageSettings
from knot_runner.config.settings.methods.distill import (
    AverageSchedule,
    DistillSchedule,
    MutualSchedule,
    SnapshotSchedule,
)
from knot_runner.config.settings.methods.terms import Terms
from knot_runner.engine.examples import Augment, InputBatch
from knot_runner.engine.hardware import float64_device
from knot_runner.engine.loop import Place, Report, initial_model, stored_examples
from knot_runner.engine.requests import OwnRequest, OwnTraining, Ref, StoredPart, TensorsAndFacts
from knot_runner.engine.seeds import generator, keyed
from knot_runner.engine.training import Trainee, copy_weights, make_optimizer, train_epoch, train_epochs
from knot_runner.methods.distill.learner import (
    FIRST_BATCHES,
    SHOWN,
    FrozenTeachers,
    OutputReader,
    TermSpec,
    WeightedTerms,
    frozen_network,
    make_losses,
    read_terms,
    valid_score,
    wanted_taps,
)
from knot_runner.methods.distill.term import NetworkOutputs, TermBatch
from knot_runner.models.network import Network


@dataclass(frozen=True)
class TrainStudents(OwnTraining):
    """Train one student, or several that teach each other; the artifact holds the weights of the one, or of each
    student i under ``i.``."""

    #: distill, or that of a phase before (:mod:`knot_runner.methods.distill.distill`)
    stage: str
    party: str
    network: Network
    train: StoredPart
    #: None: nothing is held out, and nothing selected
    valid: StoredPart | None
    #: ``method.terms``
    terms: Terms
    schedule: DistillSchedule
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

    def run(self, place: Place, work: Path, report: Report) -> TensorsAndFacts:
        """The weights kept, and facts: those of :func:`knot_runner.engine.training.train_epochs`, and ``terms``, the
        weight of each and its first ratio to the cross-entropy. Raises :class:`DivergedError`, and :class:`UserError`
        for terms that do not fit the networks."""
        students = Students(self, place, report)
        settings = self.training
        trainee = Trainee(
            students.module,
            make_optimizer(settings, [p for p in students.module.parameters() if p.requires_grad]),
            epoch=lambda number: students.epoch(number, trainee.optimizer),
            score=None if self.valid is None else students.score,
            weights=students.weights,
        )
        best, facts = train_epochs(trainee, work, settings, "score")
        return best, {**facts, "terms": students.first_values}


@dataclass(frozen=True)
class PickStudent(OwnRequest):
    """One of several students that were trained together, as an artifact of its own."""

    stage: Literal["picked"]
    party: str
    together: Ref
    number: int

    def run(self, place: Place, work: Path, report: Report) -> TensorsAndFacts:
        """Returns the student's weights, and the facts of all; it takes no time of its own."""
        found, prefix = place.store.get(*self.together), f"{self.number}."
        tensors = {name.removeprefix(prefix): t for name, t in found.tensors().items() if name.startswith(prefix)}
        return tensors, {**found.info, "seconds": 0.0}


class Students:
    """The networks and losses that one :class:`TrainStudents` trains."""

    def __init__(self, request: TrainStudents, place: Place, report: Report) -> None:
        self.request, self.report = request, report
        self.schedule = request.schedule
        self.train = stored_examples(place, request.train.examples)
        self.valid = None if request.valid is None else stored_examples(place, request.valid.examples)
        self.students = nn.ModuleList(_start(request, place, number) for number in self._numbers())
        self.module = nn.ModuleDict({"students": self.students})
        self.teacher: nn.Module | None = None
        if isinstance(self.schedule, AverageSchedule | SnapshotSchedule):
            self.teacher = copy.deepcopy(self.students[0]).requires_grad_(False).eval()
            self.module["teacher"] = self.teacher
        taught_by = [network for network, _ in request.teachers]
        if self.teacher is not None:
            taught_by = [request.network]
        elif len(self.students) > 1:
            taught_by = [request.network] * (len(self.students) - 1)
        specs = read_terms(request.terms, request.network, taught_by)
        own, others = wanted_taps(specs, len(taught_by))
        peers = list(dict.fromkeys([*own, *(name for names in others for name in names)]))
        many = len(self.students) > 1
        self.readers = [OutputReader(model, request.network, peers if many else own) for model in self.students]
        originals = None if request.originals is None else stored_examples(place, request.originals)
        cached = request.augment == "none"
        stored = [
            OutputReader(frozen_network(network, weights, place), network, names)
            for (network, weights), names in zip(request.teachers, others, strict=False)
        ]
        self.frozen = FrozenTeachers(stored, self.train, cached, originals)
        self.own_teacher = None
        if self.teacher is not None:
            self.own_teacher = OutputReader(self.teacher, request.network, others[0])
        self.losses = self._make_losses(specs)
        self.first_values = self._weigh()

    def _numbers(self) -> range:
        return range(self.schedule.students if isinstance(self.schedule, MutualSchedule) else 1)

    def _make_losses(self, specs: list[TermSpec]) -> list[WeightedTerms]:
        torch.manual_seed(keyed(self.request.seed, "adapters", self.request.party))
        positions, inputs = next(self.train.in_turn(SHOWN))
        self.module.eval()
        with torch.no_grad():
            shown = [reader(inputs) for reader in self.readers]
            taught = self._teachers(shown, positions, inputs)
        count, device = len(self.train), self.train.labels.device
        points = torch.tensor(self.request.points, dtype=torch.float64, device=float64_device(device))
        losses = [make_losses(specs, own, others, count, points) for own, others in zip(shown, taught, strict=True)]
        self.module["losses"] = nn.ModuleList(losses).to(device)
        return losses

    def _weigh(self) -> dict[str, dict[str, float]]:
        """Settle automatic weights on the first batches; the first student's weights and ratios."""
        names = (self.request.seed, "first batches", self.request.party)
        found = [
            losses.weigh(self._first(number, generator(*names), generator(*names, "terms")), self.request.auto_ratio)
            for number, losses in enumerate(self.losses)
        ]
        return found[0]

    def _first(
        self, number: int, order: torch.Generator, draws: torch.Generator
    ) -> Iterator[tuple[NetworkOutputs, list[NetworkOutputs], TermBatch]]:
        self.module.eval()
        batches = self.train.epoch(
            self.request.training.batch_size, order, drop_last=False, augment=self.request.augment
        )
        for _, (positions, inputs) in zip(range(FIRST_BATCHES), batches, strict=False):
            outputs = [reader(inputs) for reader in self.readers]
            taught = self._teachers(outputs, positions, inputs)
            yield outputs[number], taught[number], self._batch(positions, draws, 1)

    def _teachers(
        self, outputs: list[NetworkOutputs], positions: Tensor, inputs: dict[str, Tensor]
    ) -> list[list[NetworkOutputs]]:
        """Returns the outputs of each student's teachers for a batch: frozen ones, its own past, or the other
        students."""
        if self.own_teacher is not None:
            with torch.no_grad():
                return [[self.own_teacher(inputs)]]
        if len(outputs) == 1:
            return [self.frozen(positions, inputs)]
        detached = [_detached(output) for output in outputs]
        return [detached[:number] + detached[number + 1 :] for number in range(len(outputs))]

    def _batch(self, positions: Tensor, draws: torch.Generator, epoch: int) -> TermBatch:
        labels = self.train.labels[positions.to(self.train.labels.device)]
        return TermBatch(labels, positions.to(labels.device), draws, epoch)

    def epoch(self, number: int, optimizer: torch.optim.Optimizer) -> float:
        """One epoch; mean loss over the students."""
        request = self.request
        draws = generator(request.seed, "terms", request.stage, request.party, number)

        def begin() -> Callable[[InputBatch], tuple[Tensor, int]]:
            if self.teacher is not None:
                self.teacher.eval()
            return lambda batch: (self._step(batch, self._batch(batch[0], draws, number), optimizer), len(batch[0]))

        loss = train_epoch(request, number, self.module, self.train, begin, self.report, request.stage, request.party)
        if self.teacher is not None and isinstance(self.schedule, SnapshotSchedule):
            self.teacher.load_state_dict(self.students[0].state_dict())
        return loss

    def _step(self, batch: InputBatch, rows: TermBatch, optimizer: torch.optim.Optimizer) -> Tensor:
        """One step of every student on a batch; the mean of their losses."""
        positions, inputs = batch
        outputs = [reader(inputs) for reader in self.readers]
        taught = self._teachers(outputs, positions, inputs)
        share = self._share(rows.epoch)
        values = [
            losses(own, others, rows, share) for losses, own, others in zip(self.losses, outputs, taught, strict=True)
        ]
        optimizer.zero_grad(set_to_none=True)
        torch.stack(values).sum().backward()  # no student has a gradient of another's loss
        optimizer.step()
        if self.teacher is not None and isinstance(self.schedule, AverageSchedule):
            _average(self.teacher, self.students[0], self.schedule.decay)
        return torch.stack(values).detach().mean()

    def _share(self, epoch: int) -> float:
        """Returns the factor on the weights of the teachers' terms in ``epoch``."""
        if isinstance(self.schedule, AverageSchedule) and self.schedule.ramp:
            return min(1.0, epoch / self.schedule.ramp)
        if isinstance(self.schedule, SnapshotSchedule):
            return float(epoch > 1)
        return 1.0

    def score(self, epoch: int) -> float:
        """Macro-F1 on the valid part, the mean over students."""
        title = f"{self.request.stage} {self.request.party}"
        found = [valid_score(model, self.valid, title, epoch) for model in self.students]
        return sum(found) / len(found)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the student's weights, or of all students', each under its number."""
        return copy_weights(self.students if len(self.students) > 1 else self.students[0])


def _start(request: TrainStudents, place: Place, number: int) -> nn.Module:
    """A student before its training: with the weights of the phase before, or the first as the party's model and each
    further one from another seed."""
    name = request.party if number == 0 else f"{request.party} {number + 1}"
    return initial_model(place, request.network, request.start, keyed(request.seed, "init", name))


def _detached(outputs: NetworkOutputs) -> NetworkOutputs:
    return NetworkOutputs(outputs.logits.detach(), {name: tap.detach() for name, tap in outputs.taps.items()})


@torch.no_grad()
def _average(teacher: nn.Module, student: nn.Module, decay: float) -> None:
    """teacher <- decay teacher + (1 - decay) student, of weights; running statistics are copied."""
    for mean, weights in zip(teacher.parameters(), student.parameters(), strict=True):
        mean.lerp_(weights, 1 - decay)
    for kept, statistics in zip(teacher.buffers(), student.buffers(), strict=True):
        kept.copy_(statistics)
