"""Measures on two halves of the test items, so that a setting is selected on one and reported on the other."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from knot_runner.metrics import METRICS, measure_all
from knot_runner.report.compare.records import RunRecord
from knot_runner.report.run_folders import PREDICTIONS, predictions
from knot_runner.util.errors import UserError

#: Predictions are kept in float32, so a run's measures are met but for ties.
TOLERANCE = 2e-3
StoredPredictions = dict[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class HalfMeasures:
    """Dotted key (as in the result) -> value, on each half; ``items``: the same for runs tested on the same items in
    the same order, as far as labels tell."""

    selecting: dict[str, float]
    reporting: dict[str, float]
    items: int


def halve(record: RunRecord) -> HalfMeasures:
    """A finished run's F1, accuracy and semantic distance on the two halves, from its stored predictions.

    Each data set is halved by a draw that depends on its name and size alone, so it is the same for all runs. Raises
    :class:`UserError` naming the file when predictions are absent, damaged, or do not give the result's measures.
    """
    found = predictions(record.run)
    kept = {name: pair for name, pair in found.items() if not name.startswith("before/")}
    coordinates = _coordinates(record)
    whole = _flat(measure_all(kept, coordinates))
    measured = {key for key in whole if record.numbers.get(key) is not None}
    off = [key for key in measured if abs(whole[key] - float(record.numbers[key] or 0)) > TOLERANCE]
    if off or not measured:
        path = record.folder / PREDICTIONS
        raise UserError(f"{path}: does not give the result's {min(off, default='measures')}; --select=half needs it")
    parts = [_flat(measure_all(_part(kept, side), coordinates)) for side in (0, 1)]
    first, second = ({key: value for key, value in part.items() if key in measured} for part in parts)
    items = 0
    for name in sorted(kept):
        items = zlib.crc32(kept[name][1].tobytes(), zlib.crc32(name.encode(), items))
    return HalfMeasures(first, second, items)


def _coordinates(record: RunRecord) -> np.ndarray:
    """Of the labels; where they have none, zeros [C, 1], with which no distance is a measure of the result."""
    labels = record.run.result["labels"]
    if labels.get("coordinates") is None:
        return np.zeros((len(labels["names"]), 1))
    return np.asarray(labels["coordinates"], dtype=np.float64)


def _part(found: StoredPredictions, side: int) -> StoredPredictions:
    """Half of the rows of each data set: the first of two (``side`` 0 or 1) has one less where the number is odd."""
    part = {}
    for name, (probabilities, labels) in found.items():
        order = np.random.default_rng([zlib.crc32(name.encode()), len(labels)]).permutation(len(labels))
        middle = len(order) // 2
        rows = np.sort(order[middle:] if side else order[:middle])
        part[name] = probabilities[rows], labels[rows]
    return part


def _flat(table: dict[str, dict[str, float]]) -> dict[str, float]:
    """Keys as in a result. One data set under the name ``test``, as federated runs have it, is ALL alone."""
    return {
        f"metrics.{name}.{data}": value for name, row in table.items() if name in METRICS for data, value in row.items()
    }
