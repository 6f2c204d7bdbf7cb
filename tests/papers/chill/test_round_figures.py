"""Figures over rounds: numbers by hand, and a CSV that holds what is shown."""

import pytest

from knot_runner.papers.chill.round_figures import others_change, participants_change
from knot_runner.report.figures import style as figure_style
from knot_runner.report.figures.registry import FIGURES
from tests.golden.messages import refuses
from tests.unit.report.made_runs import assert_drawn, csv_rows

#: Student's t at 97.5% with one degree of freedom: two seeds that differ by d have an interval of mean +- T1 d / 2.
T1 = 12.706204736


@pytest.fixture
def jobs(federated):
    """Three temperatures and a rate control over two seeds, 12 rounds."""
    return [
        federated.made(t, [round(0.02 * i + 0.1 * seed, 6) for i in range(12)], seed=seed, control=control)
        for t, control in ((4.0, False), (1.0, False), (0.05, False), (0.05, True))
        for seed in (0, 1)
    ]


@pytest.mark.parametrize("name", ["curves", "aggregation"])
def test_round_figures_draw_and_list_numbers(jobs, federated, tmp_path, name):
    path = tmp_path / "figure.png"
    lines = FIGURES[name](jobs, path, notes=["a note"])
    assert_drawn(path)
    assert len(lines) == (4 if name == "curves" else 8) and all("nan" not in line for line in lines)
    assert any("T=1 at rate lr/0.05" in line for line in lines)
    assert {row["settings"] for row in csv_rows(path)} == {"", "rate=lr/0.05"}
    lines = FIGURES[name]([federated.made(1.0, [0.2], seed=7)], path)  # one round is enough
    assert not any("nan" in line for line in lines)
    if name == "aggregation":
        assert [line.partition(": ")[2] for line in lines] == ["participants -10.00 points", "others none"]


def test_curves_by_hand(jobs, tmp_path):
    lines = FIGURES["curves"](jobs, tmp_path / "figure.png")
    assert lines[0] == "FEMNIST-DNN, T=4: after 12 rounds accuracy 27.00%, loss at T 2.730"
    rows = csv_rows(tmp_path / "figure.png")
    one = next(r for r in rows if (r["T"], r["quantity"], r["round"]) == ("4", "accuracy", "4"))
    expected = [11, max(11 - 5 * T1, 0), 11 + 5 * T1, 2]  # of 6 and 16; a share is cut at 0
    assert [float(one[key]) for key in ("mean", "low", "high", "seeds")] == pytest.approx(expected, rel=1e-5)


def test_curves_separate_settings_and_use_common_rounds(federated, tmp_path):
    jobs = [federated.made(1.0, [0.2, 0.3], label=f"training.lr={lr}") for lr in (0.1, 0.2)]
    assert FIGURES["curves"](jobs, tmp_path / "figure.png")[1].startswith("FEMNIST-DNN (training.lr=0.2), T=1")
    jobs = [federated.write(federated.job(seed=0), [0.1] * 6, every=2), federated.made(1.0, [0.3] * 4, seed=1)]
    FIGURES["curves"](jobs, tmp_path / "figure.png")
    rows = [row for row in csv_rows(tmp_path / "figure.png") if row["quantity"] == "accuracy"]
    assert [(row["round"], row["mean"]) for row in rows] == [("2", "20"), ("4", "20")]


@pytest.mark.parametrize("titles", [["participants"], ["participants", "others"]], ids=len)
def test_aggregation_omits_panel_of_unmeasured_clients(federated, tmp_path, monkeypatch, titles):
    drawn, panels, used = [], figure_style.panels, "knot_runner.papers.chill.round_figures.panels"
    monkeypatch.setattr(used, lambda *args, **more: drawn.append(panels(*args, **more)) or drawn[-1])
    if len(titles) == 1:
        monkeypatch.setattr("knot_runner.papers.chill.round_figures.others_change", lambda rows: {})
    FIGURES["aggregation"]([federated.made(1.0, [0.2, 0.3])], tmp_path / "figure.png")
    ((_, axes),) = drawn
    assert [one.get_title().rpartition(": ")[2] for one in axes] == titles


@pytest.mark.parametrize("name", ["curves", "aggregation"])
def test_round_figures_refuse_missing_or_damaged_rounds(federated, tmp_path, name):
    with refuses():
        FIGURES[name]([federated.job()], tmp_path / "figure.png", command="knot-runner x")
    job = federated.made(1.0, [0.2])
    (job.folder / "rounds.jsonl").write_text("{")
    with refuses():
        FIGURES[name]([job], tmp_path / "figure.png")


def test_change_at_aggregation_by_hand():
    rows = [
        {"round": 1, "participants": [0, 1], "after": [0.9, 0.7], "clients": [0.6, 0.5, 0.4, None]},
        {"round": 2, "participants": [2, 0], "after": [0.8, None], "clients": [0.7, 0.6, 0.5, None]},
        {"round": 3, "participants": [1, 2], "after": [0.8, 0.8]},
        {"round": 4, "participants": [1, 2], "after": [0.8, 0.8], "clients": [0.1, 0.9, 0.9, None]},
    ]
    # round 0: (.6 - .9 + .5 - .7) / 2; round 1: .5 - .8, client 0 has no test images; round 2 was not measured
    assert participants_change(rows) == pytest.approx({1: -25, 2: -30, 4: 10})  # by rounds trained
    # round 1: client 1, .6 - .5; client 3 has no test images; round 3 has no measured round before it
    assert others_change(rows) == pytest.approx({2: 10})
