"""Figures for print: vector formats, the width of a column, nothing cut off, no caption."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.text import Text

from knot_runner.cli.main import main
from knot_runner.report.figures import output
from knot_runner.report.figures import style as figure_style
from knot_runner.report.figures.output import FigureOutput, figure_output
from knot_runner.report.figures.registry import FIGURES

SINGLE = FigureOutput(("png",), 3.35)


@pytest.fixture
def jobs(factory: Any) -> list[Any]:
    made = [factory.made(method, task="erc") for method in ("entropy_e", "sinkhorn_e")]
    return [factory.probes(factory.vectors(factory.predictions(job, rows=60), rows=40)) for job in made]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every figure that is saved."""
    kept: list[Any] = []
    real = output.write_figure
    monkeypatch.setattr(figure_style, "write_figure", lambda figure, *more: kept.append(figure) or real(figure, *more))
    return kept


@pytest.mark.parametrize("legend", ["T=1", "FedWaD-a, S=200", None])
def test_a_title_stands_beside_the_legend_not_below_it(legend: str | None, tmp_path: Path) -> None:
    title = "The federated distance of two samples: its measure on the way, and its error"
    made, _ = figure_style.panels(2, 3.4, 3.2, across=2)
    if legend:
        figure_style.side_legend(made, {legend: {"color": "black"}})
    output.write_figure(made, title, [], tmp_path / "figure.png")
    shown = made._suptitle
    assert " ".join(shown.get_text().split()) == title and shown.get_text().count("\n") <= 3
    box = shown.get_window_extent()
    assert box.x1 <= made.bbox.width
    assert not any(box.overlaps(one.get_window_extent()) for one in made.legends)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["expected_label", "confidence", "bias"])
def test_at_a_single_column_nothing_is_cut_off(jobs: Any, figures: Any, tmp_path: Path, name: str) -> None:
    with figure_output(SINGLE):
        FIGURES[name](jobs, tmp_path / "figure.png")
    (figure,) = figures
    assert figure.get_figwidth() == pytest.approx(3.35)
    whole = figure.bbox.padded(1)
    shown = [one for one in figure.findobj() if isinstance(one, Text) and one.get_text() and one.get_visible()]
    assert len(shown) > 5
    panels = [axes.get_window_extent() for axes in figure.axes]
    assert figure._suptitle is None and figure._supxlabel is None
    for text in [part for axes in figure.axes for part in (axes.title, axes.xaxis.label, axes.yaxis.label)]:
        box = text.get_window_extent()
        inside = whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
        assert inside or not text.get_text(), (box, whole)
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert box.x0 >= -1 and box.x1 <= whole.x1 and not any(box.overlaps(panel) for panel in panels)
    assert all(panel.width > 0.3 * figure.dpi and panel.height > 0.3 * figure.dpi for panel in panels[:2])


@pytest.mark.thorough
def test_vector_files_hold_text_as_text_and_no_date(jobs: Any, tmp_path: Path) -> None:
    FIGURES["probe"](jobs, tmp_path / "plain.png")
    with figure_output(FigureOutput(("svg", "pdf", "png"))):
        FIGURES["probe"](jobs, tmp_path / "one.png")
    with figure_output(FigureOutput(("pdf", "svg"))):
        FIGURES["probe"](jobs, tmp_path / "two.png")
    assert not (tmp_path / "two.png").exists()
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "plain.png").read_bytes()
    assert sorted(path.suffix for path in tmp_path.glob("one.*")) == [".csv", ".pdf", ".png", ".svg"]
    for form in ("pdf", "svg"):
        assert (tmp_path / f"one.{form}").read_bytes() == (tmp_path / f"two.{form}").read_bytes()
    svg, pdf = (tmp_path / "one.svg").read_text(), (tmp_path / "one.pdf").read_bytes()
    assert ">mean total variation (1 = disjoint)</text>" in svg and "<dc:date>" not in svg
    assert b"/TrueType" in pdf or b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf and b"CreationDate" not in pdf


def test_panels_keep_their_shape_and_go_below_each_other() -> None:
    def inches(count: int, width: float, height: float, total: float) -> list[float]:
        with figure_output(FigureOutput(width=total)):
            return figure_style.panels(count, width, height, across=4)[0].get_size_inches().tolist()

    assert inches(3, 4.0, 2.0, 3.35) == pytest.approx([3.35, 3 * 1.675])
    assert inches(3, 3.0, 3.0, 7.0) == pytest.approx([7.0, 7 / 3])
    assert inches(1, 5.0, 3.0, 2.4) == pytest.approx([2.4, 1.6])


@pytest.mark.thorough
def test_plot_writes_what_its_flags_ask_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["partition", "task=femnist", "task.source=embedded", "partition=dirichlet", "partition.clients=3"]
    words += ["task.limit=300", "partition.floor=0", f"paths.out={tmp_path}"]
    assert main(["plot", *words, "--formats=pdf,svg", "--width=85"]) == 0
    (svg,) = tmp_path.glob("figures/*.svg")
    (pdf,) = tmp_path.glob("figures/*.pdf")
    assert not list(tmp_path.glob("figures/*.png"))
    assert capsys.readouterr().out.splitlines()[-2:] == [str(pdf), str(svg)]
    across = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', svg.read_text())[1])
    assert across == pytest.approx(85 / 25.4 * 72, abs=0.01)
    assert "partition, seed" not in svg.read_text()


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--formats=pgn", "--formats=pgn: there is no 'pgn' (did you mean 'png'?)"),
        ("--formats=gif", "--formats=gif: there is no 'gif' (there is: pdf, png, svg)"),
        ("--formats=,", "--formats=,: there is no '' (there is: pdf, png, svg)"),
        ("--formats", "--formats: expected one argument"),
        ("--width=wide", "--width=wide: is single, double or millimetres, as in --width=85"),
        ("--width=5000", "--width=5000: is not from 60 to 420 millimetres"),
        ("--width=nan", "--width=nan: is not from 60 to 420 millimetres"),
        ("--format=pdf", "--format: unknown option (did you mean '--formats'?)"),
    ],
)
def test_flags_that_cannot_be_are_said_in_a_line(flag: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "chill/fig4", flag]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("width", [None, 3.35])
def test_the_star_of_the_last_round_is_whole(width: float | None, tmp_path: Path) -> None:
    """It lies in a corner of the data, where its points would reach over the axis."""
    start, end = {"id_accuracy": 0.5, "ood_accuracy": 0.6}, {"id_accuracy": 0.9, "ood_accuracy": 0.3}
    points = [{**end, "step": 1, "alpha": 1.0}]
    job = SimpleNamespace(task="femnist", method="soup", label="", seed=0)
    run = SimpleNamespace(job=job, result={"personalisation": {"start": start, "points": points}})
    with figure_output(FigureOutput(("png",), width)), figure_style.figure_settings():
        drawing = FIGURES["id_ood"].__wrapped__([run], "")
        output.write_figure(drawing.figure, drawing.title, drawing.notes, tmp_path / "figure.png")
        (axes,) = drawing.figure.axes
        star = next(line for line in axes.lines if line.get_marker() == "*")
        half = star.get_markersize() / 2 * drawing.figure.dpi / 72
        x, y = axes.transData.transform((60, 50))
        inside = axes.get_window_extent()
    assert inside.x0 <= x - half and x + half <= inside.x1 and inside.y0 <= y - half and y + half <= inside.y1
