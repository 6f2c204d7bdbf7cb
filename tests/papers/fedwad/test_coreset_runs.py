"""Coresets and their nearest-neighbor classifier as runs: what they leave, resume after kills, refusals, figures."""

import csv
from collections import Counter
from types import SimpleNamespace

import numpy as np
import ot
import pytest

import knot_runner as kr
from knot_runner.cli.main import main
from knot_runner.engine.seeds import numpy_generator
from knot_runner.papers.fedwad import coreset, descent
from knot_runner.papers.fedwad.coreset_figures import coreset_images
from knot_runner.report.run_folders import Job
from knot_runner.transport.federated.measure import Measure
from tests.contents import write_content
from tests.golden.messages import refuses
from tests.runs import RunRecord, run
from tests.tiny import CORESET, KNN
from tests.unit.report import made_runs
from tests.unit.report.made_runs import assert_drawn, csv_rows, save_file


def result_and_coreset(record: RunRecord) -> tuple[dict, list[dict], dict]:
    """All that must be equal."""
    return record.result, record.rows, {k: v.numpy().tobytes() for k, v in record.tensors("coreset").items()}


@pytest.mark.parametrize("distance", ["federated", "exact"])
def test_coreset_run_records_losses_points_and_participants(tmp_path, distance):
    record = run(tmp_path, *CORESET, f"method.distance={distance}")
    result, kept = record.result, record.tensors("coreset")
    assert (result["kind"], result["status"], result["points"]) == ("coreset", "done", 5)
    assert len(result["losses"]) == 12 and result["losses"][-1] < 0.9 * result["losses"][0]
    assert kept["points"].shape == (5, 64) and 0 <= kept["points"].min() <= kept["points"].max() <= 1
    np.testing.assert_allclose(kept["points"], (kept["codes"] * 0.3081 + 0.1307).clamp(0, 1), atol=1e-6)
    assert result["classes_covered"] == len(np.unique(kept["labels"]))
    assert [row["round"] for row in record.rows] == list(range(1, 13))
    assert all(len(set(row["participants"])) == 3 and set(row["participants"]) <= set(range(6)) for row in record.rows)
    assert "method.participants: all 6 clients participate" not in result["notes"]
    assert not (record.folder / "commit.json").exists()


def test_coresets_of_codes_come_back_as_images(tmp_path):
    record = run(tmp_path, *CORESET, "+encoder@method.encoder=cifar_untrained", "method.encoder.sizes=[4,6]")
    kept = record.tensors("coreset")
    assert kept["points"].shape == (5, 64) and kept["codes"].shape == (5, 6 * 2 * 2)
    assert record.result["shape"] == [1, 8, 8]


def test_coreset_knn_records_coresets_and_resumes_from_commits(tmp_path, monkeypatch):
    alone = run(tmp_path / "alone", *KNN)
    result, kept = alone.result, alone.tensors("coreset")
    assert kept["codes"].shape == (24, 8) and kept["clients"].tolist() == [k // 4 for k in range(24)]
    assert result["datasets"]["train"] == 150  # the other half is the encoder's
    assert 0.5 < result["metrics"]["accuracy"]["ALL"] <= 1 and len(result["losses"]) == 6
    per_client = [set(kept["labels"][kept["clients"] == k].tolist()) for k in range(6)]
    assert max(map(len, per_client)) <= 4 and set.union(*per_client) > {0, 1, 2}
    real, calls = coreset.own_coreset, []

    def fails_at_the_fourth(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("as if killed")
        return real(*arguments)

    monkeypatch.setattr(coreset, "own_coreset", fails_at_the_fourth)
    with pytest.raises(RuntimeError, match="as if killed"):
        run(tmp_path / "cut", *KNN)
    assert not list((tmp_path / "cut").rglob("result.json"))
    again = run(tmp_path / "cut", *KNN)
    assert 4 + 3 <= len(calls) < 4 + 6  # some of three were committed
    assert result_and_coreset(again) == result_and_coreset(alone)


@pytest.mark.parametrize("words", [
    [*CORESET, "method.samples=0"],
    [*CORESET, "method.fedwad.privacy={mechanism: gaussian, epsilon: 1.0, delta: 1e-5, clip: 1.0}"],
    [*KNN, "method.encoder_share=0"], [*KNN, "method.encoder.sizes=[]"],
], ids=lambda words: words[-1])  # fmt: skip
def test_coresets_that_cannot_be_are_refused(tmp_path, words):
    with refuses():
        run(tmp_path, *words)


KNN_PRESET = [
    "arm=points_2,fedper", "partition.num_clients=3,4", "task.max_examples=200", "task.shape=[1,8,8]",
    "model.hidden=[8]", "training.rounds=1", "training.local_epochs=1", "hardware.num_workers=1",
]  # fmt: skip
CORESET_PRESET = [
    *(word for word in CORESET if not word.startswith(("method=", "partition", "method.fedwad.support", "task=mnist"))),
    "partition.num_clients=6", "partition.shards_per_client=2", "method.fedwad.support=5", "hardware.num_workers=1",
]  # fmt: skip


@pytest.mark.parametrize(("preset", "words", "said", "rows"), [
    ("fedwad/coreset", CORESET_PRESET, "mnist, FedWaD, S=5: distance to all", {"exact": 12, "FedWaD, S=5": 12}),
    ("fedwad/knn", KNN_PRESET, "coreset_knn, num_clients 3, accuracy (%)", {"coreset_knn": 2, "fedper": 2}),
], ids=["coreset", "knn"])  # fmt: skip
def test_figure_of_a_coreset_preset(tmp_path, capsys, preset, words, said, rows):
    for job in kr.compose([f"experiment={preset}", *words, f"paths.output_dir={tmp_path}"]):
        kr.run(job)
    assert main(["plot", preset, *words, f"paths.output_dir={tmp_path}"]) == 0, capsys.readouterr().err
    assert said in capsys.readouterr().out
    assert (tmp_path / "figures" / f"{preset}.png").read_bytes()[:4] == b"\x89PNG"
    with (tmp_path / "figures" / f"{preset}.csv").open() as file:
        found = list(csv.DictReader(file))
    assert Counter(row.get("coreset") or row["series"] for row in found) == rows


def job(folder, result, **changes):
    """A job whose folder holds ``result``."""
    config = {
        "method": {"distance": result["distance"], "fedwad": {"support": 10}, "encoder": None},
        "partition": {"kind": "shards", "num_clients": 5, "shards_per_client": 2},
    }
    write_content(folder, {**result, **changes})
    method, seed = changes.get("method", "coreset"), changes.get("seed", 0)
    return Job(folder.name, folder, "mnist", method, seed, "", config)


def test_coreset_images_draws_and_describes_each_run(tmp_path):
    jobs = [job(tmp_path / "a", made_runs.CORESET), job(tmp_path / "b", {**made_runs.CORESET, "distance": "exact"})]
    arrays = {"points": np.full((4, 6), 0.5, np.float32), "labels": np.array([1, 0, 2, 0])}
    for one in jobs:
        save_file(arrays, one.folder / "coreset.safetensors")
    lines = coreset_images(jobs, tmp_path / "f.png")
    assert lines == [
        f"mnist, {name}: distance to all clients' samples 2, 2 of 3 classes" for name in ("FedWaD, S=10", "exact")
    ]
    assert_drawn(tmp_path / "f.png")
    assert len(csv_rows(tmp_path / "f.png")) == 4


@pytest.mark.parametrize(("figure", "result"), [
    (coreset_images, made_runs.CORESET), (coreset_images, made_runs.KNN),
], ids=["no coreset on record", "images of another kind"])  # fmt: skip
def test_run_that_cannot_be_drawn_is_refused(figure, result, tmp_path):
    with refuses():
        figure([job(tmp_path / "a", result)], tmp_path / "f.png")


POINTS = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0.0, 0.0], [4.0, 0.0], [0.0, 9.0]], 20, 0)
CLIENTS = coreset.Clients(POINTS, [np.arange(0, 20), np.arange(20, 40), np.arange(40, 60)])
HP = SimpleNamespace(
    points=3, participants=2, samples=None, distance="exact", lr=0.5, epochs=3, fedwad=None,
)  # fmt: skip


def changed(**values):
    return SimpleNamespace(**(vars(HP) | values))


def begun(seed=0):
    return descent.first_descent(3, 2, numpy_generator(seed, "coreset", "start"))


def w2(x, y):
    return ot.emd2([], [], ot.dist(x, y)) ** 0.5


def test_advance_epoch_steps_against_participants_mean_gradient():
    state, row = coreset.advance_epoch(HP, 0, begun(), CLIENTS, 0)
    first, second = row["participants"]
    assert first < second
    parts = [descent.gradient(begun().points, Measure(POINTS[CLIENTS.rows[client]])) for client in (first, second)]
    stepped = descent.descent_step(begun(), (parts[0][1] + parts[1][1]) / 2, 0.5, 1)
    np.testing.assert_allclose(state.points, stepped.points, rtol=1e-12)
    np.testing.assert_allclose(state.second, stepped.second, rtol=1e-12)  # the step hardly depends on the scale
    assert row["loss"] == pytest.approx((parts[0][0] + parts[1][0]) / 2)
    assert parts[0][0] == pytest.approx(w2(begun().points, POINTS[CLIENTS.rows[first]]))


def test_participants_are_drawn_by_seed_and_epoch():
    def drawn(seed):
        rows = [coreset.advance_epoch(HP, seed, begun(), CLIENTS, epoch)[1] for epoch in range(6)]
        return tuple(tuple(row["participants"]) for row in rows)

    assert all(len(set(drawn(seed))) > 1 for seed in range(3)) and len({drawn(seed) for seed in range(3)}) == 3
    for count in (3, 7):
        whole = coreset.advance_epoch(changed(participants=count), 0, begun(), CLIENTS, 0)[1]
        assert whole["participants"] == [0, 1, 2]


@pytest.fixture
def asked(monkeypatch):
    """(points, sample, first draw for the name "t") of every federated distance."""
    seen = []

    def federated(points, sample, options, draws):
        seen.append((points, sample.copy(), float(draws("t").random())))
        return float(len(seen)), np.ones_like(points)

    monkeypatch.setattr(coreset, "federated_gradient", federated)
    return seen


def test_advance_epoch_draws_afresh_per_client_and_epoch(asked):
    config = changed(distance="federated", participants=3, samples=7)
    for seed in (0, 1):
        for epoch in (0, 1):
            _, row = coreset.advance_epoch(config, seed, begun(), CLIENTS, epoch)
            assert row["loss"] == pytest.approx(np.mean(range(len(asked) - 2, len(asked) + 1)))
    assert len({draw for *_, draw in asked}) == 12
    for at, (_, sample, _) in enumerate(asked):
        own = POINTS[CLIENTS.rows[at % 3]].tolist()
        assert len(sample) == 7 and len({tuple(row) for row in sample.tolist()}) == 7
        assert all(row in own for row in sample.tolist())
    shown = {tuple(map(POINTS.tolist().index, sample.tolist())) for _, sample, _ in asked}
    assert len(shown) == 12 and len({tuple(i % 20 for i in rows) for rows in shown}) == 12


def test_subsample_keeps_the_order():
    rows = np.array([9, 4, 7, 1])
    for most in (None, 4, 5):
        assert coreset.subsample(rows, most, np.random.default_rng(0)) is rows
    drawn = [coreset.subsample(np.arange(10), 9, np.random.default_rng(seed)).tolist() for seed in range(20)]
    assert all(len(set(one)) == 9 and one == sorted(one) for one in drawn) and len(set(map(tuple, drawn))) > 3


def test_own_coreset_descends_on_one_clients_samples(asked):
    config = changed(distance="federated", samples=5)
    points, loss = coreset.own_coreset(config, 0, CLIENTS, 1)
    start = descent.first_descent(3, 2, numpy_generator(0, "coreset_knn", 1, "start")).points
    np.testing.assert_allclose(points, start - 3 * 0.5, atol=1e-7)  # three steps of Adam against ones
    assert loss == 3.0  # of the last epoch, before its step
    np.testing.assert_allclose(asked[2][0], start - 2 * 0.5, atol=1e-7)
    coreset.own_coreset(config, 0, CLIENTS, 2)
    coreset.own_coreset(config, 1, CLIENTS, 1)
    assert len({draw for *_, draw in asked}) == 9 and len({one.tobytes() for one, *_ in asked}) == 9
    assert len({sample.tobytes() for _, sample, _ in asked}) == 9
    assert all(row in POINTS[20:40].tolist() for row in asked[0][1].tolist())


def test_own_labels_are_of_nearest_samples_of_own_client():
    both = np.array([[[0.0, 0.0], [4.0, 0.1]], [[0.0, 8.9], [4.0, 0.1]]])  # [0, 1] is nearer to samples of client 1
    found = coreset.own_labels(both, coreset.Clients(POINTS, CLIENTS.rows[:2]), np.arange(60))
    asked = [(k, point) for k in (0, 1) for point in both[k]]
    nearest = [min(CLIENTS.rows[k], key=lambda row: float(np.linalg.norm(POINTS[row] - point))) for k, point in asked]
    assert found.tolist() == nearest


def test_client_accuracy_is_over_images_and_over_clients():
    tests = [np.array([0, 1, 2]), np.array([3]), np.array([4]), np.array([], int)]
    found = coreset.client_accuracy(np.array([True, True, False, True, False]), tests)
    assert found == {"weighted": 0.6, "unweighted": pytest.approx((2 / 3 + 1 + 0) / 3)}


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e150, -1e150])
def test_coreset_that_diverges_is_stopped(value):
    coreset.check_points(np.array([[9e149, -9e149]]), 0.1, "epoch 3")
    with refuses():
        coreset.check_points(np.array([[0.0, value]]), 0.1, "epoch 3")


def test_encoder_share_is_rounded_and_drawn():
    config = SimpleNamespace(encoder=SimpleNamespace(epochs=1, name="e"), encoder_share=0.25)
    held, rest = coreset.split_off(config, 10, 0)
    assert len(held) == 2 and sorted([*held, *rest]) == list(range(10))
    assert (np.diff(held) > 0).all() and (np.diff(rest) > 0).all()
    assert coreset.split_off(config, 10, 1)[0].tolist() != held.tolist()
    with refuses():
        coreset.split_off(config, 1, 0)
    for encoder in (None, SimpleNamespace(epochs=0, name="e")):  # clients get all
        assert len(coreset.split_off(SimpleNamespace(encoder=encoder, encoder_share=0.25), 1, 0)[1]) == 1
