"""Requests that train students with loss terms, and requests that store one of several jointly trained students.

Students learn from frozen teachers, from their own past weights, or from each other.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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
from knot_runner.engine.loop import Resources, initial_model, stored_examples, valid_score
from knot_runner.engine.requests import OwnRequest, OwnTraining, Ref, StoredPart, TensorsAndFacts
from knot_runner.engine.seeds import generator, keyed
from knot_runner.engine.stages import Report, StageTraining, train_epochs
from knot_runner.engine.tensor_file import Tensors
from knot_runner.engine.training import copy_weights
from knot_runner.methods.distill.learner import (
    FIRST_BATCHES,
    SHOWN,
    TermSpec,
    WeightedTerms,
    frozen_network,
    frozen_teachers,
    read_terms,
    wanted_taps,
)
from knot_runner.methods.distill.term import TermBatch
from knot_runner.methods.party import LabelPoints
from knot_runner.models.network import Network
from knot_runner.models.taps import NetworkOutputs, read_taps


@dataclass(frozen=True)
class TrainStudents(OwnTraining):
    """A request to train one student, or several students that teach each other.

    The artifact holds the weights of all students. With several students, the names of student i's weights start with
    ``i.``.
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
    points: LabelPoints
    auto_ratio: float
    training: StageSettings
    seed: int
    augment: Augment = "none"
    #: digest of the settings of a pretrained encoder
    weights: str = "scratch"
    #: the training images that frozen teachers read, in the same order, if the student reads a transformed version
    originals: Ref | None = None
    #: weights of the student after the previous phase; None: random or pretrained initial weights
    start: Ref | None = None

    def run(self, resources: Resources, work: Path, report: Report) -> TensorsAndFacts:
        """Return the weights of the selected epoch, and a dict of training facts.

        The dict holds the facts of :func:`knot_runner.engine.stages.train_epochs`. The entry ``terms`` holds the
        result of :meth:`WeightedTerms.weigh` for the first student.

        Raises:
            DivergedError: A loss or a validation prediction is not finite.
            UserError: The terms do not fit the networks.
        """
        students = Students(self, resources, report)
        best, facts = train_epochs(students, work, self.training.epochs, self.training.select, "score")
        return best, {**facts, "terms": students.first_values}


@dataclass(frozen=True)
class PickStudent(OwnRequest):
    """A request to store one of several jointly trained students as a separate artifact."""

    stage: str
    party: str
    together: Ref
    number: int

    def run(self, resources: Resources, work: Path, report: Report) -> TensorsAndFacts:
        """Return the weights of student ``number``, and the facts about the joint training.

        The training time in these facts is set to 0, because the joint training already reports it.
        """
        trained = resources.store.get(*self.together)
        prefix = f"{self.number}."
        tensors = {name.removeprefix(prefix): t for name, t in trained.tensors().items() if name.startswith(prefix)}
        return tensors, trained.info | {"seconds": 0.0}


def student_name(party: str, number: int) -> str:
    """Return the name of a jointly trained student: ``party`` for student 0, ``<party> 2`` for student 1, and so on."""
    return party if number == 0 else f"{party} {number + 1}"


class Students(StageTraining):
    """The students of a :class:`TrainStudents` request, and their training."""

    def __init__(self, request: TrainStudents, resources: Resources, report: Report) -> None:
        self.schedule = request.schedule
        self.train = stored_examples(resources, request.train.examples)
        self.valid = None if request.valid is None else stored_examples(resources, request.valid.examples)
        count = self.schedule.students if isinstance(self.schedule, MutualSchedule) else 1
        self.students = nn.ModuleList()
        for number in range(count):
            seed = keyed(request.seed, "init", student_name(request.party, number))
            self.students.append(initial_model(resources, request.network, request.start, seed))
        module = nn.ModuleDict({"students": self.students})
        networks = [network for network, _ in request.teachers]
        models = [frozen_network(network, weights, resources) for network, weights in request.teachers]
        #: the teacher of a student that learns from its own past weights
        self.teacher: nn.Module | None = None
        if isinstance(self.schedule, AverageSchedule | SnapshotSchedule):
            self.teacher = copy.deepcopy(self.students[0]).requires_grad_(False).eval()
            module["teacher"] = self.teacher
            networks = [request.network]
            models = [self.teacher]
        elif not networks:
            networks = [request.network] * (count - 1)
        specs = read_terms(request.terms, request.network, networks)
        student_taps, others = wanted_taps(specs, len(networks))
        if count > 1:  # the other students read each student's outputs
            student_taps = list(dict.fromkeys(itertools.chain(student_taps, *others)))
        self.readers = [read_taps(model, request.network, student_taps) for model in self.students]
        originals = None if request.originals is None else stored_examples(resources, request.originals)
        cached = request.augment == "none" and self.teacher is None
        readers = list(map(read_taps, models, networks, others))  # none for students that teach each other
        self.frozen = frozen_teachers(readers, self.train, cached, originals)
        module.eval()
        self.terms = self._make_terms(request, specs)
        module["losses"] = nn.ModuleList(self.terms).to(self.train.labels.device).eval()
        values = []
        for number, terms in enumerate(self.terms):
            values.append(terms.weigh(self._first(request, number), request.auto_ratio))
        #: weights and initial ratios of the first student's terms; see :meth:`WeightedTerms.weigh`
        self.first_values = values[0]
        super().__init__(request, module, self.train, report, request.stage, request.party)
        if isinstance(self.schedule, AverageSchedule) and self.teacher is not None:
            average = partial(_average, self.schedule.decay, self.students[0], self.teacher)
            self.optimizer.register_step_post_hook(average)

    def _make_terms(self, request: TrainStudents, specs: list[TermSpec]) -> list[WeightedTerms]:
        torch.manual_seed(keyed(request.seed, "adapters", request.party))
        with torch.no_grad():
            shown = self._outputs(next(self.train.in_turn(SHOWN)))
        points = torch.tensor(request.points, dtype=torch.float64).to(self.train.labels.device)
        return [WeightedTerms(specs, outputs, others, len(self.train), points) for outputs, others in shown]

    def _first(
        self, request: TrainStudents, number: int
    ) -> Iterator[tuple[NetworkOutputs, list[NetworkOutputs], TermBatch]]:
        """Yield the outputs and term inputs of the first batches of student ``number``."""
        names = (request.seed, "first batches", request.party)
        order = generator(*names)
        draws = generator(*names, "terms")
        batches = self.train.epoch(request.training.batch_size, order, drop_last=False, augment=request.augment)
        for batch in itertools.islice(batches, FIRST_BATCHES):
            yield *self._outputs(batch)[number], self._batch(batch[0], draws, 1)

    def _outputs(self, batch: InputBatch) -> list[tuple[NetworkOutputs, list[NetworkOutputs]]]:
        """Return, for each student, the student's and the teachers' outputs for a batch.

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

    def begin(self, epoch: int) -> None:
        """Prepare an epoch: seed the random draws of the terms."""
        self._epoch = epoch
        self._draws = generator(self.request.seed, "terms", *self.names, epoch)
        if self.teacher is not None:
            self.teacher.eval()

    def losses(self, batch: InputBatch) -> Tensor:
        """Return each student's loss on ``batch``. The gradient of a student's loss reaches only this student."""
        rows = self._batch(batch[0], self._draws, self._epoch)
        share = self._share(self._epoch)
        pairs = zip(self.terms, self._outputs(batch), strict=True)
        return torch.stack([terms(outputs, others, rows, share) for terms, (outputs, others) in pairs])

    def epoch(self, number: int) -> float:
        """Train one epoch and return the mean loss over the students.

        ``number`` is the number of the epoch, from 1. With the schedule ``snapshot``, the student's weights after
        an epoch become the teacher's weights for the next epoch.
        """
        loss = super().epoch(number)
        if self.teacher is not None and isinstance(self.schedule, SnapshotSchedule):
            self.teacher.load_state_dict(self.students[0].state_dict())
        return loss

    def _share(self, epoch: int) -> float:
        """Return the factor on the weights of terms that read a teacher in ``epoch``."""
        if isinstance(self.schedule, AverageSchedule) and self.schedule.ramp:
            return min(1.0, epoch / self.schedule.ramp)
        if isinstance(self.schedule, SnapshotSchedule):
            return float(epoch > 1)
        return 1.0

    def score(self, epoch: int) -> float | None:
        """Return the macro-F1 on validation examples, averaged over students; None without validation examples."""
        if self.valid is None:
            return None
        title = f"{self.request.stage} {self.request.party}"
        scores = [valid_score(model, self.valid, title, epoch) for model in self.students]
        return sum(scores) / len(scores)

    def weights(self) -> Tensors:
        """Return a copy of the weights of all students.

        With several students, the names of student i's weights start with ``i.``.
        """
        return copy_weights(self.students if len(self.students) > 1 else self.students[0])


@torch.no_grad()
def _average(decay: float, student: nn.Module, teacher: nn.Module, *_: object) -> None:
    """Set the teacher's weights to decay teacher + (1 - decay) student; copy the running statistics."""
    for mean, weights in zip(teacher.parameters(), student.parameters(), strict=True):
        mean.lerp_(weights, 1 - decay)
    for kept, statistics in zip(teacher.buffers(), student.buffers(), strict=True):
        kept.copy_(statistics)
