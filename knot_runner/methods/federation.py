"""The input of methods that train in rounds: clients, the server's examples, and training settings.

The input contains row numbers of examples instead of raw data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from knot_runner.config.settings.methods.federated import FederatedTraining
from knot_runner.config.settings.text_tasks import Labels
from knot_runner.engine.examples import Augment
from knot_runner.engine.federated.cohort import ClientModel, Inference
from knot_runner.engine.federated.flat import FlatLayout
from knot_runner.engine.federated.local import EngineRequest
from knot_runner.engine.seeds import generator
from knot_runner.methods.party import Architecture, LabelPoints, Party, label_points

#: Tensors by name, the whole content of a checkpoint: ``weights`` [P], ``buffers`` [Q], and entries of the method.
FederatedState = dict[str, Tensor]
#: The log entries that a method adds in a round.
RoundRow = dict[str, object]
#: The result of a fold (server step): the state after the round, and the round's log entries.
Folded = tuple[FederatedState, RoundRow]
#: The result of a round: the state, the log entries, and the requests that the engine executed after the aggregation.
RoundOutcome = tuple[FederatedState, RoundRow, list[EngineRequest]]


@dataclass(frozen=True, eq=False)
class ServerExamples:
    """The examples of a server that distills.

    Attributes:
        test: Row numbers [m] of the test examples on which the server's model is evaluated.
        transfer: Row numbers [n] of the transfer set: training examples whose labels the server does not read.
        random: Row numbers [r] of random examples for computing the teachers' probability biases. Empty if the
            weighting does not use biases.
    """

    test: Tensor
    transfer: Tensor
    random: Tensor


@dataclass(frozen=True)
class Federation:
    """All clients. If ``members`` is set, only these clients take part: a cluster, or all clients that are not unseen.

    ``clients`` always holds all clients. A client's number is its index in ``clients``. A client's random draws do not
    depend on the cluster.
    """

    clients: tuple[Party, ...]
    labels: Labels
    training: FederatedTraining
    seed: int
    #: labels of all training examples, shape [N]; the labels of a client's examples are used only by this client
    train_labels: Tensor
    server: ServerExamples | None = None
    #: augmentation of training images
    augment: Augment = "none"
    #: architectures; client k has architecture k modulo the number of architectures
    architectures: tuple[Architecture, ...] = ()
    members: tuple[int, ...] | None = None
    #: clients that do not take part in any round
    unseen: tuple[int, ...] = ()
    #: participants of a round (:meth:`choosing`), such as those of a simulated fleet; None: drawn from the seed
    chosen: tuple[int, ...] | None = None
    #: with a simulated fleet: each client's training time per example in seconds, shape [N]
    seconds_per_example: Tensor | None = None
    #: how a round's clients are drawn: a ``fixed`` number, or each client independently (``poisson``)
    sampling: Literal["fixed", "poisson"] = "fixed"

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def numbers(self) -> Sequence[int]:
        """Return the client numbers of the clients that may take part in rounds, in ascending order."""
        return range(len(self.clients)) if self.members is None else self.members

    @property
    def everyone(self) -> range:
        """Return the client numbers of all clients, including clients that do not take part in any round."""
        return range(len(self.clients))

    def rows(self, split: Literal["train", "valid", "test"]) -> list[Tensor]:
        """Return, for each client, the row numbers of the client's examples in ``split``."""
        return [getattr(client, split) for client in self.clients]

    @cached_property
    def label_points(self) -> LabelPoints:
        """Return the coordinates of the classes; see :func:`~knot_runner.methods.party.label_points`."""
        return label_points(self.labels)

    @property
    def layout(self) -> FlatLayout:
        """Return the positions of the first architecture's parameters in the flat vector of weights."""
        return self.architectures[0].layout

    @property
    def model(self) -> ClientModel:
        """Return the initial model of clients with the first architecture."""
        return self.architectures[0].start

    def network_number(self, client: int) -> int:
        """Return the index of the client's architecture in ``architectures``."""
        return client % len(self.architectures)

    def layout_of(self, client: int) -> FlatLayout:
        """Return the position of each parameter of the client's model in the flat vector of weights."""
        return self.architectures[self.network_number(client)].layout

    def start_of(self, client: int) -> ClientModel:
        """Return the client's initial model. All clients with the same architecture have the same initial model."""
        return self.architectures[self.network_number(client)].start

    def choosing(self, clients: Sequence[int]) -> Federation:
        """Return a copy of the federation in which exactly ``clients`` take part in each round."""
        return dataclasses.replace(self, chosen=tuple(clients))

    def cluster(self, members: Sequence[int]) -> Federation:
        """Return a copy of the federation that trains only the clients ``members``."""
        ordered = tuple(sorted(members))
        server = self.server
        if server is not None:
            server = dataclasses.replace(server, test=torch.cat([self.clients[client].test for client in ordered]))
        return dataclasses.replace(self, members=ordered, server=server, unseen=())

    def inference(
        self, client: int, model: ClientModel, rows: Tensor, split: Literal["test", "train"] = "test"
    ) -> Inference:
        """Return a request to run the client's ``model`` on the examples of ``split`` with the row numbers ``rows``."""
        return Inference(model, rows, split, network=self.network_number(client))

    @cached_property
    def participants(self) -> int:
        """Return how many clients take part in a round.

        If ``training.clients_per_round`` is a fraction C of the K clients, the result is C * K rounded down, but at
        least 1 (McMahan et al. 2017, Algorithm 1). If ``training.clients_per_round`` is an integer, the result is this
        integer, but at most K.
        """
        wanted = self.training.clients_per_round
        if isinstance(wanted, int):
            return min(wanted, len(self))
        return max(int(float(wanted) * len(self)), 1)

    @property
    def rate(self) -> float:
        """Return the expected fraction q of clients that take part in a round."""
        return self.participants / len(self)

    def share(self, participants: int) -> float:
        """Return ``participants`` divided by the number of clients that may take part.

        With Poisson sampling, the result is always :attr:`rate`.
        """
        return participants / len(self) if self.sampling == "fixed" else self.rate

    def drawn(self, round: int) -> list[int]:
        """Return the client numbers of the clients that take part in ``round``, in ascending order.

        If ``chosen`` is set, exactly the clients in ``chosen`` take part. Otherwise, clients are drawn with a generator
        that is seeded by (seed, round). Fixed sampling draws without replacement. Poisson sampling draws each client
        independently with the probability :attr:`rate`, so the list may be empty.
        """
        if self.chosen is not None:
            return sorted(self.chosen)
        if self.sampling == "poisson":
            draws = torch.rand(len(self), dtype=torch.float64, generator=generator(self.seed, "poisson", round))
            return [self.numbers[position] for position in (draws < self.rate).nonzero()[:, 0].tolist()]
        return sorted(self.in_turn(round)[: self.participants])

    def in_turn(self, round: int) -> list[int]:
        """Return :attr:`numbers` in a random order that is seeded by (seed, round).

        With fixed sampling, the first clients of this order take part in ``round``.
        """
        order = torch.randperm(len(self), generator=generator(self.seed, "participants", round))
        return [self.numbers[position] for position in order.tolist()]
