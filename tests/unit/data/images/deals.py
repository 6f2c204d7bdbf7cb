"""Small tasks to deal out, and how to count what was dealt."""

from dataclasses import replace
from typing import Any

import numpy as np

from knot_runner.config.settings.partition import Natural
from knot_runner.data.images import Images, ImageTask, Partition


def images(labels: Any, users: Any = None, files: Any = None) -> Images:
    labels = np.asarray(labels, np.int64)
    return Images(np.zeros((len(labels), 1, 1, 1), np.uint8), labels, users, files)


def task(train: Images, test: Images, classes: int = 10, **names: Any) -> ImageTask:
    return ImageTask("t", [f"c{k}" for k in range(classes)], None, train, test, [0.0], [1.0], "local", **names)


def balanced(each: int, test: int, classes: int = 10) -> ImageTask:
    return task(images(np.repeat(np.arange(classes), each)), images(np.repeat(np.arange(classes), test)), classes)


def counts(part: list[np.ndarray], labels: np.ndarray, classes: int = 10) -> np.ndarray:
    return np.stack([np.bincount(labels[rows], minlength=classes) for rows in part])


def natural(**changes: Any) -> Natural:
    return replace(Natural("natural", "user", 1, None, 0.5, 4), **changes)


def same(one: Partition, other: Partition) -> bool:
    rows = zip([*one.train, *one.test], [*other.train, *other.test], strict=True)
    return one.names == other.names and all(np.array_equal(a, b) for a, b in rows)
