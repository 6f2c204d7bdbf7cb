"""Setup of a federated run: read the examples, partition them over clients, and build the initial model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.config.settings.methods.federated import FederatedTraining, architecture_settings, server_distillation
from knot_runner.config.settings.partition import Centralized
from knot_runner.data.counts import Counts, of_images
from knot_runner.data.images import ImageTask, Partition, make_partition
from knot_runner.data.images.load import label_space
from knot_runner.engine.examples import ClientData, ImageData, TextData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.choose import make_engine
from knot_runner.engine.federated.cohort import DTYPES, ClientModel, Engine
from knot_runner.engine.flops import ExampleFlops, example_flops
from knot_runner.methods.federation import Federation, with_server
from knot_runner.methods.party import Architecture, Party
from knot_runner.models.network import Network
from knot_runner.pipelines.context import RunContext, as_kind
from knot_runner.util.errors import UserError, counted
from knot_runner.util.files import Facts

if TYPE_CHECKING:
    from knot_runner.data.pools import TextPool


@dataclass(frozen=True)
class Setup:
    """Inputs of a federated run: examples, their partition, the clients, and the model."""

    task: ImageTask | TextPool
    partition: Partition
    federation: Federation
    data: ClientData
    test: ClientData
    #: training examples that no client has
    held_out: int = 0

    @property
    def networks(self) -> list[Network]:
        """Return the network of each client architecture. Requests refer to networks by number."""
        return [architecture.network for architecture in self.federation.architectures]

    @property
    def counts(self) -> Counts:
        """Return the number of examples of each class at every client."""
        return of_images(self.task, self.partition)

    @cached_property
    def example_tokens(self) -> int:
        """Return the mean number of tokens of a client's text, rounded up; 0 for images."""
        if not isinstance(self.data, TextData):
            return 0
        rows = [self.federation.clients[client].train for client in self.federation.numbers]
        lengths = self.data.texts.lengths[torch.cat(rows)]
        return math.ceil(lengths.double().mean())

    @cached_property
    def example_flops(self) -> ExampleFlops | None:
        """Return the FLOPs for one example of the mean length."""
        return example_flops(self.networks[0], self.example_tokens)

    @property
    def notes(self) -> list[str]:
        """Return notes for the user, before training.

        Raises:
            UserError: A setting does not fit the data.
        """
        notes = [*check_sizes(self.federation), *self.counts.warnings()]
        return [*self.task.notes, *self.partition.notes, *notes]


def make_setup(context: RunContext) -> Setup:
    """Read the examples, partition them, and describe the model.

    Raises:
        UserError: The settings do not fit the data.
    """
    settings = context.settings
    if settings.on_images:
        task = context.images()
        if settings.transfer is not None:
            from knot_runner.pipelines.transfer_set import with_other_set

            task = with_other_set(context, task)
        data, test = resident(task)
        network = Network(settings.model, task.shape, len(task.classes))
    else:
        from knot_runner.pipelines.transfer_set import read_texts  # with what else a server needs

        task, network, data, test = read_texts(context)
    partition, held_out = deal_clients(context, task)
    if settings.held_out is not None and settings.held_out.alter is not None:
        from knot_runner.data.images.held_out import alter_clients

        task, partition = alter_clients(task, partition, settings.held_out.alter, settings.seed)
        data, test = resident(task)
    labels = label_space(task.classes, task.coordinates) if settings.on_images else task.whole.labels
    server: dict[str, Tensor] = {}
    distillation = server_distillation(context.method)
    if distillation is not None:
        from knot_runner.pipelines.transfer_set import server_examples

        data, server = server_examples(context, task, labels, data, held_out)
    dtype = DTYPES[settings.hardware.precision]
    # dealt to the clients in turn; all take the inputs of ``network``, and text models share its vocabulary
    networks = [
        dataclasses.replace(network, spec=spec) for spec in architecture_settings(context.method) or [network.spec]
    ]
    architectures = [_architecture(context, client_network, dtype) for client_network in networks]
    if distillation is not None and distillation.terms:
        from knot_runner.methods.around.server_terms import check_server_terms

        check_server_terms(context.method.algorithm, distillation, networks, len(server["transfer"]))
    training = as_kind(settings.training, FederatedTraining)
    if isinstance(settings.partition, Centralized):
        training = dataclasses.replace(training, clients_per_round=1, local_epochs=1)
        partition.notes.append(
            "one client has all data, so a round is one epoch. training.clients_per_round and local_epochs are ignored"
        )
    unseen: tuple[int, ...] = ()
    if settings.held_out is not None and settings.held_out.unseen is not None:
        from knot_runner.data.images.held_out import unseen_clients

        total = len(partition.names)
        unseen = unseen_clients(total, settings.held_out.unseen, settings.seed)
        partition.notes.append(f"partition.unseen: {len(unseen)} of {total} clients take part in no round")
    federation = Federation(
        clients=tuple(_clients(partition, architectures)),
        labels=labels,
        training=training,
        seed=settings.seed,
        augment=settings.task.augment if isinstance(settings.task, ImageTaskSettings) else "none",
        architectures=tuple(architectures),
        members=tuple(sorted(set(range(len(partition.names))) - set(unseen))) if unseen else None,
        unseen=unseen,
        train_labels=data.labels,
    )
    if server:
        federation = with_server(federation, tests=torch.arange(len(test.labels)), **server)
    return Setup(task, partition, federation, data, test, len(held_out))


def open_engine(context: RunContext, setup: Setup) -> Engine:
    """Return the engine that ``hardware`` selects, with the examples of ``setup``. Close it after use."""
    settings = context.settings
    return make_engine(settings.hardware, setup.networks, setup.data, setup.test, context.note, settings.plugins)


def deal_clients(context: RunContext, task: ImageTask | TextPool) -> tuple[Partition, np.ndarray]:
    """Return the run's partition over clients, and the rows [n] of training examples held out as a transfer set.

    Raises:
        UserError: The partition is not possible.
    """
    settings, shares = context.settings, context.settings.held_out
    if shares is not None and shares.transfer is not None:
        partition, taken = _deal_rest(context, task, shares.transfer)
    else:
        partition = make_partition(settings.partition, task, settings.seed)
        taken = np.empty(0, dtype=np.int64)
    if shares is not None and shares.valid is not None:
        from knot_runner.data.images.held_out import hold_out_valid

        partition = hold_out_valid(partition, shares.valid, settings.seed)
    return partition, taken


def _deal_rest(context: RunContext, task: ImageTask | TextPool, share: float) -> tuple[Partition, np.ndarray]:
    """Return :func:`deal_clients` after holding out a ``share`` of the training examples as a transfer set."""
    from knot_runner.data.parties import transfer_rows

    settings = context.settings
    kept, taken = transfer_rows(task.train.labels, share, settings.seed)
    left = dataclasses.replace(task, train=task.train.take(kept))
    partition = make_partition(settings.partition, left, settings.seed)
    use = "and used for distillation" if server_distillation(context.method) is not None else "and not used"
    notes = [
        *partition.notes,
        f"partition.transfer: {len(taken)} of {len(task.train)} training examples are assigned to no client {use}",
    ]
    return dataclasses.replace(partition, train=[kept[rows] for rows in partition.train], notes=notes), taken


def _architecture(context: RunContext, network: Network, dtype: torch.dtype) -> Architecture:
    """Return ``network`` with the initial model of its clients, in ``dtype``."""
    weights, buffers = flat.initial(network, context.settings.seed, context.data_root)
    return Architecture(network, flat.layout_of(network), ClientModel(weights.to(dtype), buffers.to(dtype)))


def _clients(partition: Partition, architectures: list[Architecture]) -> Iterator[Party]:
    """Yield each client with its part of ``partition``. Clients take the ``architectures`` in turn."""
    splits = {"train": partition.train, "test": partition.test, "valid": partition.valid}
    for number, name in enumerate(partition.names):
        rows = {split: torch.from_numpy(parts[number]) for split, parts in splits.items() if parts is not None}
        yield Party.of_rows(name, architectures[number % len(architectures)].network, **rows)


def resident(task: ImageTask) -> list[ImageData]:
    """Return the training and test images of ``task`` in the format of the engines."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (task.mean, task.std))
    parts = (task.train, task.test)
    return [ImageData(torch.from_numpy(part.pixels), torch.from_numpy(part.labels), mean, std) for part in parts]


def client_counts(setup: Setup) -> Facts:
    """Return the number of examples per client and class, as facts of the result."""
    labels, classes = setup.task.train.labels, len(setup.task.classes)
    return {
        "clients": setup.partition.names,
        "classes": setup.task.classes,
        "train": [np.bincount(labels[rows], minlength=classes).tolist() for rows in setup.partition.train],
        "test": [len(rows) for rows in setup.partition.test],
        "groups": setup.partition.groups,
    }


def check_sizes(federation: Federation) -> list[str]:
    """Return notes on clients with less than one batch of examples.

    Raises:
        UserError: A setting needs more examples than a client has.
    """
    training, clients = federation.training, federation.clients
    notes, wanted = [], training.clients_per_round
    if isinstance(wanted, int) and wanted > len(federation):
        notes.append(f"training.clients_per_round={wanted}: all {len(federation)} clients take part in every round")
    empty = [client.name for client in clients if not client.size]
    if empty:
        raise UserError(f"clients without training examples: {len(empty)}, such as {empty[0]}", "partition")
    small = [(client.size, client.name) for client in clients if client.size < training.batch_size]
    if not small:
        return notes
    size, name = min(small)
    problem = f"{training.batch_size} is larger than the training set of {counted(len(small), 'client')}"
    other = "training.drop_last=false" if training.drop_last else "training.small_clients=allow"
    if training.drop_last or training.small_clients == "stop":
        smallest = f"(smallest: {name}, {counted(size, 'example')})"
        raise UserError(f"{problem} {smallest}", "training.batch_size", hint=f"Use at most {size}, or set {other}")
    return [*notes, f"training.batch_size={problem}; these clients train on a single smaller batch"]
