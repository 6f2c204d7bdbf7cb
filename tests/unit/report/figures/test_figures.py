"""What all figures share: names, numbers as CSV, imports, and what runs without records get."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from knot_runner.report.figures import style as figure_style
from knot_runner.report.figures.marks import limit_to_shares
from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.figures.style import by_name
from knot_runner.report.render.markup import csv_text
from knot_runner.report.run_folders import load_runs
from knot_runner.report.series import estimates
from tests.golden.messages import refuses


@pytest.mark.parametrize("name", FIGURES)
def test_figure_without_runs_names_the_command(factory, tmp_path, name):
    with refuses():
        FIGURES[name]([factory.job()], tmp_path / "figure.png", command="knot-runner experiment=x")
    assert not (tmp_path / "figure.png").exists()


def test_numbers_as_csv_are_escaped_and_rounded():
    row = ["=x", -1.23456789, 3, np.float32(0.5), np.int64(7)]
    assert csv_text(("-a", "b", "c", "d", "e"), [row], digits=3) == "'-a,b,c,d,e\n'=x,-1.23,3,0.5,7\n"


@pytest.mark.parametrize(("runs", "names"), [
    ([("sinkhorn_e", "a.lr=1, b.c.size=2"), ("sinkhorn_e", "a.lr=3, b.c.size=2")], ["lr=1, size=2", "lr=3, size=2"]),
    ([("sinkhorn_e", "a.lr=1"), ("sinkhorn_e", "b.lr=1")], ["a.lr=1", "b.lr=1"]),
    ([("fedavg", ""), ("fedprox", "a.b=1")], ["fedavg", "fedprox b=1"]),
])  # fmt: skip
def test_by_name_shortens_labels_unless_ambiguous(factory, runs, names):
    assert list(by_name(load_runs([factory.made(method, label=label) for method, label in runs]))) == names


def test_report_imports_neither_torch_nor_matplotlib_eagerly():
    code = (
        "import sys; from knot_runner.report import figures, tables;"
        "from knot_runner.report.render import markup, terminal;"
        "print([m for m in ('torch', 'hydra', 'matplotlib', 'sklearn', 'scipy') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


#: Student's t at 97.5% with one degree of freedom: two seeds that differ by d have an interval of mean +- T1 d / 2.
T1 = 12.706204736


def band(runs):
    """The estimates of runs, each a dict from place to value."""
    points = [("a", seed, *point) for seed, run in enumerate(runs) for point in run.items()]
    return estimates(pd.DataFrame(points, columns=["name", "seed", "place", "value"]), ["name"])


def test_band_equals_t_interval_over_common_places():
    both = band([{0: 1.0, 1: 2.0, 2: 6.0}, {1: 4.0, 2: 0.0, 3: 9.0}])
    assert (both.place.tolist(), both.value.tolist(), both.n.tolist()) == ([1, 2], [3.0, 3.0], [2, 2])
    np.testing.assert_allclose([both.low, both.high], [[3 - T1, 3 - 3 * T1], [3 + T1, 3 + 3 * T1]])
    values = [1.0, 2.0, 6.0]
    three, alone = band([{0: value} for value in values]), band([{0: 4.0, 1: 5.0}])
    interval = scipy.stats.t.interval(0.95, 2, np.mean(values), scipy.stats.sem(values))
    assert (three.low[0], three.high[0]) == pytest.approx(interval)
    assert alone.low.tolist() == alone.high.tolist() == alone.value.tolist() == [4.0, 5.0]


def test_axis_of_shares_stops_at_limits():
    made, (axes,) = figure_style.panels(1, 4.0, 3.0)
    figure_style.draw_band(axes, band([{1: 2.0, 2: 99.0}, {1: 60.0, 2: 100.0}]), "black")
    assert axes.get_ylim()[1] > 105
    limit_to_shares(axes, 100.0)
    assert axes.get_ylim()[1] == 101.5 and axes.get_ylim()[0] >= -1.5
    made.clear()
