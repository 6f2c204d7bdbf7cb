"""Figures over rounds: numbers by hand, and a CSV that holds what is shown."""

import numpy as np
import pytest

from knot_runner.papers.chill import probe_figures as temperature_probe
from knot_runner.papers.chill.probe_figures import boundary_figure, gradient_figure, norm_bins, softmax_figure
from knot_runner.papers.chill.round_figures import others_change, participants_change
from knot_runner.report.figures import style as figure_style
from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.run_folders import load_runs
from tests.golden.messages import refuses
from tests.unit.report.made_runs import assert_drawn, csv_rows, save_file, seal

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


TEMPERATURES = [4.0, 1.0, 0.05]
CLASSES = ["plane", "deer_x", "$\\frac{x$"]


def arrays(seed=0, images=60, wrong=20):
    """Probe arrays whose norms grow as 1 / T, and of which one image of Fig. 2 never changes after the step."""
    rng = np.random.default_rng(seed)
    scale = 1 / np.array(TEMPERATURES)
    after = rng.uniform(0, 1, (3, wrong))
    after[2, :1] = np.inf
    return {
        "temperatures": np.array(TEMPERATURES),
        "gradients.norm": (scale[:, None] * rng.lognormal(size=images)).astype(np.float32),
        "gradients.right": (np.arange(images) % 3 == 0).astype(np.uint8),
        "boundary.before": rng.uniform(0, 0.1, wrong).astype(np.float32),
        "boundary.after": after.astype(np.float32),
        "boundary.right": (rng.uniform(size=(3, wrong)) < 0.5).astype(np.uint8),
        "boundary.tried": np.array([30]),
        "softmax.probabilities": np.array([[0.4, 0.3, 0.3], [0.6, 0.2, 0.2], [1, 0, 0]], np.float32),
        "softmax.label": np.array([1]),
        "softmax.row": np.array([17]),
    }


def job(factory, seed=0, label="", change=None):
    names = {"names": CLASSES, "coordinates": None}
    made = factory.job("temperature_probe", seed, "cifar10", label)
    made.folder.mkdir(parents=True)
    result = {"task": "cifar10", "source": "local", "method": "temperature_probe", "seed": seed, "status": "done"}
    seal(made.folder, {**result, "kind": "probe", "temperatures": TEMPERATURES, "labels": names})
    kept = {key: value for key, value in (arrays(seed) | (change or {})).items() if value is not None}
    save_file(kept, made.folder / "probe.safetensors")
    return made


def test_gradient_figure_has_the_medians_by_hand(factory, tmp_path):
    norm = np.array([[1, 2, 3, 10, 20], [2, 4, 6, 0, 40], [4, 8, 12, 0, 80]], np.float32)
    change = {"gradients.norm": norm, "gradients.right": np.array([1, 1, 1, 0, 0], np.uint8)}
    lines = gradient_figure([job(factory, change=change)], tmp_path / "figure.png")
    medians = {"right": (2, 4, 8), "wrong": (15, 20, 40)}
    assert sorted(lines) == sorted(
        f"T={t:g}, {kind}: median {median} of {3 if kind == 'right' else 2}"
        for kind, values in medians.items()
        for t, median in zip(TEMPERATURES, values, strict=True)
    )


def test_norm_bins_begin_where_the_norms_do():
    """No half of a panel is empty: from just below the smallest norm, zeros aside, over five decades at most."""
    bins = norm_bins(np.array([[0.0, 0.2], [3.0, 40.0]], np.float32))
    assert 0.1 < bins[0] < 0.2 and bins[-1] == 40 and (np.diff(bins) > 0).all()
    assert norm_bins(np.array([1e-9, 2.0]))[0] == pytest.approx(2e-5)
    assert norm_bins(np.zeros(3))[-1] == 1 and norm_bins(np.full(3, 2.0))[0] < 2


def test_boundary_figure_has_the_moves_by_hand(factory, tmp_path):
    change = {
        "boundary.before": np.array([0.1, 0.2, np.inf], np.float32),
        "boundary.after": np.array([[0.1, 0.2, 1], [0.4, 0.3, 1], [np.inf, np.inf, 1]], np.float32),
        "boundary.right": np.array([[0, 0, 0], [1, 0, 0], [1, 1, 1]], np.uint8),
    }
    lines = boundary_figure([job(factory, change=change)], tmp_path / "figure.png")
    assert lines == [
        "T=4: median 0 over 2 images, 1 left out; the step puts 0% right",
        "T=1: median 0.2 over 2 images, 1 left out; the step puts 33% right",
        "T=0.05: no median over 0 images, 3 left out; the step puts 100% right",
    ]
    assert [row["left out"] for row in csv_rows(tmp_path / "figure.png")] == ["1", "1", "3"]


def test_pool_probes_keeps_image_of_lowest_seed(factory):
    jobs = [job(factory, seed, change={"softmax.row": np.array([seed])}) for seed in (3, 1)]
    found = temperature_probe.pool_probes(load_runs(jobs))
    assert (found.norm.shape, found.after.shape, found.tried, found.row) == ((3, 120), (3, 40), 60, 1)


def test_boundary_figure_refuses_probes_without_wrong_image(factory, tmp_path):
    none = {"boundary.before": np.zeros(0, np.float32), "boundary.after": np.zeros((3, 0), np.float32)}
    made = job(factory, change=none | {"boundary.right": np.zeros((3, 0), np.uint8)})
    with refuses():
        boundary_figure([made], tmp_path / "figure.png")
    assert gradient_figure([made], tmp_path / "figure.png") and softmax_figure([made], tmp_path / "figure.png")


def test_softmax_figure_lists_top_and_true_class(factory, tmp_path):
    lines = softmax_figure([job(factory)], tmp_path / "figure.png")
    assert lines[-1] == "T=0.05: plane 1.000; true deer_x 0.000"
    assert len(csv_rows(tmp_path / "figure.png")) == 9
