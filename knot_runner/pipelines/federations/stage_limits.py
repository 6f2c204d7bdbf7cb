"""Limits on the training examples that a party's stage uses: ``training.STAGE.limit``."""

from __future__ import annotations

import numpy as np

from knot_runner.config.settings import Role, Settings, StageSettings
from knot_runner.data.tasks import Dataset, Examples, Images, PartyTask
from knot_runner.engine.seeds import keyed


def stages_of(settings: Settings) -> dict[Role, StageSettings]:
    """Returns role of a data set -> the stage that trains on it."""
    training = settings.training
    return {"local": training.local, "global": training.pretrain, "transfer": training.distil}


def used_count(dataset: Dataset, split: str, settings: Settings) -> int:
    """Returns the number of used examples of a split; of ``train`` at most the stage's ``limit``."""
    limit = stages_of(settings)[dataset.role].limit if split == "train" else None
    count = len(dataset.splits[split])
    return count if limit is None else min(count, limit)


def used_examples(dataset: Dataset, split: str, settings: Settings) -> Examples | Images:
    """Returns the used examples (see :func:`used_count`), sampled by the run's seed, in their order; a smaller limit
    gives a subset of a larger one's."""
    examples, count = dataset.splits[split], used_count(dataset, split, settings)
    if count == len(examples):
        return examples
    order = np.random.default_rng(keyed(settings.seed, "limit", dataset.name)).permutation(len(examples))
    return examples.take(np.sort(order[:count]))


def limit_notes(task: PartyTask, settings: Settings) -> list[str]:
    """Returns a note for each data set of which only a part is used."""
    keys: dict[Role, str] = {"local": "local", "global": "pretrain", "transfer": "distil"}
    notes = []
    for dataset in task.datasets.values():
        count, there = used_count(dataset, "train", settings), len(dataset.splits["train"])
        if count < there:
            notes.append(f"training.{keys[dataset.role]}.limit: {count} of {dataset.name}'s {there} training examples")
    return notes
