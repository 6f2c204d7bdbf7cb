"""Measures on predicted probabilities: semantic distance, macro-F1, accuracy, and how data sets are joined to ALL."""

from __future__ import annotations

import numpy as np

#: Measure -> whether larger is better.
METRICS = {"f1": True, "accuracy": True, "sd": False}


def confusion(predicted: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Counts [C, C], true class by predicted class."""
    return np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def accuracy(table: np.ndarray) -> float:
    """Share on the diagonal of a confusion table; 0 for an empty one."""
    return float(np.trace(table) / max(table.sum(), 1))


def macro_f1(table: np.ndarray) -> float:
    """Unweighted mean of F1 over the classes that occur as truth or prediction (as scikit-learn's ``macro``)."""
    hits = np.diag(table).astype(float)
    either = table.sum(0) + table.sum(1)
    present = either > 0
    return float(np.mean(2 * hits[present] / either[present])) if present.any() else 0.0


def semantic_distance(probabilities: np.ndarray, labels: np.ndarray, coordinates: np.ndarray) -> float:
    """Label-wise mean of || E[p] - coordinate of the truth ||_2, over the classes present (KNOT section 1).

    ``probabilities`` [N, C], ``labels`` [N], ``coordinates`` [C, d]; in units of the coordinates, 0 is best.
    """
    distance = np.linalg.norm(probabilities @ coordinates - coordinates[labels], axis=1)
    return float(np.mean([distance[labels == label].mean() for label in np.unique(labels)]))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities [N, C] of ``logits`` [N, C]."""
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def mean_cross_entropy(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """Mean of -log softmax(z / T)[truth], in nats (FLex&Chill divides by T when it evaluates, too)."""
    cooled = logits / temperature
    top = cooled.max(1)
    total = np.log(np.exp(cooled - top[:, None]).sum(1)) + top
    return float(np.mean(total - cooled[np.arange(len(labels)), labels]))


#: What the rounds in a federated result count, as it says; those of earlier versions say nothing, and count from 0.
ROUNDS_COUNT = "rounds trained"


def rounds_to_target(accuracies: list[tuple[int, float]], target: float | None) -> int | None:
    """Rounds trained until one of (round from 0, accuracy) is ``target`` or more: its round + 1; None if none is."""
    reached = [round + 1 for round, value in accuracies if target is not None and value >= target]
    return min(reached, default=None)


def measure_data_set(probabilities: np.ndarray, labels: np.ndarray, coordinates: np.ndarray) -> dict[str, float]:
    """All measures of one data set."""
    table = confusion(probabilities.argmax(1), labels, len(coordinates))
    distance = semantic_distance(probabilities.astype(np.float64), labels, coordinates)
    return {"f1": macro_f1(table), "accuracy": accuracy(table), "sd": distance}


def measure_all(
    predictions: dict[str, tuple[np.ndarray, np.ndarray]], coordinates: np.ndarray
) -> dict[str, dict[str, float]]:
    """Measure -> data set or ``ALL`` -> value.

    ALL is the pooled value for F1 and accuracy and the unweighted mean over data sets for SD, as deduced from the
    published tables (knot.md 1.7: the SD mean fits 24 of 24 rows, the pooled accuracy 8 of 8).
    """
    each = {name: measure_data_set(*prediction, coordinates) for name, prediction in predictions.items()}
    pooled = measure_data_set(
        np.concatenate([p for p, _ in predictions.values()]),
        np.concatenate([y for _, y in predictions.values()]),
        coordinates,
    )
    table = {name: {data: values[name] for data, values in each.items()} for name in METRICS}
    for name in METRICS:
        joined = np.mean(list(table[name].values())) if name == "sd" else pooled[name]
        table[name]["ALL"] = float(joined)
    return table
