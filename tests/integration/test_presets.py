"""Presets end to end on tiny runs: grid, table in four forms, every figure, from the records alone."""

import csv

import pytest

from knot_runner.cli.main import main
from tests.tiny import TINY

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("presets")


def overrides(out):
    return [*TINY, f"paths.out={out}", "task.source=embedded"]


@pytest.mark.thorough
def test_a_table_of_two_methods_and_two_seeds(out, capsys, monkeypatch):
    monkeypatch.setattr("knot_runner.report.render.terminal.PIPE_WIDTH", 80)  # as on a narrow terminal
    small = [*overrides(out), "method=entropy_a,sinkhorn_e", "seed=0,1"]
    assert main(["experiment=knot/table2", *small]) == 0
    said = capsys.readouterr()
    assert "4 done, 0 failed" in said.err
    assert main(["table", "knot/table2", *small]) == 0
    shown = capsys.readouterr().out
    assert said.out == shown  # a preset that has run shows its table
    assert "Entropy-A" in shown and "Sinkhorn-E" in shown and "ALL" in shown
    assert max(len(line) for line in shown.splitlines() if not line.startswith(str(out))) <= 80
    rows = list(csv.DictReader((out / "tables" / "knot/table2.csv").open()))
    assert {row["method"] for row in rows} >= {"entropy_a", "sinkhorn_e"}
    assert (out / "tables" / "knot/table2.md").stat().st_size > 300
    assert "toprule" in (out / "tables" / "knot/table2.tex").read_text()


FURTHER = ["knot/fig2", "knot/fig5", "knot/fig6", "knot/fig7", "knot/fig8", "knot/bias"]


@pytest.mark.parametrize("preset", ["knot/probe", *(pytest.param(one, marks=pytest.mark.thorough) for one in FURTHER)])
def test_every_figure_is_drawn_from_its_runs(out, preset, capsys):
    small = [*overrides(out), *(["method.loss.epsilon=0.01,1"] if preset == "knot/fig8" else [])]
    assert main([f"experiment={preset}", *small]) == 0
    capsys.readouterr()
    assert main(["plot", preset, *small]) == 0, capsys.readouterr().err
    picture = out / "figures" / f"{preset}.png"
    assert picture.read_bytes()[:4] == PNG and picture.stat().st_size > 10_000


def test_a_table_without_runs_says_what_makes_them(tmp_path, capsys):
    assert main(["table", "knot/table2", f"paths.out={tmp_path}"]) == 2
    assert "knot-runner experiment=knot/table2" in capsys.readouterr().err


def test_plot_of_a_table_and_table_of_nothing(capsys):
    assert main(["plot", "knot/table2"]) == 2
    assert "is a table" in capsys.readouterr().err
    assert main(["table"]) == 2
    assert "table: needs a preset" in capsys.readouterr().err
