"""Every figure by name. Each reads run folders, writes one PNG, and returns the numbers in it as lines of text."""

from __future__ import annotations

from collections.abc import Callable

from knot_runner.report.figure_bias import bias, probe
from knot_runner.report.figure_coreset import coreset_accuracy, coreset_images
from knot_runner.report.figure_course import distance_course
from knot_runner.report.figure_distance import moving_measure
from knot_runner.report.figure_labels import expected_label
from knot_runner.report.figure_matrix import distance_matrix
from knot_runner.report.figure_rounds import aggregation, curves
from knot_runner.report.figure_runtime import distance_runtime
from knot_runner.report.figure_simplex import confidence
from knot_runner.report.figure_temperature import boundary, gradients, softmax
from knot_runner.report.figure_vectors import vectors

#: Name -> function(jobs, path, notes=(), command="") -> lines.
FIGURES: dict[str, Callable[..., list[str]]] = {
    "expected_label": expected_label,
    "confidence": confidence,
    "tsne": vectors,
    "support": vectors,
    "epsilon": vectors,
    "bias": bias,
    "probe": probe,
    "curves": curves,
    "aggregation": aggregation,
    "gradients": gradients,
    "boundary": boundary,
    "softmax": softmax,
    "moving_measure": moving_measure,
    "distance_runtime": distance_runtime,
    "distance_matrix": distance_matrix,
    "distance_course": distance_course,
    "coreset_images": coreset_images,
    "coreset_accuracy": coreset_accuracy,
}
