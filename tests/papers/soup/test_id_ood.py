"""The figure of ID against OOD accuracy."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from knot_runner.report.figures import output
from knot_runner.report.figures import style as figure_style
from knot_runner.report.figures.output import FigureOutput, figure_output
from knot_runner.report.figures.registry import FIGURES


@dataclass
class Result:
    personalization: SimpleNamespace


@pytest.mark.parametrize("width", [None, 3.35])
def test_last_round_star_stays_inside_axes(width, tmp_path):
    """It lies in a corner of the data, where its points would reach over the axis."""
    start = SimpleNamespace(id_accuracy=0.5, ood_accuracy=0.6)
    points = [SimpleNamespace(id_accuracy=0.9, ood_accuracy=0.3, step=1, alpha=1.0)]
    result = Result(SimpleNamespace(start=start, points=points))
    run = SimpleNamespace(task="femnist", method="soup", label="", seed=0, result=result)
    with figure_output(FigureOutput(("png",), width)), figure_style.figure_settings():
        drawing = FIGURES["id_ood"].__wrapped__([run])
        output.write_figure(drawing.figure, drawing.title, drawing.notes, tmp_path / "figure.png")
        (axes,) = drawing.figure.axes
        star = next(line for line in axes.lines if line.get_marker() == "*")
        half = star.get_markersize() / 2 * drawing.figure.dpi / 72
        x, y = axes.transData.transform((60, 50))
        inside = axes.get_window_extent()
    assert inside.x0 <= x - half and x + half <= inside.x1 and inside.y0 <= y - half and y + half <= inside.y1
