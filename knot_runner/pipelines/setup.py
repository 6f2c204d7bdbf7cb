"""What a federated run stands on: images read and dealt to clients, and the model they start from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from knot_runner.config.settings import Centralised
from knot_runner.data.counts import Counts, of_images
from knot_runner.data.images import Images, ImageTask, Partition, make_partition
from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.choose import DTYPES
from knot_runner.methods.federated.population import ClientModel, Population
from knot_runner.models.network import Network
from knot_runner.pipelines.context import RunContext


@dataclass(frozen=True)
class Setup:
    """What a run stands on: images, their partition, the clients, the model."""

    task: ImageTask
    partition: Partition
    population: Population
    network: Network
    data: ImageData
    test: ImageData

    @property
    def counts(self) -> Counts:
        """Images of each class that every client has."""
        return of_images(self.task, self.partition)

    @property
    def notes(self) -> list[str]:
        """What the user should hear before anything is trained. Raises :class:`UserError`."""
        return [*self.task.notes, *self.partition.notes, *self.population.check(), *self.counts.warnings()]


def make_setup(context: RunContext) -> Setup:
    """Read the images, deal them out, describe the model. Raises :class:`UserError`."""
    settings = context.settings
    task = context.services.images(settings.task, context.data_root)
    partition = make_partition(settings.partition, task, settings.seed)
    network = Network(settings.model, task.shape, len(task.classes))
    weights, buffers = flat.initial(network, settings.seed)
    dtype = DTYPES[settings.hardware.precision]
    training = settings.training
    if isinstance(settings.partition, Centralised):
        training = dataclasses.replace(training, participants=1, epochs=1)
        partition.notes.append(
            "one client has everything, so a round is one epoch (training.participants and .epochs do not apply)"
        )
    population = Population(
        names=partition.names,
        train=[torch.from_numpy(rows) for rows in partition.train],
        test=[torch.from_numpy(rows) for rows in partition.test],
        layout=flat.layout_of(network),
        start=ClientModel(weights.to(dtype), buffers.to(dtype)),
        training=training,
        augment=settings.task.augment,
        seed=settings.seed,
    )
    return Setup(task, partition, population, network, resident(task, task.train), resident(task, task.test))


def resident(task: ImageTask, images: Images) -> ImageData:
    """``images`` as the engines hold them."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (task.mean, task.std))
    return ImageData(torch.from_numpy(images.pixels), torch.from_numpy(images.labels), mean, std)


def client_counts(setup: Setup) -> dict[str, Any]:
    """Images per client and class, for the record."""
    labels, classes = setup.task.train.labels, len(setup.task.classes)
    return {
        "clients": setup.partition.names,
        "classes": setup.task.classes,
        "train": [np.bincount(labels[rows], minlength=classes).tolist() for rows in setup.partition.train],
        "test": [len(rows) for rows in setup.partition.test],
        "groups": setup.partition.groups,
    }
