"""The federation of a task whose examples are in the store.

Each data set becomes a party according to its role. A stage uses at most ``training.STAGE.max_examples`` of a party's
training examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from knot_runner.config.settings.groups import CentralTraining, StageSettings, TrainingSettings
from knot_runner.config.settings.run import Settings
from knot_runner.config.settings.text_tasks import Role
from knot_runner.data.tasks import Dataset, Examples, Images, PartyTask
from knot_runner.engine.requests import Ref
from knot_runner.engine.seeds import numpy_generator
from knot_runner.methods.party import PartyFederation, StoredParty
from knot_runner.models.network import Network
from knot_runner.pipelines.context import as_kind


def stages_of(settings: Settings) -> dict[Role, StageSettings]:
    """Return role -> the stage that trains on data sets with this role."""
    training = as_kind(settings.training, CentralTraining)
    server = training.pretrain if isinstance(training, TrainingSettings) else training.distill
    return {"local": training.local, "global": server, "transfer": training.distill}


def used_count(dataset: Dataset, split: str, settings: Settings) -> int:
    """Return the number of examples used from a split; for ``train`` at most the stage's ``max_examples``."""
    limit = stages_of(settings)[dataset.role].max_examples if split == "train" else None
    count = len(dataset.splits[split])
    return count if limit is None else min(count, limit)


def used_examples(dataset: Dataset, split: str, settings: Settings) -> Examples | Images:
    """Return the used examples (see :func:`used_count`), sampled with the run's seed, in their original order.

    With the same seed, a smaller limit selects a subset of the examples for a larger limit.
    """
    examples, count = dataset.splits[split], used_count(dataset, split, settings)
    if count == len(examples):
        return examples
    order = numpy_generator(settings.seed, "limit", dataset.name).permutation(len(examples))
    return examples.take(np.sort(order[:count]))


def party_federation(
    settings: Settings,
    task: PartyTask,
    examples: dict[tuple[str, str], Ref],
    networks: dict[str, Network],
    notes: list[str],
    **more: Any,
) -> PartyFederation:
    """Return the federation of ``task`` from ``examples`` by (data set, split) and ``networks``.

    Without a transfer set, the server's examples are used for distillation. ``more``: further fields of the federation,
    in addition to its ``notes``.
    """
    by_role: dict[str, list[StoredParty]] = {"local": [], "global": [], "transfer": []}
    for data in task.datasets.values():
        refs = {split: examples[data.name, split] for split in data.splits}
        party = StoredParty(data.name, refs, networks[data.name], used_count(data, "train", settings))
        by_role[data.role].append(party)
    server = by_role["global"][0]
    return PartyFederation(
        clients=tuple(by_role["local"]),
        server=server,
        transfer=next(iter(by_role["transfer"]), server),
        labels=task.labels,
        training=as_kind(settings.training, CentralTraining),
        seed=settings.seed,
        notes=notes,
        **more,
    )
