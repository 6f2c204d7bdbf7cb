"""What each client computes once for all its distances, and the inner products of everybody's labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from knot_runner.config.settings.methods.transport import OtddSettings
from knot_runner.transport.otdd.draws import first_points
from knot_runner.transport.otdd.means import centred
from knot_runner.transport.otdd.plan_changes import SparsePlan, sparse_plan
from knot_runner.transport.otdd.small_support import best_plan
from knot_runner.transport.otdd.statistics import ClassTable, LabelledSamples


@dataclass(frozen=True, eq=False)
class FirstIteration:
    """What one client finds in iteration 1, which begins from the same points for all pairs, whatever t is.

    ``spread``: mean squared distance of its augmented points from their mean; ``means`` [S, d + k]: of each first
    point, the mean features and the class masses of where its mass goes; ``plan``: of that mass.
    """

    spread: float
    means: np.ndarray
    plan: SparsePlan


def augmented_rows(samples: LabelledSamples, dtype: np.dtype, centre: np.ndarray | float = 0.0) -> np.ndarray:
    """Rows [n, d + k]: features less ``centre`` [d], then 1 at the sample's class, so that label parts pass through the
    same products. The difference is taken in float64, before the cast to ``dtype``."""
    labels, of = np.unique(samples.labels, return_inverse=True)
    rows = np.zeros((samples.size, samples.points.shape[1] + len(labels)), dtype)
    rows[:, : samples.points.shape[1]] = samples.points.astype(np.float64) - centre
    rows[np.arange(samples.size), samples.points.shape[1] + of] = 1
    return rows


def first_iteration(rows: np.ndarray, table: ClassTable, options: OtddSettings, seed: int) -> FirstIteration:
    """Of the client with these ``rows`` [n, d + k] and class statistics, both about its own mean (means.py)."""
    features = rows.shape[1] - len(table.labels)
    start = centred(first_points(features, options, seed))
    weights = np.concatenate([start[:, :features], start[:, features:] @ table.vectors.T], 1).astype(rows.dtype)
    scores = weights @ rows.T
    plan = np.empty_like(scores)
    known = sparse_plan(plan, best_plan(scores, None, plan))
    norms = np.einsum("ij,ij->", rows[:, :features], rows[:, :features], dtype=np.float64) / len(rows)
    spread = norms + table.mass @ np.einsum("ij,ij->i", table.vectors, table.vectors)
    return FirstIteration(float(spread), plan @ rows * (len(start) / len(rows)), known)


@dataclass(frozen=True, eq=False)
class LabelProducts:
    """Inner products of the label parts [m_y, vec(B_y)] of all there is, so that none is needed at full length.

    ``gram`` [R, R] over the S first points of the interpolating measure, then every set's classes, then one row of
    zeros; set c's classes begin at ``begins[c]`` and are ``counts[c]``.
    """

    gram: np.ndarray
    begins: np.ndarray
    counts: np.ndarray

    def of_sets(self, sets: np.ndarray) -> LabelProducts:
        """Only those of ``sets``, ascending, which keep their numbers."""
        support = int(self.begins[0])
        rows = [np.arange(support), *(self.begins[c] + np.arange(self.counts[c]) for c in sets), [len(self.gram) - 1]]
        kept = np.concatenate(rows)
        begins = np.zeros_like(self.begins)
        begins[sets] = support + np.cumsum(self.counts[sets]) - self.counts[sets]
        return replace(self, gram=self.gram[np.ix_(kept, kept)], begins=begins)

    def slots(self, sets: np.ndarray, classes: int) -> np.ndarray:
        """Rows of ``gram`` of each set's classes [len(sets), classes], the row of zeros where it has no more."""
        places = np.arange(classes)
        rows = self.begins[sets][:, None] + places
        return np.where(places < self.counts[sets][:, None], rows, len(self.gram) - 1)


def label_products(tables: Sequence[ClassTable], start: np.ndarray) -> LabelProducts:
    """Of all sets with these class statistics; ``start`` [S, L]: the label parts of the first points."""
    stacked = np.concatenate([start, *(table.vectors for table in tables)])
    counts = np.array([len(table.labels) for table in tables])
    gram = np.zeros((len(stacked) + 1, len(stacked) + 1))
    gram[:-1, :-1] = stacked @ stacked.T
    return LabelProducts(gram, len(start) + np.cumsum(counts) - counts, counts)
