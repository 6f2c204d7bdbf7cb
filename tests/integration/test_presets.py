"""Presets end to end with tiny runs: the grid, the table in four forms, and the figures."""

import csv

import pytest

from knot_runner.cli.main import main
from tests.of_papers import of_papers
from tests.tiny import TINY, TINY_IMAGES

PNG = b"\x89PNG"


def printed(words, capsys):
    """Return the output of a command, which must succeed."""
    capsys.readouterr()
    assert main(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


#: preset -> words of few small runs, what its table shows, and the values of one column
TABLES = {
    "knot/table2": ([*TINY, "method=entropy_a,sinkhorn_e", "seed=0"], {"Entropy-A", "Sinkhorn-E", "ALL"},
                    ("method", {"entropy_a", "sinkhorn_e"}), 2),
    "chill/table1": ([*TINY_IMAGES, "method.temperature=4,1,0.25", "seed=0"], {"FEMNIST-DNN", "rate=lr/0.25"},
                     ("T", {"4", "1", "0.25"}), 3 + 2),  # T=1 is its own control
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("preset", of_papers(list(TABLES)))
def test_preset_table_is_built_from_its_runs(preset, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("knot_runner.report.render.terminal.PIPE_WIDTH", 80)  # as on a narrow terminal
    words, parts, (column, values), runs = TABLES[preset]
    words = [*words, "task.source=embedded", f"paths.output_dir={tmp_path}"]
    shown = printed([f"experiment={preset}", *words], capsys)
    assert shown == printed(["table", preset, *words], capsys)  # a preset that has run shows its table
    assert all(part in shown for part in parts)
    assert max(len(line) for line in shown.splitlines() if not line.startswith(str(tmp_path))) <= 80
    assert len(list(tmp_path.glob("*/*/*/result.json"))) == runs
    rows = list(csv.DictReader((tmp_path / "tables" / f"{preset}.csv").open()))
    assert {row[column] for row in rows} >= values
    assert (tmp_path / "tables" / f"{preset}.md").stat().st_size > 300
    assert "toprule" in (tmp_path / "tables" / f"{preset}.tex").read_text()
    for figure in ("chill/fig4", "chill/fig6") if preset == "chill/table1" else ():
        assert "runs are finished" not in printed(["plot", figure, *words], capsys)
        pictures = list((tmp_path / "figures").glob(f"{figure}_*_by_round.png"))
        assert [picture.read_bytes()[:4] for picture in pictures] == [PNG, PNG]


@pytest.mark.thorough
@pytest.mark.paper("knot")
def test_preset_figure_is_drawn_from_its_runs(tmp_path, capsys):
    preset = "knot/fig8"
    words = [*TINY, f"paths.output_dir={tmp_path}", "task.source=embedded", "method.loss.epsilon=0.01,1"]
    printed([f"experiment={preset}", *words], capsys)
    printed(["plot", preset, *words], capsys)
    picture = tmp_path / "figures" / f"{preset}.png"
    assert picture.read_bytes()[:4] == PNG and picture.stat().st_size > 10_000


@pytest.mark.parametrize(("words", "message"), [
    (["table", "federated/fedprox"], "knot-runner experiment=federated/fedprox"),  # what makes the runs
    (["plot", "federated/fleet_femnist"], "is a table"), (["table"], "table: expected a preset"),
], ids=" ".join)  # fmt: skip
def test_request_that_has_no_answer_is_refused(words, message, tmp_path, capsys):
    assert main([*words, f"paths.output_dir={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
