"""All examples of a task as one pool for a student and its teachers, with the labels that each sees."""

from __future__ import annotations

import dataclasses

from knot_runner.config.settings import DistilSettings, Labels, teacher_names
from knot_runner.data.images.geometry import one_hot
from knot_runner.data.images.partition import partition_rng
from knot_runner.data.pools import pooled_split
from knot_runner.data.splits import cut_splits
from knot_runner.data.tasks import UNLABELLED, Dataset, Examples, Images, ImageTask, PartyTask
from knot_runner.util.errors import UserError

#: The party that is taught and tested.
STUDENT = "student"


def teaching_parties(task: ImageTask | PartyTask, hp: DistilSettings, seed: int) -> PartyTask:
    """The student, and every teacher of ``hp``, on all examples of ``task``; same seed, same examples.

    Teachers see all labels of the training examples, the student those of a stratified share ``hp.labelled`` (the rest
    have none, -1). Both choose epochs on the same valid part, of images a stratified share ``hp.valid`` of the training
    images; the student alone is tested. Raises :class:`UserError`.
    """
    splits, labels = _splits(task, hp, seed)
    datasets = {name: Dataset(name, "local", {"train": splits["train"], "valid": splits["valid"]})
                for name in (teacher_names(len(hp.teachers)) if hp.teachers else [])}  # fmt: skip
    own = {**splits, "train": _partly_labelled(splits["train"], hp.labelled, seed)}
    datasets[STUDENT] = Dataset(STUDENT, "global", own)
    rows = task.rows if isinstance(task, PartyTask) else {}
    return PartyTask(task.name, labels, datasets, task.source, list(task.notes), task.files, rows, task.digest)


def _splits(task: ImageTask | PartyTask, hp: DistilSettings, seed: int) -> tuple[dict[str, Examples | Images], Labels]:
    """The train, valid and test parts of the pool, and the label space."""
    if isinstance(task, PartyTask):
        return {split: pooled_split(task, split) for split in ("train", "valid", "test")}, task.labels
    try:
        kept, taken = cut_splits(task.train.labels, hp.valid, _sampling_seed(seed, "valid"))
    except UserError as problem:
        raise UserError(f"method.valid: {problem}") from None
    labels = Labels(task.classes, task.coordinates or one_hot(len(task.classes)), "semantic")
    return {"train": task.train.take(kept), "valid": task.train.take(taken), "test": task.test}, labels


def _partly_labelled(examples: Examples | Images, share: float, seed: int) -> Examples | Images:
    """``examples`` with the labels of a stratified ``share`` of them."""
    if share == 1:
        return examples
    try:
        hidden, _ = cut_splits(examples.labels, share, _sampling_seed(seed, "labelled"))
    except UserError as problem:
        raise UserError(f"method.labelled: {problem}") from None
    labels = examples.labels.copy()
    labels[hidden] = UNLABELLED
    return dataclasses.replace(examples, labels=labels)


def _sampling_seed(seed: int, name: str) -> int:
    return int(partition_rng(seed, f"teaching/{name}").integers(2**32))
