"""How many of a party's training examples its stage uses: ``training.STAGE.limit``."""

from __future__ import annotations

import numpy as np

from knot_runner.config.settings import Role, Settings, StageSettings
from knot_runner.data.tasks import Dataset, Examples, Images, PartyTask
from knot_runner.engine.seeds import keyed


def stages_of(settings: Settings) -> dict[Role, StageSettings]:
    """Role of a data set -> the stage that trains on it."""
    training = settings.training
    return {"local": training.local, "global": training.pretrain, "transfer": training.distil}


def used_count(dataset: Dataset, split: str, settings: Settings) -> int:
    """Examples of a split that are used: of ``train``, at most the stage's ``limit``."""
    limit = stages_of(settings)[dataset.role].limit if split == "train" else None
    count = len(dataset.splits[split])
    return count if limit is None else min(count, limit)


def used_examples(dataset: Dataset, split: str, settings: Settings) -> Examples | Images:
    """The examples that :func:`used_count` counts, drawn by the run's seed, in their order; those of a smaller limit
    are among those of a larger one."""
    examples, count = dataset.splits[split], used_count(dataset, split, settings)
    if count == len(examples):
        return examples
    order = np.random.default_rng(keyed(settings.seed, "limit", dataset.name)).permutation(len(examples))
    return examples.take(np.sort(order[:count]))


def limit_notes(task: PartyTask, settings: Settings) -> list[str]:
    """A line for each data set that is not used whole."""
    keys: dict[Role, str] = {"local": "local", "global": "pretrain", "transfer": "distil"}
    notes = []
    for dataset in task.datasets.values():
        count, there = used_count(dataset, "train", settings), len(dataset.splits["train"])
        if count < there:
            notes.append(f"training.{keys[dataset.role]}.limit: {count} of {dataset.name}'s {there} training examples")
    return notes
