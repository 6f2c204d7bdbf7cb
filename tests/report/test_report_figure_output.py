"""Figures for print: vector formats, the width of a column, nothing cut off, no caption; and the flags that ask."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from knot_runner.cli.main import main
from knot_runner.report.figures import output
from knot_runner.report.figures.output import FigureOutput, figure_output, fitted_panels
from tests.golden.messages import refused


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every figure that is saved."""
    kept: list[Any] = []
    real = output.image_bytes
    monkeypatch.setattr(output, "image_bytes", lambda figure, form: kept.append(figure) or real(figure, form))
    return kept


@pytest.mark.parametrize(("panels", "inches"), [(4, 8.8), (5, 9.0), (6, 9.6)])
def test_panels_shrink_to_a_page_and_what_is_higher_is_said(
    panels: int, inches: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    figure = Figure(figsize=(3.35, 2.2 * panels), layout="constrained")
    figure.subplots(panels)
    with figure_output(FigureOutput(("svg",), 3.35, captioned=False)), caplog.at_level("WARNING", "knot_runner"):
        output.write_figure(figure, "title", ["note"], tmp_path / "drawn.png")
    said = "drawn: 10 inches high, more than a page; a larger --width has more panels in a row"
    assert caplog.messages == ([said] if panels == 6 else [])
    assert figure.get_figheight() == pytest.approx(inches)


def test_panels_keep_their_shape_and_go_below_each_other() -> None:
    assert fitted_panels(3, 4.0, 2.0, 3.35) == (1, 3.35, pytest.approx(1.675))
    assert fitted_panels(4, 3.0, 3.0, 7.0) == (3, pytest.approx(7 / 3), pytest.approx(7 / 3))
    assert fitted_panels(2, 3.0, 1.5, 7.0) == (2, 3.5, 1.75)
    assert fitted_panels(1, 5.0, 4.0, 2.0) == (1, 2.0, pytest.approx(1.6))


@pytest.mark.thorough
def test_plot_writes_what_its_flags_ask_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["partition", "task=femnist", "task.source=embedded", "partition=dirichlet", "partition.clients=3"]
    words += ["task.limit=300", "partition.floor=0", f"paths.out={tmp_path}"]
    assert main(["plot", *words, "--formats=pdf,svg", "--width=85", "--no-caption"]) == 0
    (svg,) = tmp_path.glob("figures/*.svg")
    (pdf,) = tmp_path.glob("figures/*.pdf")
    assert not list(tmp_path.glob("figures/*.png"))
    assert capsys.readouterr().out.splitlines()[-2:] == [str(pdf), str(svg)]
    across = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', svg.read_text())[1])
    assert across == pytest.approx(85 / 25.4 * 72, abs=0.01)
    assert "partition, seed" not in svg.read_text()


@pytest.mark.parametrize("flag", [
    "--formats=pgn", "--formats=gif", "--formats=,", "--formats", "--width=wide", "--width=5000", "--width=nan",
    "--no-caption=1", "--format=pdf",
])  # fmt: skip
def test_flags_that_cannot_be_are_said_in_a_line(flag: str, capsys: pytest.CaptureFixture[str]):
    refused(capsys, "plot", "chill/fig4", flag)
