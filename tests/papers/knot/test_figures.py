"""Figures of text runs: drawn, their numbers by hand, and what runs without records get."""

import json

import numpy as np
import pytest

from knot_runner.papers.knot.bias_figures import probe_moves
from knot_runner.papers.knot.prediction_figures import face, foot, purity
from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.run_folders import load_runs
from tests.golden.messages import refuses
from tests.unit.report.made_runs import assert_drawn, csv_rows, put, save_file

#: The figures of KNOT; the others have files of their own.
OF_TEXTS = ("expected_label", "confidence", "tsne", "support", "epsilon", "bias", "probe")


@pytest.mark.parametrize("name", OF_TEXTS)
def test_figure_of_text_runs_is_drawn(factory, tmp_path, name):
    made = [factory.made(method, task="nli") for method in ("entropy_e", "sinkhorn_e")]
    jobs = [factory.probes(factory.vectors(factory.predictions(job, rows=120), rows=60)) for job in made]
    lines = FIGURES[name](jobs, tmp_path / "figure.png", notes=["a note"], command="knot-runner x")
    assert_drawn(tmp_path / "figure.png")
    assert lines and all(isinstance(line, str) and "nan" not in line for line in lines)
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("name", ["expected_label", "tsne", "probe", "bias"])
def test_figures_refuse_missing_records_or_several_tasks(factory, tmp_path, name):
    jobs = [factory.made(), *([factory.made(task="sa")] if name == "bias" else [])]
    with refuses():
        FIGURES[name](jobs, tmp_path / "figure.png", command="knot-runner x")


def test_hostile_names_are_drawn_as_they_are(factory, tmp_path):
    names = ["$\\frac{x$", "\x1b[31mred _^{"]
    job = factory.made(names=names, bias={name: [0.2] * 5 for name in names})
    for figure in ("bias", "confidence"):
        factory.predictions(job, rows=20)
        assert FIGURES[figure]([job], tmp_path / "figure.png")
        assert_drawn(tmp_path / "figure.png")


def test_expected_label_by_hand(factory, tmp_path):
    shares = [[0.2, 0.7, 0.1, 0, 0], [0, 0, 0, 0, 1], [0.5, 0.5, 0, 0, 0]]
    lines = {}
    for task, data, rows, labels in (("sa", "Food", shares, [0, 4, 0]), ("nli", "SNLI", [[0.5, 0, 0.5]], [0])):
        job = factory.made(task=task)
        arrays = {f"{data}.probabilities": np.array(rows, np.float32), f"{data}.labels": np.array(labels)}
        save_file(arrays, job.folder / "predictions.safetensors")
        lines[task] = FIGURES["expected_label"]([job], tmp_path / "figure.png")
    assert lines["sa"] == [  # strong_negative (-2): expected -1.1 and -1.5; strong_positive: expected 2
        "Sinkhorn-E, strong_negative: expected label median -1.300 (-1.400 to -1.200), mean -1.300",
        "Sinkhorn-E, strong_positive: expected label median 2.000 (2.000 to 2.000), mean 2.000",
    ]
    # in more dimensions it is a distance: of (.5, 0, .5) from (1, 0, 0)
    assert "entailment: distance median 0.707" in lines["nli"][0]


def test_foot_centers_arcs_of_equal_confidence():
    share = np.array([0.4, 0.1, 0.3, 0.15, 0.05])
    chosen = face(share)
    center = foot(share, chosen)
    assert chosen == [0, 2, 4] and center.sum() == pytest.approx(1)
    angles = np.linspace(0, 6, 7)
    one, other = np.array([1, -1, 0]) / np.sqrt(2), np.array([1, 1, -2]) / np.sqrt(6)
    circle = center + 0.1 * (np.outer(np.cos(angles), one) + np.outer(np.sin(angles), other))
    whole = np.zeros((7, 5))
    whole[:, chosen] = circle
    distance = np.linalg.norm(whole - share, axis=1)
    assert np.ptp(distance) < 1e-12


def test_confidence_by_hand(factory, tmp_path):
    job = factory.made(task="nli", names=["Fic", "SNLI"], bias={"Fic": [0.6, 0.4, 0.0], "SNLI": [0.2, 0.3, 0.5]})
    lines = FIGURES["confidence"]([factory.predictions(job, rows=20)], tmp_path / "figure.png")
    assert lines[0].startswith("Fic: bias / confidence at the corner: entailment 0.600 / 0.566, neutral 0.400 / 0.849")
    assert lines[0].endswith("greatest at contradiction") and len(lines) == 2


def test_bias_averages_seeds_and_counts_methods_once(factory, tmp_path):
    rows = {0: [0.8, 0.2, 0, 0, 0], 1: [0.4, 0.6, 0, 0, 0]}
    jobs = [factory.made(m, s, bias={"MELD": rows[s]}) for m in ("entropy_e", "sinkhorn_e") for s in (0, 1)]
    lines = FIGURES["bias"](jobs, tmp_path / "figure.png")
    assert lines == ["MELD: anger 0.600, happiness 0.400, no_emotion 0.000, sadness 0.000, surprise 0.000"]


def write_probe(job, **models):
    entry = {"probe": "gender", "template": "My {} ...", "words": ["father", "mother"]}
    entries = [entry | {"model": model, "probabilities": rows} for model, rows in models.items()]
    put(job.folder / "probe.json", json.dumps(entries))
    return job


MOVED = [[0.5, 0.5, 0, 0, 0], [0.1, 0.5, 0.4, 0, 0]]  # total variation .4, expected label -1.5 and -.7
STILL = [[0.9, 0.1, 0, 0, 0], [0.9, 0.1, 0, 0, 0]]


def test_probe_by_hand(factory, tmp_path):
    jobs = [write_probe(factory.made(seed=seed, task="sa"), student=MOVED, Cell=STILL) for seed in (0, 1)]
    student, teacher = probe_moves(load_runs(jobs)).itertuples()
    FIGURES["probe"](jobs, tmp_path / "probe.png")
    assert (student.model, student.pairs, student.flips) == ("student, Sinkhorn-E", 2, 1.0)
    assert (student.total_variation, student.shift) == (pytest.approx(0.4), pytest.approx(0.8))
    assert (teacher.model, teacher.total_variation, teacher.flips) == ("teacher Cell", 0, 0)
    assert [row["total variation"] for row in csv_rows(tmp_path / "probe.png")] == ["0.4", "0"]


def test_models_before_distillation_count_once_per_seed(factory):
    jobs = [factory.made(method, task="sa") for method in ("entropy_e", "sinkhorn_e")]
    moves = probe_moves(load_runs([write_probe(job, student=MOVED, before=MOVED, Cell=MOVED) for job in jobs]))
    models = ["student, Entropy-E", "student, Sinkhorn-E", "before distillation", "teacher Cell"]
    assert [(move.model, move.pairs) for move in moves.itertuples()] == [(model, 1) for model in models]


def test_purity_of_separate_and_of_mixed_labels():
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    apart, chance = purity(rng.normal(size=(400, 8)) + 50 * labels[:, None], labels)
    mixed, _ = purity(rng.normal(size=(400, 8)), labels)
    assert apart == 1.0 and mixed == pytest.approx(0.5, abs=0.06) and chance == pytest.approx(199 / 399)


def test_support_reports_purity_per_setting(factory, tmp_path):
    labels = [f"task.labels.support={support}" for support in ("semantic", "onehot")]
    jobs = [
        factory.vectors(factory.made(label=label, seed=seed), rows=60, spread=spread)
        for label, spread in zip(labels, (0.1, 9.0), strict=True)
        for seed in (0, 1)
    ]
    semantic, onehot = FIGURES["support"](jobs, tmp_path / "figure.png")
    assert semantic.startswith("support=semantic (seeds 0, 1): 10-neighbor purity 1.00±0.00 (chance 0.19)")
    assert onehot.startswith("support=onehot (seeds 0, 1)")
