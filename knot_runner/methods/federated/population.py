"""What a federated method sees of the world: clients as rows of images, a starting model, and how training goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from knot_runner.config.settings import FederatedTraining
from knot_runner.engine.federated.flat import FlatLayout
from knot_runner.engine.seeds import generator
from knot_runner.methods.federated.user_privacy import UserPrivacy
from knot_runner.util.errors import UserError

#: Named tensors, all that a checkpoint has to hold: ``weights`` [P], ``buffers`` [Q], and what a method adds.
FederatedState = dict[str, Tensor]


@dataclass(frozen=True)
class ClientModel:
    """Flat weights [P] and buffers [Q] (running statistics; empty without BatchNorm)."""

    weights: Tensor
    buffers: Tensor


@dataclass(frozen=True)
class Architecture:
    """Where the parameters of a model lie, and the one that its clients begin with."""

    name: str
    layout: FlatLayout
    start: ClientModel


@dataclass(frozen=True)
class ServerExamples:
    """What a server distils on: rows of the training examples that no client has, their labels hidden (-1).

    ``transfer`` [n]: the unlabelled set; ``random`` [r]: random examples that show probability biases, none where no
    weighting reads them; ``test`` [m]: rows of the test examples, on which the server's training is measured;
    ``points``: label coordinates [C, d].
    """

    transfer: Tensor
    random: Tensor
    test: Tensor
    points: list[list[float]]


@dataclass(frozen=True)
class Population:
    """All clients, or with ``members`` a cluster of them, which learns by itself.

    ``names``, ``train`` and ``test`` (rows of images [n_k]) are of all clients, so that a client has the same number,
    and the same draws, in any cluster; ``start``: the first global model; ``server``: where one distils.
    """

    names: list[str]
    train: list[Tensor]
    test: list[Tensor]
    layout: FlatLayout
    start: ClientModel
    training: FederatedTraining
    augment: str
    seed: int
    members: tuple[int, ...] | None = None
    #: rows of training examples that a client holds out from training, [v_k] each; empty without
    valid: list[Tensor] = field(default_factory=list)
    #: clients that take part in no round
    unseen: tuple[int, ...] = ()
    server: ServerExamples | None = None
    #: of all training examples [N]; of those of a client it makes its own statistics, and no other sees them
    labels: Tensor | None = None
    #: of clients with models of their own: what there is beside ``layout`` and ``start``, which are the first of all
    others: tuple[Architecture, ...] = ()
    #: those who take part in a round, chosen by a fleet; None: drawn from the seed
    chosen: tuple[int, ...] | None = None
    #: of a fleet: seconds that each client trains on an example [N]
    seconds_per_example: Tensor | None = None
    #: how clients are drawn and what they send is clipped and covered by noise; None = as they are
    privacy: UserPrivacy | None = None

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def clients(self) -> Sequence[int]:
        """The numbers of the clients that take part, ascending."""
        return range(len(self.train)) if self.members is None else self.members

    def network(self, client: int) -> int:
        """The number of the client's architecture: they are dealt in turn, to clients by number, whatever the
        cluster."""
        return client % (1 + len(self.others))

    def layout_of(self, client: int) -> FlatLayout:
        """Where the parameters of the client's model lie."""
        number = self.network(client)
        return self.others[number - 1].layout if number else self.layout

    def start_of(self, client: int) -> ClientModel:
        """The model that the client begins with: the same for all of its architecture."""
        number = self.network(client)
        return self.others[number - 1].start if number else self.start

    def cluster(self, members: Sequence[int]) -> Population:
        """``members`` by themselves, none of which is unseen; a round takes no more clients than there are."""
        asked = self.training.participants
        capped = asked if isinstance(asked, float) else min(asked, len(members))
        training = dataclasses.replace(self.training, participants=capped)
        server = self.server
        if server is not None:
            server = dataclasses.replace(server, test=torch.cat([self.test[client] for client in sorted(members)]))
        return dataclasses.replace(self, members=tuple(sorted(members)), training=training, server=server, unseen=())

    @property
    def participants(self) -> int:
        """Clients a round, m = max(C K, 1) (McMahan et al. 2017, Algorithm 1)."""
        asked = self.training.participants
        return max(int(asked * len(self)), 1) if isinstance(asked, float) else asked

    def drawn(self, round: int) -> list[int]:
        """The participants of ``round``, drawn without replacement from (seed, round), in ascending order; of private
        training with Poisson sampling perhaps none."""
        if self.chosen is not None:
            return sorted(self.chosen)
        if self.privacy is not None and self.privacy.sampling == "poisson":
            return self.privacy.poisson_draw(self.clients, self.seed, round)
        return sorted(self.in_turn(round)[: self.participants])

    def in_turn(self, round: int) -> list[int]:
        """All clients in the order in which ``round`` asks them to take part, drawn from (seed, round)."""
        order = torch.randperm(len(self), generator=generator(self.seed, "participants", round))
        return [self.clients[position] for position in order.tolist()]

    def check(self) -> list[str]:
        """Notes on clients smaller than a batch. Raises :class:`UserError` for settings that these clients cannot
        fulfil."""
        training, sizes = self.training, [len(rows) for rows in self.train]
        if self.participants > len(self):
            raise UserError(
                f"training.participants: {self.participants} are more than the {len(self)} clients; "
                f"at most {len(self)} is right"
            )
        empty = [name for name, size in zip(self.names, sizes, strict=True) if not size]
        if empty:
            raise UserError(f"partition: {empty[0]} has no training examples ({len(empty)} such clients)")
        small = [(size, name) for size, name in zip(sizes, self.names, strict=True) if size < training.batch]
        if not small:
            return []
        size, name = min(small)
        if training.drop_last:
            raise UserError(
                f"training.batch: {training.batch} is more than the {size} examples of {name}, which would never "
                f"train with training.drop_last=true ({len(small)} such clients); at most {size} is right"
            )
        if training.small_clients == "stop":
            raise UserError(
                f"training.batch: {training.batch} is more than the {size} examples of {name} ({len(small)} such "
                "clients); training.small_clients=allow trains them on one smaller batch"
            )
        return [f"{len(small)} clients are smaller than a batch of {training.batch} and train on one smaller batch"]
