"""A figure that a user adds in one file: drawn by ``plot``, after the runs, and on a page beside a table."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from knot_runner.cli.main import main
from knot_runner.report.figures.registry import FIGURES
from tests.tiny import TINY_IMAGES

EXAMPLES = Path(__file__).parents[1] / "plugins"


@pytest.fixture(autouse=True)
def figures_as_they_were():
    """The plug-in of one test is not that of the next."""
    before = dict(FIGURES.data)
    yield
    FIGURES.data.clear()
    FIGURES.data.update(before)
    sys.modules.pop("own_figure", None)


def forgotten():
    """As in a new process."""
    FIGURES.pop("round_seconds")
    sys.modules.pop("own_figure")


@pytest.mark.thorough
def test_a_figure_of_ones_own_is_drawn_after_the_runs_by_plot_and_on_a_page(tmp_path, capsys):
    small = [one for one in TINY_IMAGES if not one.startswith("task=")]
    own = [
        f"--config-dir={EXAMPLES / 'conf'}", *small, f"plugins=['{EXAMPLES / 'own_figure.py'}']",
        f"paths.out={tmp_path}",
    ]  # fmt: skip
    assert main(["experiment=own_figure", *own]) == 0, capsys.readouterr().err
    logs = [path.read_text().splitlines() for path in tmp_path.glob("femnist/fedavg/*/rounds.jsonl")]
    seconds = np.array([[json.loads(line)["seconds"] for line in lines] for lines in logs])
    line = f"fedavg: {seconds.mean():.3g} s a round"
    assert line in capsys.readouterr().out
    forgotten()
    (tmp_path / "figures" / "own_figure.png").unlink()
    assert main(["plot", "own_figure", *own]) == 0
    assert line in capsys.readouterr().out
    assert (tmp_path / "figures" / "own_figure.png").read_bytes()[:4] == b"\x89PNG"
    rows = list(csv.DictReader((tmp_path / "figures" / "own_figure.csv").open()))
    assert [float(row["mean"]) for row in rows] == pytest.approx(seconds.mean(0), rel=1e-4)
    assert [row["seeds"] for row in rows] == ["2"] * 3
    forgotten()
    table = ["report.kind=temperatures", "+report.metrics=[accuracy]", "+report.figures=[round_seconds]"]
    assert main(["report", "own_figure", *own, *table]) == 0
    page = (tmp_path / "reports" / "own_figure.html").read_text()
    assert line in page and "Seconds that each round took, a line per method" in page
