"""Figures for print: vector formats, the width of a column, nothing cut off, no caption."""

import re

import pytest

from knot_runner.cli.main import main
from knot_runner.report.figures import output
from knot_runner.report.figures import style as figure_style
from knot_runner.report.figures.output import FigureOutput, figure_output
from knot_runner.report.figures.registry import FIGURES
from tests.golden.messages import refused

SINGLE = FigureOutput(("png",), 3.35)


def text_runs(factory, task):
    made = [factory.made(method, task=task) for method in ("entropy_e", "sinkhorn_e")]
    return [factory.probes(factory.vectors(factory.predictions(job, rows=60), rows=40)) for job in made]


@pytest.fixture
def jobs(factory):
    return text_runs(factory, "erc")


@pytest.mark.parametrize(("name", "task"), [("confidence", "nli"), ("bias", "erc")])
def test_single_column_figure_fits(factory, monkeypatch, tmp_path, name, task):
    jobs = text_runs(factory, task)
    drawn, real = [], output.write_figure
    monkeypatch.setattr(figure_style, "write_figure", lambda figure, *more: drawn.append(figure) or real(figure, *more))
    with figure_output(SINGLE):
        FIGURES[name](jobs, tmp_path / "figure.png")
    (figure,) = drawn
    whole = figure.bbox.padded(1)
    panels = [axes.get_window_extent() for axes in figure.axes]
    texts = [part for axes in figure.axes for part in (axes.title, axes.xaxis.label, axes.yaxis.label)]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    legends = [legend.get_window_extent() for legend in figure.legends]
    assert figure.get_figwidth() == pytest.approx(3.35) and boxes
    assert figure._suptitle is None and figure._supxlabel is None
    for box in boxes:
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1, (box, whole)
    for box in legends:
        assert box.x0 >= -1 and box.x1 <= whole.x1 and not any(box.overlaps(panel) for panel in panels)
    assert all(panel.width > 0.3 * figure.dpi and panel.height > 0.3 * figure.dpi for panel in panels[:2])


@pytest.mark.parametrize("legend", ["FedWaD-a, S=200", None])
def test_title_is_beside_the_legend(legend, tmp_path):
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


def test_vector_files_keep_text_without_date(jobs, tmp_path):
    for name, formats in (("one", ("svg", "pdf", "png")), ("two", ("png", "pdf"))):
        with figure_output(FigureOutput(formats)):
            FIGURES["probe"](jobs, tmp_path / f"{name}.png")
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    ends = {name: {file.partition(".")[2] for file in files if file.startswith(name)} for name in ("one", "two")}
    assert ends == {"one": {"csv", "pdf", "png", "svg"}, "two": {"csv", "pdf", "png"}}
    assert files["one.png"] == files["two.png"] and files["one.pdf"] == files["two.pdf"]
    assert b">mean total variation (1 = disjoint)</text>" in files["one.svg"] and b"<dc:date>" not in files["one.svg"]
    assert b"/TrueType" in files["one.pdf"] or b"/CIDFontType2" in files["one.pdf"]
    assert b"/Type3" not in files["one.pdf"] and b"CreationDate" not in files["one.pdf"]


@pytest.mark.parametrize(("count", "width", "height", "total", "inches"), [
    (3, 4.0, 2.0, 3.35, [3.35, 3 * 1.675]), (3, 3.0, 3.0, 7.0, [7.0, 7 / 3]), (1, 5.0, 3.0, 2.4, [2.4, 1.6]),
])  # fmt: skip
def test_panels_keep_shape_and_stack_when_narrow(count, width, height, total, inches):
    with figure_output(FigureOutput(width=total)):
        figure, _ = figure_style.panels(count, width, height, across=4)
    assert figure.get_size_inches().tolist() == pytest.approx(inches)


def test_plot_writes_requested_formats_and_width(tmp_path, capsys):
    words = ["partition", "task=femnist", "task.source=embedded", "partition=dirichlet", "partition.num_clients=3"]
    words += ["task.max_examples=300", "partition.floor=0", f"paths.output_dir={tmp_path}"]
    assert main(["plot", *words, "--formats=pdf,svg", "--width=85"]) == 0
    (svg,) = tmp_path.glob("figures/*.svg")
    (pdf,) = tmp_path.glob("figures/*.pdf")
    assert not list(tmp_path.glob("figures/*.png"))
    assert capsys.readouterr().out.splitlines()[-2:] == [str(pdf), str(svg)]
    across = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', svg.read_text())[1])
    assert across == pytest.approx(85 / 25.4 * 72, abs=0.01)
    assert "partition, seed" not in svg.read_text()


@pytest.mark.parametrize("flag", [
    "--formats=pgn", "--formats=gif", "--formats=,", "--formats", "--width=wide", "--width=5000", "--width=nan",
    "--format=pdf",
])  # fmt: skip
def test_invalid_option_of_plot_is_refused(flag, capsys):
    refused(capsys, "plot", "federated/fedprox", flag)
