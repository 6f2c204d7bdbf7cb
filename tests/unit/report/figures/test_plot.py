"""Figures of any runs: their numbers by hand, texts that do not overlap, and refusals that name what there is."""

import itertools
import json

import numpy as np
import pytest
import scipy.stats
from matplotlib import colormaps
from matplotlib.text import Text
from safetensors.numpy import save_file

import knot_runner as kr
from knot_runner.cli.main import main
from knot_runner.cli.parsers import run_verb
from knot_runner.report.figures.output import FigureOutput, figure_output
from knot_runner.report.figures.plot import PlotRequest, draw_runs
from knot_runner.report.figures.style import figure_settings, save
from knot_runner.report.frame import read_runs
from knot_runner.report.tables.footnotes import one_class
from knot_runner.results import ONE_CLASS
from tests.golden.messages import refuses
from tests.unit.report.compared import ask, failed, made, text
from tests.unit.report.made_runs import csv_rows, seal

TEMPERATURES, RATES, SEEDS = (4, 1, 0.05), (0.01, 0.1), (0, 1, 2)
#: The panels are laid out, but no picture is written.
NUMBERS_ALONE = FigureOutput(())
TRUTH, PREDICTED = np.repeat([0, 1], [6, 4]), np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 0])
FIGURES = {
    "curves": {"col": "training.lr"},
    "bytes": {"x": "bytes", "row": "training.lr"},
    "changes": {"y": "participants_change", "smooth": 3, "col": "method.temperature"},
    "bars": {"x": "method.temperature", "y": "client_accuracy.weighted"},
    "names": {"x": "run_id", "col": "training.lr"},
    "lines": {"x": "method.temperature", "mark": "curve"},
    "scatter": {"x": "f1"},
    "boxes": {"x": "training.lr", "y": "clients"},
    "heat map": {"x": "method.temperature", "by": "training.lr", "mark": "heatmap"},
    "confusion": {"y": "confusion", "by": "method.temperature"},
}


def accuracy(temperature, rate, seed, number=3):
    """Accuracy of a made run after its round ``number``."""
    return 0.2 + 0.1 * TEMPERATURES.index(temperature) + rate + 0.02 * seed + 0.05 * number


def add_records(folder, accuracies):
    """Write a row for each of ``accuracies``, and predictions, 70% of which are right."""
    rows = [
        {
            "round": i, "accuracy": value, "bytes_down": 3e6, "bytes_up": 1e6, "seconds": 0.5, "participants": [2, 0],
            "after": [value + 0.3, None], "clients": [value - 0.4 + 0.1 * i, value, value + 0.1],
        }
        for i, value in enumerate(accuracies, 1)
    ]  # fmt: skip
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shares = np.eye(2, dtype=np.float32)[PREDICTED]
    arrays = {"test.probabilities": shares, "test.labels": TRUTH, "before/test.probabilities": 1 - shares}
    save_file(arrays, folder / "predictions.safetensors")
    seal(folder)


BY_RATE = [[accuracy(t, r, s) for t in TEMPERATURES for s in SEEDS] for r in RATES]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for temperature, rate, seed in itertools.product(TEMPERATURES, RATES, SEEDS):
        values = [accuracy(temperature, rate, seed, number) for number in (1, 2, 3)]
        add_records(made(root, values[-1], method__temperature=temperature, training__lr=rate, seed=seed), values)
    return root


@pytest.fixture(scope="module")
def runs(out):
    return read_runs(out)


def drawn(runs, path, **asked):
    """The axes, and the rows of the CSV as numbers where they are."""
    with figure_output(NUMBERS_ALONE), figure_settings():
        drawing, axes = draw_runs(runs, PlotRequest(**asked))
        save(drawing, path / "figure.png")
    rows = csv_rows(path / "figure.png")
    return axes, [[float(row[key]) for key in ("value", "low", "high", "n")] for row in rows], drawing


def estimate(values):
    """Mean, 95% t interval and number of ``values``."""
    ends = scipy.stats.t.interval(0.95, len(values) - 1, np.mean(values), scipy.stats.sem(values))
    return [np.mean(values), *ends, len(values)]


def test_curves_are_means_and_intervals_over_seeds(out):
    axes = kr.runs("training.lr=0.1", out=out).plot(by="method.temperature")
    assert [line.get_label() for line in axes.lines] == ["temperature=0.05", "temperature=1", "temperature=4"]
    expected = [estimate([100 * accuracy(1, 0.1, seed, number) for seed in SEEDS]) for number in (1, 2, 3)]
    assert axes.lines[1].get_xdata().tolist() == [1, 2, 3]
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [one[0] for one in expected])
    band = axes.collections[1].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((expected[0][1], expected[2][2]))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("rounds trained", "accuracy (%)")


def test_labels_hold_only_what_differs(out):
    for filters, asked, titles, names in (
        ("", {"col": "training.lr"}, ["lr=0.01", "lr=0.1"], ["temperature=0.05", "temperature=1", "temperature=4"]),
        ("training.lr=0.1 method.temperature=1,4", {}, [""], ["temperature=1", "temperature=4"]),
        ("method.temperature=1", {"x": "training.lr"}, [""], []),
    ):
        axes = np.atleast_1d(kr.runs(filters, out=out).plot(**asked))
        assert [one.get_title() for one in axes] == titles
        assert [text.get_text() for one in axes[0].figure.legends for text in one.get_texts()] == names
    axes = kr.runs("", out=out).plot(x="training.lr")
    assert len({bar.get_x() for bar in axes.patches}) == len(axes.patches) == 6


def test_costs_are_summed_and_changes_compare_with_the_last_models(runs, tmp_path):
    (axes,), _, _ = drawn(runs, tmp_path, x="bytes", by="")
    assert axes.lines[0].get_xdata().tolist() == [4, 8, 12] and "(MB)" in axes.get_xlabel()
    (axes,), numbers, _ = drawn(runs, tmp_path, y="participants_change", by="")
    np.testing.assert_allclose([one[0] for one in numbers], -20)  # client 2 of .1 more than the mean, trained .3 more
    (axes,), numbers, _ = drawn(runs, tmp_path, y="others_change", by="")
    np.testing.assert_allclose([one[0] for one in numbers], 5)  # client 1, from the second round on
    assert len(numbers) == 2


@pytest.mark.parametrize(("asked", "values"), [
    ({"x": "training.lr"}, BY_RATE),
    ({"x": "training.lr", "mark": "heatmap"}, BY_RATE),
    ({"x": "method.temperature", "mark": "curve"},
     [[accuracy(t, r, s) for r in RATES for s in SEEDS] for t in sorted(TEMPERATURES)]),
    ({"x": "training.lr", "y": "clients", "mark": "bar"}, BY_RATE),
    ({"x": "f1"}, [[accuracy(t, r, s) for t in TEMPERATURES for r in RATES for s in SEEDS]]),
])  # fmt: skip
def test_marks_show_means_and_intervals_by_hand(runs, tmp_path, asked, values):
    (axes, *_), numbers, drawing = drawn(runs, tmp_path, by="", **asked)
    expected = [estimate([100 * value for value in own]) for own in values]
    np.testing.assert_allclose(numbers, expected)
    if axes.patches:
        np.testing.assert_allclose([bar.get_height() for bar in axes.patches], [one[0] for one in expected])
        ends = axes.containers[-1].errorbar[2][0].get_segments()
        np.testing.assert_allclose([end[:, 1] for end in ends], [one[1:3] for one in expected])
    assert f"{expected[-1][0]:.4g} [{expected[-1][1]:.4g}, {expected[-1][2]:.4g}]" in drawing.lines[-1]


def test_boxes_show_each_client_and_confusion_shares_of_classes(runs, tmp_path):
    (axes,), numbers, _ = drawn(runs, tmp_path, x="training.lr", y="clients", by="")
    clients = [100 * (accuracy(t, 0.1, s) + d) for t in TEMPERATURES for s in SEEDS for d in (-0.1, 0, 0.1)]
    np.testing.assert_allclose(numbers[1], [*np.quantile(clients, [0.5, 0.25, 0.75]), 9])
    assert len(axes.lines[-1].get_ydata()) == 6 * 3 * 3
    (axes,), _, _ = drawn(runs, tmp_path, y="confusion", by="")
    np.testing.assert_allclose(axes.images[0].get_array(), [[400 / 6, 200 / 6], [25, 75]])


@pytest.mark.parametrize(("name", "width"), [*((name, 3.35) for name in FIGURES), ("curves", None), ("names", None)])
def test_texts_do_not_overlap(runs, name, width, tmp_path):
    with figure_output(FigureOutput((), width)), figure_settings():
        drawing, _ = draw_runs(runs, PlotRequest(**FIGURES[name]))
        save(drawing, tmp_path / "figure.png")
        drawing.figure.draw_without_rendering()
        texts = [one for one in drawing.figure.findobj(Text) if one.get_visible() and one.get_text().strip()]
        for axis in (axis for axes in drawing.figure.axes for axis in (axes.xaxis, axes.yaxis)):
            hidden = set(axis.get_major_ticks()) - set(axis._update_ticks())  # outside the axis
            labels = [label for tick in hidden for label in (tick.label1, tick.label2)]
            texts = [one for one in texts if one not in labels]
        boxes = [(one.get_text(), one.get_window_extent().padded(-1)) for one in texts]
    whole = drawing.figure.bbox.padded(2)
    for name, box in boxes:
        assert whole.contains(box.x0, box.y0) and whole.contains(box.x1, box.y1), name
    for (one, box), (other, other_box) in itertools.combinations(boxes, 2):
        assert not box.overlaps(other_box), (one, other)


def test_plot_colors_numbers_by_scale(runs, tmp_path):
    (axes,), _, _ = drawn(runs, tmp_path, by="method.temperature,training.lr")
    looks = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
    assert len(set(looks)) == 6 and len({color for color, _ in looks}) == 3 and len({style for _, style in looks}) == 2
    coldest = colormaps["viridis"](0)
    assert {line.get_label() for line in axes.lines if line.get_color() == coldest} == {
        f"temperature=0.05, lr={rate}" for rate in RATES
    }


def test_smooth_below_1_is_a_share_of_the_rounds(runs, tmp_path):
    _, _, drawing = drawn(runs, tmp_path, smooth=0.8)
    assert "Running means over 3 rounds." in " ".join(drawing.notes)


def test_heat_map_shows_values_as_typed(tmp_path):
    for method, seed in itertools.product(("coreset_knn", "fedavg"), SEEDS):
        made(tmp_path, 0.5, method__name=method, seed=seed)
    _, (axes,) = draw_runs(read_runs(tmp_path), PlotRequest(x="method.name", mark="heatmap"))
    assert [text.get_text() for text in axes.get_xticklabels()] == ["coreset_knn", "fedavg"]


def test_runs_that_are_not_drawn_are_counted(tmp_path):
    add_records(made(tmp_path, 0.5, seed=0), [0.4, 0.5])
    add_records(made(tmp_path, 0.5, seed=3), [0.4, 0.5, 0.6])
    made(tmp_path, 0.6, seed=1)
    failed(tmp_path, seed=2)
    drawing, (axes,) = draw_runs(read_runs(tmp_path), PlotRequest())
    assert "Only the 2 of 4 finished runs with these values are drawn." in drawing.notes
    assert axes.lines[0].get_xdata().tolist() == [1, 2]  # the rounds that both have


@pytest.mark.parametrize("words", [
    "--y=acuracy", "--x=roun", "--x=clock", "--x=temperature", "--y=f1", "--x=seed --y=acuracy", "--y=method",
    "--by=method.temp", "--x=task --mark=scatter", "--mark=pie", "--out=a.gif", "--out=no/a.png", "sed=0",
    "federated/fedprox --x=round", "--col=run_id", "--x=training.lr --by=run_id",
])  # fmt: skip
def test_plot_refuses_unknown_names(out, words):
    with refuses():
        run_verb("plot", [*words.split(), *([] if "fedprox" in words else [f"paths.output_dir={out}"])])


def test_confusion_prints_and_draws_one_run(out, tmp_path, capsys):
    run, file = next(out.glob("*/*/*")), tmp_path / "c.svg"
    for words in ([str(run)], [run.name, f"paths.output_dir={out}"], [f"run_id={run.name}", f"paths.output_dir={out}"]):
        assert main(["confusion", *words, f"--out={file}"]) == 0
        shown = capsys.readouterr().out
        assert "1 (2)" in shown and "0 (4)" not in shown and "75%" in shown and "7 of 10 test examples" in shown
        assert file.exists() and shown.rstrip().endswith(str(file))
        file.unlink()
    for words in ([f"paths.output_dir={out}", "seed=0"], [str(made(tmp_path, 0.5))]):
        with refuses():
            run_verb("confusion", words)


@pytest.mark.parametrize("name", ["a.png", "a.pdf", "a.svg"])
def test_out_is_the_file(out, tmp_path, name, capsys):
    assert main(["plot", "seed=0,1", f"paths.output_dir={out}", f"--out={tmp_path / name}"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "a.csv"])
    assert str(tmp_path / name) in capsys.readouterr().out


def test_runs_that_predict_one_class_are_noted(tmp_path):
    made(tmp_path, 0.5, {"notes": [f"{ONE_CLASS} 1"]}, seed=0)
    runs = read_runs(tmp_path).runs
    line = f"These runs predict only one class: mnist fedavg_chill {runs['run_id'].item()}."
    assert line in text(ask(tmp_path)) and [*one_class(runs["run"])] == [line]
