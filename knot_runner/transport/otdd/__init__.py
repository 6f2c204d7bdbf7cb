"""Distances between sets of labeled samples, federated and exact (OTDD, Alvarez-Melis and Fusi 2020; FedWaD 4, D.3).

``distance_matrix`` is what runs use; ``pair_distance`` and ``exact_otdd`` are one pair of it, step by step.
"""

from knot_runner.transport.otdd.first_iteration import draw_times, first_points
from knot_runner.transport.otdd.matrix import distance_matrix
from knot_runner.transport.otdd.pair import exact_otdd, pair_distance
from knot_runner.transport.otdd.statistics import ClassTable, LabeledSamples, augmented_points, class_table

__all__ = [
    "ClassTable",
    "LabeledSamples",
    "augmented_points",
    "class_table",
    "distance_matrix",
    "draw_times",
    "exact_otdd",
    "first_points",
    "pair_distance",
]
