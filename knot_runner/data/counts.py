"""How many examples of each class every party has: what a one-class client or a shortened file shows at a glance."""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from knot_runner.data.examples import UNLABELLED, TextTask
from knot_runner.data.images.types import ImageTask, Partition

#: parties that a record lists one by one; of more, only the sums (partition.json has all clients)
MAX_RECORDED = 1000
#: parties and classes that a line lists one by one
MAX_LISTED = 12
TRAIN = "train"


@dataclass(frozen=True, eq=False)
class Counts:
    """``parties``: name -> split -> int64 [C + 1], the examples of each of ``classes``, then those without label.

    ``called``: what parties are (data sets, clients); ``alike``: whether all of them have the same classes to learn,
    as several data sets of images have not.
    """

    called: str
    classes: list[str]
    parties: dict[str, dict[str, np.ndarray]]
    alike: bool = True

    def record(self) -> dict[str, Any]:
        """For ``result.json``: per party and split the examples of each class; unlabelled ones where there are any."""
        rows = self.parties if len(self.parties) <= MAX_RECORDED else {"ALL": self._sums()}
        made = {"classes": self.classes, "parties": {name: _lists(splits) for name, splits in rows.items()}}
        bare = {name: {split: int(n[-1]) for split, n in splits.items() if n[-1]} for name, splits in rows.items()}
        bare = {name: splits for name, splits in bare.items() if splits}
        return made | ({"unlabelled": bare} if bare else {})

    def warnings(self, batch: int | None = None) -> list[str]:
        """A line on parties whose training examples are of one class, and one on those with fewer examples than
        classes or, where it is given, than a batch has."""
        trained = {name: splits[TRAIN] for name, splits in self.parties.items() if splits[TRAIN][:-1].any()}
        alone = {name: counts for name, counts in trained.items() if np.count_nonzero(counts[:-1]) == 1}
        least = max(len(self.classes) if self.alike else 0, batch or 0)
        few = {name: n.sum() for name, n in trained.items() if n.sum() < least and name not in alone}
        lines = []
        if alone:
            name, counts = next(iter(alone.items()))
            of = f"all {counts.sum()} training examples are of class {self.classes[int(counts.argmax())]}"
            lines.append(self._warning(alone, name, of, "have training examples of one class only"))
        if few:
            name = min(few, key=few.__getitem__)
            than = f"the {len(self.classes)} classes" if few[name] < len(self.classes) else f"a batch of {batch}"
            of = f"{few[name]} training examples are fewer than {than}"
            lines.append(self._warning(few, name, of, f"have fewer than {least} training examples"))
        return lines

    def _warning(self, found: dict[str, Any], name: str, one: str, many: str) -> str:
        if len(found) == 1:
            return f"warning: {name}: {one}"
        return f"warning: {len(found)} of {len(self.parties)} {self.called} {many}; {name}: {one}"

    def lines(self) -> list[str]:
        """For the terminal: a line per party and split, or one per split on all of them where they are many."""
        if len(self.parties) > MAX_LISTED:
            return [self._spread(split) for split in next(iter(self.parties.values()))]
        return [
            f"{name} {split} {counts.sum()}: {self._listed(counts)}"
            for name, splits in self.parties.items()
            for split, counts in splits.items()
            if counts.any()
        ]

    def _listed(self, counts: np.ndarray) -> str:
        labels = counts[:-1]
        there = np.flatnonzero(labels)
        if not len(there):
            return "unlabelled"
        if len(there) > MAX_LISTED:
            text = f"{len(there)} of {len(labels)} classes, {labels[there].min()} to {labels.max()} each"
        else:
            text = ", ".join(f"{self.classes[k]}={labels[k]}" for k in there)
        return text + (f", unlabelled={counts[-1]}" if counts[-1] else "")

    def _spread(self, split: str) -> str:
        rows = [splits[split] for splits in self.parties.values()]
        sizes, kinds = [int(row.sum()) for row in rows], [int(np.count_nonzero(row[:-1])) for row in rows]
        return (
            f"{len(rows)} {self.called}, {split}: {min(sizes)} to {max(sizes)} examples each "
            f"(median {statistics.median(sizes):g}) of {min(kinds)} to {max(kinds)} classes"
        )

    def _sums(self) -> dict[str, np.ndarray]:
        splits = next(iter(self.parties.values()))
        return {split: np.sum([own[split] for own in self.parties.values()], axis=0) for split in splits}


def of_texts(task: TextTask) -> Counts:
    """Per data set and split; a transfer set's examples have no labels."""
    parties = {
        name: {split: _count(part.labels, len(task.labels.names)) for split, part in data.splits.items()}
        for name, data in task.datasets.items()
    }
    return Counts("data sets", task.labels.names, parties)


def of_images(task: ImageTask, partition: Partition, alike: bool = True) -> Counts:
    """Per client (or, not ``alike``, per data set) and part (train, test)."""
    count = functools.partial(_count, classes=len(task.classes))
    parties = {
        name: {TRAIN: count(task.train.labels[train]), "test": count(task.test.labels[test])}
        for name, train, test in zip(partition.names, partition.train, partition.test, strict=True)
    }
    return Counts("clients" if alike else "data sets", task.classes, parties, alike)


def of_all_images(task: ImageTask) -> Counts:
    """Of a run that deals the images to nobody."""
    everything = [np.arange(len(part)) for part in (task.train, task.test)]
    return of_images(task, Partition(["all images"], *([rows] for rows in everything)))


def _count(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.bincount(np.where(labels == UNLABELLED, classes, labels), minlength=classes + 1)


def _lists(splits: dict[str, np.ndarray]) -> dict[str, list[int]]:
    return {split: counts[:-1].tolist() for split, counts in splits.items()}
