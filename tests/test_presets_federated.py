"""FLex&Chill's presets end to end on tiny runs of real digits: grid, tables, figures, from the records alone."""

import csv

import pytest

from knot_runner.cli.main import main
from tests.tiny import TINY_IMAGES, TINY_TEXTS

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


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["erc", "nli"])  # chill/sa is chill/nli on other texts
def test_texts_at_several_temperatures(tmp_path, capsys, task):
    own = ("task=", "training=", "partition=")
    tiny = [word for word in TINY_TEXTS if not word.startswith(own)]
    small = [*tiny, "task.source=embedded", f"paths.out={tmp_path}", "method.temperature=4,1,0.25", "seed=0"]
    if task != "erc":  # one is enough for the second case
        small += ["partition=small"]
    said = shown([f"experiment=chill/{task}", *small], capsys)
    assert said == shown(["table", f"chill/{task}", *small], capsys)
    assert "ten clients" in said and "rate=lr/0.25" in said and ("one client" in said) == (task == "erc")
    cases = 2 if task == "erc" else 1
    assert len(list(tmp_path.glob(f"{task}/*/*/result.json"))) == 5 * cases
    judged = shown(["claims", f"chill/{task}", *small], capsys)
    assert "Ten clients: T=0.25 ends with higher" in judged
    drawn = shown(["plot", f"chill/{task}", *small, "report.kind=curves"], capsys)
    assert ("after 2 rounds accuracy" if task == "nli" else "after 2 rounds macro F1 0.") in drawn
    assert (tmp_path / "figures" / "chill" / f"{task}.png").read_bytes()[:4] == PNG


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["chill/fig1", "chill/fig2", "chill/fig3"])
def test_the_probe_figures(tmp_path, preset, capsys):
    small = ["task.source=embedded", "task.limit=60", "task.shape=[3,8,8]", "model.hidden=[4]", "partition=small",
             "model.convs=[{channels:2,kernel:3,padding:1}]", "method.warm_epochs=0", "method.attack_steps=4",
             f"paths.out={tmp_path}"]  # fmt: skip
    shown([f"experiment={preset}", *small], capsys)
    shown(["plot", preset, *small], capsys)
    assert (tmp_path / "figures" / f"{preset}.png").read_bytes()[:4] == PNG
