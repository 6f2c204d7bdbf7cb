"""Requests that train students by loss terms, and requests that select one of several students trained together.

Students learn from frozen teachers, from their own past weights, or from each other.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from knot_runner.config.settings.groups import StageSettings
from knot_runner.config.settings.methods.distill import (
    AverageSchedule,
    DistillSchedule,
    MutualSchedule,
    SnapshotSchedule,
)
from knot_runner.config.settings.methods.terms import Terms
from knot_runner.engine.examples import Augment, InputBatch
from knot_runner.engine.hardware import float64_device
from knot_runner.engine.loop import Report, Resources, initial_model, stored_examples
from knot_runner.engine.requests import OwnRequest, OwnTraining, Ref, StoredPart, TensorsAndFacts
from knot_runner.engine.seeds import generator, keyed
from knot_runner.engine.training import Trainee, copy_weights, make_optimizer, train_epoch, train_epochs
from knot_runner.methods.distill.learner import (
    FIRST_BATCHES,
    SHOWN,
    TermSpec,
    WeightedTerms,
    frozen_network,
    frozen_teachers,
    read_terms,
    valid_score,
    wanted_taps,
)
from knot_runner.methods.distill.term import TermBatch
from knot_runner.models.network import Network
from knot_runner.models.taps import NetworkOutputs, read_taps


@dataclass(frozen=True)
class TrainStudents(OwnTraining):
    """Train one student, or several that teach each other.

    The artifact holds the student's weights. With several students, the weights of student i have the prefix ``i.``.
    """

    #: ``distill``, or ``phase<number>`` for an earlier phase (:mod:`knot_runner.methods.distill.distill`)
    stage: str
    party: str
    network: Network
    train: StoredPart
    #: validation examples for the selection of an epoch, if any
    valid: StoredPart | None
    #: loss terms, as in ``method.terms``
    terms: Terms
    schedule: DistillSchedule
    #: network and weights of each frozen teacher
    teachers: tuple[tuple[Network, Ref], ...]
    #: coordinates [C][d] of the classes
    points: list[list[float]]
    auto_ratio: float
    training: StageSettings
    seed: int
    augment: Augment = "none"
    #: digest of the settings of a pretrained encoder
    weights: str = "scratch"
    #: training images for the frozen teachers, in the same order, if the student reads transformed images
    originals: Ref | None = None
    #: weights of the student after the previous phase; None: random or pretrained initial weights
    start: Ref | None = None

    def run(self, resources: Resources, work: Path, report: Report) -> TensorsAndFacts:
        """Return the selected model weights, and a dict of training facts.

        The dict holds the facts of :func:`knot_runner.engine.training.train_epochs`. Its entry ``terms`` holds the
        weight of each term and the term's first ratio to the cross-entropy.

        Raises:
            DivergedError: A loss or weight is not finite.
            UserError: The terms do not fit the networks.
        """
        students = Students(self, resources, report)
        trainee = Trainee(
            students.module,
            make_optimizer(self.training, [p for p in students.module.parameters() if p.requires_grad]),
            epoch=lambda number: students.epoch(number, trainee.optimizer),
            score=None if self.valid is None else students.score,
            weights=students.weights,
        )
        best, facts = train_epochs(trainee, work, self.training, "score")
        return best, {**facts, "terms": students.first_values}


@dataclass(frozen=True)
class PickStudent(OwnRequest):
    """Store one of several students that were trained together as a separate artifact."""

    stage: Literal["picked"]
    party: str
    together: Ref
    number: int

    def run(self, resources: Resources, work: Path, report: Report) -> TensorsAndFacts:
        """Return the student's weights and the training facts of all students. The training time is set to 0."""
        trained, prefix = resources.store.get(*self.together), f"{self.number}."
        tensors = {name.removeprefix(prefix): t for name, t in trained.tensors().items() if name.startswith(prefix)}
        return tensors, trained.info | {"seconds": 0.0}


class Students:
    """The networks and losses of one :class:`TrainStudents`."""

    def __init__(self, request: TrainStudents, resources: Resources, report: Report) -> None:
        self.request, self.report = request, report
        self.schedule = request.schedule
        self.train = stored_examples(resources, request.train.examples)
        self.valid = None if request.valid is None else stored_examples(resources, request.valid.examples)
        count = self.schedule.students if isinstance(self.schedule, MutualSchedule) else 1
        self.students = nn.ModuleList()
        for number in range(count):
            name = request.party if number == 0 else f"{request.party} {number + 1}"
            seed = keyed(request.seed, "init", name)
            self.students.append(initial_model(resources, request.network, request.start, seed))
        self.module = nn.ModuleDict({"students": self.students})
        teachers = [(network, frozen_network(network, weights, resources)) for network, weights in request.teachers]
        #: the teacher of a student that learns from its own past weights
        self.teacher: nn.Module | None = None
        if isinstance(self.schedule, AverageSchedule | SnapshotSchedule):
            self.teacher = copy.deepcopy(self.students[0]).requires_grad_(False).eval()
            self.module["teacher"] = self.teacher
            teachers = [(request.network, self.teacher)]
        taught_by = [network for network, _ in teachers] or [request.network] * (count - 1)
        specs = read_terms(request.terms, request.network, taught_by)
        student_taps, others = wanted_taps(specs, len(taught_by))
        if count > 1:  # each is read by the others, too
            student_taps = list(dict.fromkeys([*student_taps, *itertools.chain.from_iterable(others)]))
        self.readers = [read_taps(model, request.network, student_taps) for model in self.students]
        originals = None if request.originals is None else stored_examples(resources, request.originals)
        cached = request.augment == "none" and self.teacher is None
        pairs = zip(teachers, others, strict=False)
        readers = [read_taps(model, network, names) for (network, model), names in pairs]
        self.frozen = frozen_teachers(readers, self.train, cached, originals)
        self.losses = self._make_losses(specs)
        names = (request.seed, "first batches", request.party)
        #: first values of the terms of the first student; see :meth:`WeightedTerms.weigh`
        self.first_values, *_ = [
            losses.weigh(self._first(number, generator(*names), generator(*names, "terms")), request.auto_ratio)
            for number, losses in enumerate(self.losses)
        ]

    def _make_losses(self, specs: list[TermSpec]) -> list[WeightedTerms]:
        torch.manual_seed(keyed(self.request.seed, "adapters", self.request.party))
        self.module.eval()
        with torch.no_grad():
            shown = self._outputs(next(self.train.in_turn(SHOWN)))
        device = self.train.labels.device
        points = torch.tensor(self.request.points, dtype=torch.float64, device=float64_device(device))
        losses = [WeightedTerms(specs, outputs, others, len(self.train), points) for outputs, others in shown]
        self.module["losses"] = nn.ModuleList(losses).to(device)
        return losses

    def _first(
        self, number: int, order: torch.Generator, draws: torch.Generator
    ) -> Iterator[tuple[NetworkOutputs, list[NetworkOutputs], TermBatch]]:
        """Yield the outputs and term inputs of the first batches of student ``number``."""
        request = self.request
        self.module.eval()
        batches = self.train.epoch(request.training.batch_size, order, drop_last=False, augment=request.augment)
        for batch in itertools.islice(batches, FIRST_BATCHES):
            yield *self._outputs(batch)[number], self._batch(batch[0], draws, 1)

    def _outputs(self, batch: InputBatch) -> list[tuple[NetworkOutputs, list[NetworkOutputs]]]:
        """Return, for each student, its outputs for a batch and the outputs of its teachers.

        The teachers are frozen models, the student's own past, or the other students.
        """
        positions, inputs = batch
        outputs = [read(**inputs) for read in self.readers]
        if len(outputs) == 1:
            return [(outputs[0], self.frozen(positions, inputs))]
        detached = []
        for output in outputs:
            taps = {name: tap.detach() for name, tap in output.taps.items()}
            detached.append(NetworkOutputs(output.logits.detach(), taps))
        return [(output, detached[:number] + detached[number + 1 :]) for number, output in enumerate(outputs)]

    def _batch(self, positions: Tensor, draws: torch.Generator, epoch: int) -> TermBatch:
        labels = self.train.labels[positions.to(self.train.labels.device)]
        return TermBatch(labels, positions.to(labels.device), draws, epoch)

    def epoch(self, number: int, optimizer: torch.optim.Optimizer) -> float:
        """Train one epoch; return the mean loss over the students."""
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
        """Take one step of every student on a batch; return the mean of their losses."""
        share = self._share(rows.epoch)
        pairs = zip(self.losses, self._outputs(batch), strict=True)
        values = torch.stack([losses(outputs, others, rows, share) for losses, (outputs, others) in pairs])
        optimizer.zero_grad(set_to_none=True)
        values.sum().backward()  # no student has a gradient of another's loss
        optimizer.step()
        if self.teacher is not None and isinstance(self.schedule, AverageSchedule):
            # decay teacher + (1 - decay) student; running statistics are copied
            for mean, weights in zip(self.teacher.parameters(), self.students[0].parameters(), strict=True):
                mean.lerp_(weights.detach(), 1 - self.schedule.decay)
            for kept, statistics in zip(self.teacher.buffers(), self.students[0].buffers(), strict=True):
                kept.copy_(statistics)
        return values.detach().mean()

    def _share(self, epoch: int) -> float:
        """Return the factor that multiplies, in ``epoch``, the weights of terms that read a teacher."""
        if isinstance(self.schedule, AverageSchedule) and self.schedule.ramp:
            return min(1.0, epoch / self.schedule.ramp)
        if isinstance(self.schedule, SnapshotSchedule):
            return float(epoch > 1)
        return 1.0

    def score(self, epoch: int) -> float:
        """Return the macro-F1 on the validation examples, averaged over students."""
        title = f"{self.request.stage} {self.request.party}"
        scores = [valid_score(model, self.valid, title, epoch) for model in self.students]
        return sum(scores) / len(scores)

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the student's weights. With several students, names have the student's number as prefix."""
        return copy_weights(self.students if len(self.students) > 1 else self.students[0])
