"""Parties (clients and servers) with their examples and networks, and the input of methods that train in stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor

from knot_runner.config.settings.groups import CentralTraining
from knot_runner.config.settings.text_tasks import Labels
from knot_runner.config.strict import digest
from knot_runner.engine.examples import Augment
from knot_runner.engine.federated.cohort import ClientModel
from knot_runner.engine.federated.flat import FlatLayout
from knot_runner.engine.objectives import Objective
from knot_runner.engine.requests import Ref, StageRequest, StoredPart, Train, ref_of
from knot_runner.models.network import Network
from knot_runner.util.files import Facts, LogRow

#: The coordinates [C][d] of the classes, from which transport costs are computed.
LabelPoints = list[list[float]]


@dataclass(frozen=True)
class Architecture:
    """A network, its parameter layout, and the initial model of all clients with this network."""

    network: Network
    layout: FlatLayout
    start: ClientModel


@dataclass(frozen=True, eq=False)
class Party:
    """A client of a method that trains in rounds.

    Attributes:
        train: Row numbers [n] of the client's training examples.
        test: Row numbers [m] of the client's test examples.
        valid: Row numbers [v] of the client's validation examples; empty if the client has none.
    """

    name: str
    train: Tensor
    test: Tensor
    valid: Tensor = field(default_factory=partial(torch.arange, 0))

    @property
    def size(self) -> int:
        """Return the number of training examples."""
        return len(self.train)


@dataclass(frozen=True, eq=False)
class StoredParty:
    """A client or server of a method that trains in stages.

    Attributes:
        name: The party's name.
        examples: The party's examples in the store, by split.
        network: The party's network.
        size: The number of the party's training examples.
        trained: The party's weights, if they are in the store before the run; otherwise None.
        originals: The party's images before a transformation, by split; {} if the images are not transformed.
    """

    name: str
    examples: dict[str, Ref]
    network: Network
    size: int = 0
    trained: Ref | None = None
    originals: dict[str, Ref] = field(default_factory=dict)

    @property
    def train(self) -> Ref:
        """Return the reference to the training examples."""
        return self.examples["train"]

    @property
    def stored_valid(self) -> StoredPart | None:
        """Return the validation examples, or None if the party has none."""
        valid = self.examples.get("valid")
        return StoredPart(valid) if valid else None

    @property
    def test(self) -> Ref:
        """Return the reference to the test examples."""
        return self.examples["test"]


@dataclass
class StageState:
    """The state of a method that trains in stages. Strings ``stage/key`` refer to artifacts; "" stands for no artifact.

    Attributes:
        weights: The separately trained model of each party.
        soft: The soft labels of each party, for each split of the transfer set (KNOT).
        bias: The probability bias of each party (KNOT).
        after: The model of each party after mutual learning.
        phases: The student's weights after each phase (``method.schedule.phases``).
        before: The pretrained global model, from which the student starts.
        together: One artifact with all models that were trained together.
        records: The records that the teacher's owner released (statistics of the teacher's activations).
        synthetic: The images synthesized from the teacher.
        student: The student, or the global model if nothing is distilled.
        selected_epoch: The epoch whose weights are in ``student`` or ``together``; None before distillation.
        facts: The entries ``terms``, ``phases`` and ``synthesis`` of the result.
    """

    weights: dict[str, str] = field(default_factory=dict)
    soft: dict[str, dict[str, str]] = field(default_factory=dict)
    bias: dict[str, list[float]] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)
    before: str = ""
    together: str = ""
    records: str = ""
    synthetic: str = ""
    student: str = ""
    selected_epoch: int | None = None
    facts: Facts = field(default_factory=dict)

    @property
    def artifacts(self) -> list[Ref]:
        """Return references to all artifacts in the state, without duplicates."""
        names = list(self.weights.values())
        for splits in self.soft.values():
            names += splits.values()
        names += [*self.after.values(), *self.phases]
        names += [self.before, self.together, self.records, self.synthetic, self.student]
        return [ref_of(name) for name in dict.fromkeys(names) if name]


def scored(row: LogRow) -> LogRow:
    """Return ``row`` without the entries that are None, such as missing scores."""
    return {name: value for name, value in row.items() if value is not None}


@dataclass(frozen=True)
class StageMethod:
    """A method that trains in stages and stores its models as artifacts.

    Attributes:
        init: ``(config, federation) -> state``.
        plan: ``(config, state, federation, round) -> requests``; [] when the method has finished.
        fold: ``(config, state, federation, round, requests, artifacts) -> (state, row)``. ``artifacts``: the artifact
            of each request; ``row``: log entries.
    """

    init: Callable[..., StageState]
    plan: Callable[..., list[StageRequest]]
    fold: Callable[..., tuple[StageState, LogRow]]


@dataclass(frozen=True)
class PartyFederation:
    """The input of methods that train in stages: the parties and the training settings.

    - ``clients``: the parties with local models
    - ``server``: the party with the global data set and model
    - ``transfer``: the party with the unlabeled transfer set, by default the server
    - ``random``: random examples for computing the teachers' probability biases; None if the method does not need
      these biases
    """

    clients: tuple[StoredParty, ...]
    labels: Labels
    training: CentralTraining
    seed: int
    server: StoredParty
    transfer: StoredParty
    random: Ref | None = None
    #: augmentation of the training images
    augment: Augment = "none"
    #: digest of the settings of a pretrained encoder
    weights: str = "scratch"
    #: mean and standard deviation of the clients' images, per channel, for pixels in 0..1
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    #: notes for the user about models and data
    notes: list[str] = field(default_factory=list)

    @property
    def teachers(self) -> list[StoredParty]:
        """Return the teachers in the order of KNOT eq. 3: all clients, then the server."""
        return [*self.clients, self.server]

    @property
    def parties(self) -> list[StoredParty]:
        """Return all parties that have examples, without duplicates."""
        if self.transfer is self.server:
            return self.teachers
        return [*self.teachers, self.transfer]

    @cached_property
    def label_points(self) -> LabelPoints:
        """Return the coordinates of the classes; see :func:`label_points`."""
        return label_points(self.labels)

    @property
    def data(self) -> str:
        """Return a digest of the data that training reads: all stored examples and the pretrained weights."""
        parts = sorted([party.name, split, *ref] for party in self.parties for split, ref in party.examples.items())
        trained = {client.name: client.trained for client in self.clients if client.trained}
        return digest([parts, self.random, self.weights, self.server.originals, trained], 64)

    def supervised(self, party: StoredParty, stage: Literal["local", "pretrain"]) -> Train:
        """Return the request that trains the party's network on the party's labeled examples.

        ``stage`` selects the training settings.
        """
        return Train(
            stage=stage,
            party=party.name,
            network=party.network,
            start=None,
            train=StoredPart(party.train),
            valid=party.stored_valid,
            objective=Objective(),
            training=getattr(self.training, stage),
            select="score",
            seed=self.seed,
            weights=self.weights,
            augment=self.augment,
        )


def label_points(labels: Labels) -> LabelPoints:
    """Return the coordinates [C][d] of the classes. Transport costs are computed from them (KNOT App. C.1).

    ``labels.support`` selects ``labels.coordinates``, one-hot vectors, or the concatenation of both.
    """
    from knot_runner.transport import support  # only distillation needs this module

    return support(torch.tensor(labels.coordinates, dtype=torch.float64), labels.support).tolist()
