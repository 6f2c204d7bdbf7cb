"""A partition of one's own: consecutive blocks of images, the first ``extra`` times as large (``partition=blocks``)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from knot_runner.config.settings.partition import PARTITION_SETTINGS
from knot_runner.config.settings.sizes import Parties
from knot_runner.data.images.partition import PARTITIONS, partition_by_owner


@dataclass
class Blocks:
    """Every client has as many images, the first one ``extra`` times as many."""

    kind: Literal["blocks"]
    num_clients: Parties
    extra: float


def partition_blocks(settings, task, rng):
    weights = np.array([settings.extra, *[1.0] * (settings.num_clients - 1)])
    ends = np.cumsum(weights) / weights.sum() * len(task.train)
    owner = np.searchsorted(ends, np.arange(len(task.train)), side="right")
    return partition_by_owner(task, owner, settings.num_clients, rng)


PARTITION_SETTINGS["blocks"], PARTITIONS["blocks"] = Blocks, partition_blocks
