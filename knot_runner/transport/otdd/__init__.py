"""Optimal transport dataset distance (OTDD, Alvarez-Melis and Fusi 2020), exact or by FedWaD.

The FedWaD paper computes the OTDD in section 4 and appendix D.3. Here, ``computed_distances`` computes the distances
between several sets of labeled samples, for all pairs of sets.
"""

from knot_runner.transport.otdd.first_iteration import draw_times, first_points
from knot_runner.transport.otdd.matrix import computed_distances
from knot_runner.transport.otdd.statistics import ClassTable, LabeledSamples, class_table

__all__ = ["ClassTable", "LabeledSamples", "class_table", "computed_distances", "draw_times", "first_points"]
