"""Setup of a federated run: read the examples, assign the examples to clients, and build the initial model."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from knot_runner.config.settings.methods.federated import FederatedTraining, architecture_settings, server_distillation
from knot_runner.config.settings.partition import Centralized, HeldOut
from knot_runner.data.counts import Counts, of_images
from knot_runner.data.images import ImageTask, Partition, make_partition
from knot_runner.data.images.load import label_space
from knot_runner.engine.examples import ClientData, ImageData, TextData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.choose import make_engine
from knot_runner.engine.federated.cohort import DTYPES, ClientModel, Engine
from knot_runner.engine.flops import ExampleFlops, example_flops
from knot_runner.methods.contract import RoundMethod
from knot_runner.methods.federation import FederatedState, Federation, ServerExamples
from knot_runner.methods.party import Architecture, Party
from knot_runner.models.network import Network
from knot_runner.pipelines.context import RunContext, as_kind
from knot_runner.util.errors import UserError, counted
from knot_runner.util.files import Facts, LogRow

if TYPE_CHECKING:
    from knot_runner.data.pools import TextPool
    from knot_runner.pipelines.personalization.personalized import PersonalModels


@dataclass(frozen=True)
class Setup:
    """Inputs of a federated run: examples, their partition, the clients, and the model."""

    task: ImageTask | TextPool
    partition: Partition
    federation: Federation
    data: ClientData
    test: ClientData
    #: number of training examples that are not assigned to any client
    held_out: int = 0

    @property
    def networks(self) -> list[Network]:
        """Return the network of each client architecture. Engine requests contain an index into this list."""
        return [architecture.network for architecture in self.federation.architectures]

    @property
    def counts(self) -> Counts:
        """Return the number of examples of each class at every client."""
        return of_images(self.task, self.partition)

    @cached_property
    def example_tokens(self) -> int:
        """Return the mean number of tokens of the clients' training texts, rounded up; 0 for images."""
        if not isinstance(self.data, TextData):
            return 0
        rows = [self.federation.clients[client].train for client in self.federation.numbers]
        return math.ceil(self.data.texts.lengths[torch.cat(rows)].double().mean())

    @cached_property
    def example_flops(self) -> ExampleFlops | None:
        """Return the FLOPs that the first client architecture needs for one example; None if unknown.

        A text example is assumed to have the mean length of the training texts.
        """
        return example_flops(self.networks[0], self.example_tokens)

    @property
    def notes(self) -> list[str]:
        """Return the notes that the user sees before training.

        Raises:
            UserError: A setting does not fit the data.
        """
        notes = [*check_sizes(self.federation), *self.counts.warnings()]
        return [*self.task.notes, *self.partition.notes, *notes]


@dataclass(frozen=True)
class FederatedContext:
    """Inputs of three parts of a federated run: the rounds, the evaluation and the personalization.

    ``clusters``: groups of clients that train separately; empty if all clients train together.
    """

    context: RunContext
    setup: Setup
    method: RoundMethod
    engine: Engine
    clusters: list[Federation] = field(default_factory=list)

    @property
    def config(self) -> Any:
        """Return the settings of the method."""
        return self.context.method

    @property
    def federation(self) -> Federation:
        """Return the federation of all clients."""
        return self.setup.federation

    @property
    def classes(self) -> int:
        """Return the number of classes."""
        return len(self.setup.task.classes)

    def deployed(self, state: FederatedState, client: int) -> ClientModel:
        """Return the model that ``client`` deploys, given the method's ``state``."""
        return self.method.deployed(self.config, state, self.federation, client)


@dataclass(frozen=True)
class TrainingResult:
    """The result of training: the final state, the log rows of all rounds, and the personalized models, if any."""

    state: FederatedState
    rows: list[LogRow]
    personal: PersonalModels | None = None


def make_setup(context: RunContext) -> Setup:
    """Read the examples, partition them over clients, and build the initial model; return the setup.

    Raises:
        UserError: The settings do not fit the data.
    """
    settings = context.settings
    config = context.method
    shares = context.settings.held_out or HeldOut()
    if settings.on_images:
        task = context.images()
        if settings.transfer is not None:
            from knot_runner.pipelines.transfer_set import with_other_set

            task = with_other_set(context, task)
        partition, held_out = deal_clients(context, task)
        if shares.alter is not None:
            from knot_runner.data.images.held_out import alter_clients

            task, partition = alter_clients(task, partition, shares.alter, settings.seed)
        data, test = resident(task)
        network = Network(settings.model, task.shape, len(task.classes))
        labels = label_space(task.classes, task.coordinates)
    else:
        from knot_runner.pipelines.transfer_set import read_texts  # imports modules for distilling servers

        task, network, data, test = read_texts(context)
        partition, held_out = deal_clients(context, task)
        labels = task.whole.labels
    # client k has architecture k modulo their number; all architectures have the inputs of ``network``, such as its
    # vocabulary
    dtype = DTYPES[settings.hardware.precision]
    networks = []
    architectures = []
    for spec in architecture_settings(config) or [network.spec]:
        client_network = dataclasses.replace(network, spec=spec)
        weights, buffers = flat.initial(client_network, settings.seed, context.data_root)
        start = ClientModel(weights.to(dtype), buffers.to(dtype))
        networks.append(client_network)
        architectures.append(Architecture(client_network, flat.layout_of(client_network), start))
    server: ServerExamples | None = None
    distillation = server_distillation(config)
    if distillation is not None:
        from knot_runner.pipelines.transfer_set import server_examples

        data, server = server_examples(context, task, labels, data, test, held_out)
        if distillation.terms:
            from knot_runner.methods.around.server_terms import check_server_terms

            check_server_terms(config.algorithm, distillation, networks, len(server.transfer))
    training = as_kind(settings.training, FederatedTraining)
    if isinstance(settings.partition, Centralized):
        training = dataclasses.replace(training, clients_per_round=1, local_epochs=1)
        partition.notes.append(
            "one client has all data, so a round is one epoch. training.clients_per_round and local_epochs are ignored"
        )
    members = None
    unseen: tuple[int, ...] = ()
    if shares.unseen is not None:
        from knot_runner.data.images.held_out import unseen_clients

        count = len(partition.names)
        unseen = unseen_clients(count, shares.unseen, settings.seed)
        members = tuple(sorted({*range(count)} - {*unseen}))
        partition.notes.append(f"partition.unseen: {len(unseen)} of {count} clients take part in no round")
    federation = Federation(
        clients=_clients(partition),
        labels=labels,
        training=training,
        seed=settings.seed,
        augment=getattr(settings.task, "augment", "none"),
        architectures=tuple(architectures),
        members=members,
        unseen=unseen,
        train_labels=data.labels,
        server=server,
    )
    return Setup(task, partition, federation, data, test, len(held_out))


def open_engine(context: RunContext, setup: Setup) -> Engine:
    """Return the engine for the examples of ``setup``. The caller must close the engine."""
    settings = context.settings
    return make_engine(settings.hardware, setup.networks, setup.data, setup.test, context.note, settings.plugins)


def deal_clients(context: RunContext, task: ImageTask | TextPool) -> tuple[Partition, np.ndarray]:
    """Partition the examples over clients.

    Returns:
        The partition, and the row numbers of the training examples that ``partition.transfer`` holds out. Nothing is
        held out if ``partition.transfer`` is not set.

    Raises:
        UserError: The partition is not possible.
    """
    settings = context.settings
    shares = context.settings.held_out or HeldOut()
    taken = np.empty(0, dtype=np.int64)
    if shares.transfer is not None:
        from knot_runner.data.parties import transfer_rows

        kept, taken = transfer_rows(task.train.labels, shares.transfer, settings.seed)
        left = dataclasses.replace(task, train=task.train.take(kept))
        partition = make_partition(settings.partition, left, settings.seed)
        use = "and used for distillation" if server_distillation(context.method) is not None else "and not used"
        count = f"{len(taken)} of {len(task.train)} training examples"
        notes = [*partition.notes, f"partition.transfer: {count} are assigned to no client {use}"]
        partition = dataclasses.replace(partition, train=[kept[rows] for rows in partition.train], notes=notes)
    else:
        partition = make_partition(settings.partition, task, settings.seed)
    if shares.valid is not None:
        from knot_runner.data.images.held_out import hold_out_valid

        partition = hold_out_valid(partition, shares.valid, settings.seed)
    return partition, taken


def _clients(partition: Partition) -> tuple[Party, ...]:
    """Return a :class:`Party` for each client, with the rows that ``partition`` assigns to the client."""
    splits = [partition.train, partition.test]
    if partition.valid is not None:
        splits.append(partition.valid)
    rows = zip(partition.names, *splits, strict=True)
    return tuple(Party(name, *map(torch.from_numpy, of_client)) for name, *of_client in rows)


def resident(task: ImageTask) -> list[ImageData]:
    """Return [training images, test images] of ``task`` in the format that engines read. Pixels are not copied."""
    mean, std = torch.tensor([task.mean, task.std], dtype=torch.float64)
    parts = (task.train, task.test)
    return [ImageData(torch.from_numpy(part.pixels), torch.from_numpy(part.labels), mean, std) for part in parts]


def client_counts(setup: Setup) -> Facts:
    """Return facts about each client: name, count of training examples per class, count of test examples, and group."""
    counts = setup.counts.parties.values()
    return {
        "clients": setup.partition.names,
        "classes": setup.task.classes,
        "train": [splits["train"][:-1].tolist() for splits in counts],
        "test": list(map(len, setup.partition.test)),
        "groups": setup.partition.groups,
    }


def check_sizes(federation: Federation) -> list[str]:
    """Check how many training examples each client has; return notes for the user.

    Raises:
        UserError: A client has no training examples, or less than one batch while the settings require full batches.
    """
    training = federation.training
    clients = federation.clients
    notes = []
    wanted = training.clients_per_round
    if isinstance(wanted, int) and wanted > len(federation):
        notes.append(f"training.clients_per_round={wanted}: all {len(federation)} clients take part in every round")
    empty = [client.name for client in clients if not client.size]
    if empty:
        raise UserError(f"clients without training examples: {len(empty)} (first: {empty[0]})", "partition")
    small = [(client.size, client.name) for client in clients if client.size < training.batch_size]
    if not small:
        return notes
    size, name = min(small)
    problem = f"{training.batch_size} is too large for {len(small)} of the clients"
    if training.drop_last or training.small_clients == "stop":
        other = "training.drop_last=false" if training.drop_last else "training.small_clients=allow"
        smallest = f"(smallest: {name} with {counted(size, 'example')})"
        raise UserError(f"{problem} {smallest}", "training.batch_size", hint=f"Use at most {size}, or set {other}")
    return [*notes, f"training.batch_size={problem}; clients with fewer examples train on one smaller batch"]
