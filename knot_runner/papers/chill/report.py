"""FLex&Chill's figures and tables, by their names in presets."""

from __future__ import annotations

from knot_runner.papers.chill.probe_figures import boundary_figure, gradient_figure, softmax_figure
from knot_runner.papers.chill.round_figures import aggregation, curves
from knot_runner.papers.chill.tables import CHILLING_COLUMNS, temperatures_table, trace
from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.tables.build import TABLE_KINDS
from knot_runner.report.tables.kind import TableKind

FIGURES.update(
    curves=curves,
    aggregation=aggregation,
    gradients=gradient_figure,
    boundary=boundary_figure,
    softmax=softmax_figure,
)
TABLE_KINDS["temperatures"] = TableKind(temperatures_table, CHILLING_COLUMNS.keys, printed="temperatures")
TABLE_KINDS["trace"] = TableKind(trace, printed="trace", needs="chill/mnist_notebook")
