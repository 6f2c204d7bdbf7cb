"""FLex&Chill's presets end to end on tiny runs of real digits: grid, tables, figures, from the records alone."""

import csv

import pytest

from knot_runner.cli.main import main
from tests.tiny import TINY_IMAGES

PNG = b"\x89PNG"
SMALL = [*TINY_IMAGES, "task.source=embedded"]


def shown(arguments, capsys):
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.thorough
def test_table_1_with_its_rate_controls(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("knot_runner.report.render.terminal.PIPE_WIDTH", 80)  # as on a narrow terminal
    small = [*SMALL, f"paths.out={tmp_path}", "method.temperature=4,1,0.25", "seed=0,1"]
    first = shown(["experiment=chill/table1", *small], capsys)
    assert first == shown(["table", "chill/table1", *small], capsys)  # a preset that has run shows its table
    assert "FEMNIST-DNN" in first and "rate=lr/0.25" in first and "(6.00)" not in first
    assert max(len(line) for line in first.splitlines() if not line.startswith(str(tmp_path))) <= 80
    rows = list(csv.DictReader((tmp_path / "tables" / "chill/table1.csv").open()))
    assert {row["T"] for row in rows} == {"4", "1", "0.25"}
    assert len(list(tmp_path.glob("femnist/*/*/result.json"))) == 2 * (3 + 2)  # T=1 is its own control
    for name in ("chill/fig4", "chill/fig6"):
        said = shown(["plot", name, *small], capsys)
        assert (tmp_path / "figures" / f"{name}.png").read_bytes()[:4] == PNG and "runs are there" not in said
