"""Counts of examples by class and party."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from knot_runner.config.settings.image_tasks import UNLABELED
from knot_runner.data.tasks import ImageTask, Partition, PartyTask

#: Largest number of parties that a record lists one by one. For more parties, the record has sums only.
MAX_RECORDED = 1000
#: Largest number of parties, and of classes, that a line lists one by one.
MAX_LISTED = 12
TRAIN = "train"


@dataclass(frozen=True, eq=False)
class Counts:
    """The number of examples of each class, per party and split.

    Attributes:
        called: The word for parties in messages: "data sets" or "clients".
        classes: Names of the C classes.
        parties: Dict from the name of a party to a dict from split to counts. The counts are int64 [C + 1]:
            one count per class, then the count of unlabeled examples.
        same_classes: Whether all parties have the same classes. The value is false if the parties are different image
            data sets.
    """

    called: str
    classes: list[str]
    parties: dict[str, dict[str, np.ndarray]]
    same_classes: bool = True

    def record(self) -> dict[str, Any]:
        """Return the counts in the form of ``result.json``.

        With more than 1000 parties, the counts are summed over all parties.
        """
        parties = self.parties
        if len(parties) > MAX_RECORDED:
            totals = {}
            for splits in parties.values():
                for split, counts in splits.items():
                    totals[split] = totals.get(split, 0) + counts
            parties = {"ALL": totals}
        record: dict[str, Any] = {"classes": self.classes, "parties": {}}
        for name, splits in parties.items():
            labeled = record["parties"][name] = {}
            for split, counts in splits.items():
                *labeled[split], unlabeled = counts.tolist()
                if unlabeled:
                    record.setdefault("unlabeled", {}).setdefault(name, {})[split] = unlabeled
        return record

    def warnings(self, batch: int | None = None) -> list[str]:
        """Return at most two warnings about the parties' training examples.

        One warning is about parties with examples of only one class. The other warning is about parties with
        fewer examples than classes, or fewer examples than the batch size ``batch``.
        """
        least = max(batch or 0, len(self.classes) if self.same_classes else 0)
        one_class = {}
        few = {}
        for name, splits in self.parties.items():
            counts = splits[TRAIN]
            present = np.count_nonzero(counts[:-1])
            if present == 1:
                one_class[name] = counts
            elif present and counts.sum() < least:
                few[name] = counts.sum()
        lines = []
        if one_class:
            name, (*labeled, unlabeled) = next(iter(one_class.items()))
            what = "labeled training examples" if unlabeled else "training examples"
            of = f"{sum(labeled)} of class {self.classes[np.argmax(labeled)]}"
            lines.append(self._warning(one_class, name, of, f"{what} of one class only"))
        if few:
            name = min(few, key=few.__getitem__)
            than = f"a batch of {batch}" if batch == least else f"the number of classes, {least}"
            lines.append(self._warning(few, name, f"{few[name]} examples", f"fewer training examples than {than}"))
        return lines

    def _warning(self, parties: Collection[str], name: str, of: str, what: str) -> str:
        if len(parties) == 1:
            return f"warning: {name} has {what} ({of})"
        return f"warning: {len(parties)} of {len(self.parties)} {self.called} have {what}, such as {name} ({of})"

    def lines(self) -> list[str]:
        """Return the counts as lines of text, one per party and split.

        With more than 12 parties, there is one line per split.
        """
        if len(self.parties) > MAX_LISTED:
            return [self._summary(split) for split in next(iter(self.parties.values()))]
        lines = []
        for name, splits in self.parties.items():
            for split, counts in splits.items():
                if counts.any():
                    lines.append(f"{name} {split} {counts.sum()}: {self._listed(counts)}")
        return lines

    def _listed(self, counts: np.ndarray) -> str:
        labels = counts[:-1]
        present = np.flatnonzero(labels)
        if not len(present):
            return "unlabeled"
        text = ", ".join(f"{self.classes[k]}={labels[k]}" for k in present)
        if len(present) > MAX_LISTED:
            text = f"{len(present)} of {len(labels)} classes, {labels[present].min()} to {labels.max()} each"
        return text + (f", unlabeled={counts[-1]}" if counts[-1] else "")

    def _summary(self, split: str) -> str:
        rows = np.array([splits[split] for splits in self.parties.values() if split in splits])
        sizes = rows.sum(1)
        kinds = np.count_nonzero(rows[:, :-1], axis=1)
        return (
            f"{len(rows)} {self.called}, {split}: {sizes.min()} to {sizes.max()} examples each "
            f"(median {np.median(sizes):g}) of {kinds.min()} to {kinds.max()} classes"
        )


def of_parties(task: PartyTask) -> Counts:
    """Count the examples of each class, per data set and split. All examples of the transfer set count as unlabeled."""
    names = task.labels.names
    parties = {}
    for name, data in task.datasets.items():
        parties[name] = {split: _count(part.labels, len(names)) for split, part in data.splits.items()}
    return Counts("data sets", names, parties)


def of_images(task: ImageTask, partition: Partition, same_classes: bool = True) -> Counts:
    """Count the images of each class, per party and split (train, test).

    If ``same_classes`` is true, the parties in ``partition`` are clients. If it is false, the parties are data sets,
    which may have different classes.
    """
    classes = len(task.classes)
    parties = {}
    for name, train, test in zip(partition.names, partition.train, partition.test, strict=True):
        parties[name] = {
            TRAIN: _count(task.train.labels[train], classes),
            "test": _count(task.test.labels[test], classes),
        }
    return Counts("clients" if same_classes else "data sets", task.classes, parties, same_classes)


def of_all_images(task: ImageTask) -> Counts:
    """Count the images of each class, per split (train, test). All images belong to one party."""
    return of_images(task, Partition(["all images"], [np.arange(len(task.train))], [np.arange(len(task.test))]))


def _count(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.bincount(np.where(labels == UNLABELED, classes, labels), minlength=classes + 1)
