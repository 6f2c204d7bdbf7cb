"""Measures on resampled test items, compared with the metrics of explicit resamples."""

import hashlib

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, recall_score

from knot_runner import metrics
from knot_runner.metrics import METRICS, Metric
from knot_runner.report.claims import items as claims_items
from knot_runner.report.claims.items import Want, replicates
from knot_runner.report.run_folders import load_runs, predictions
from knot_runner.report.statistics.intervals import RESAMPLES
from tests.golden.messages import refuses
from tests.unit.report import clustered_runs
from tests.unit.report.claimed import claim, grid, judged, knot


def made(jobs, command=""):
    return {run.run_id: run for run in load_runs(jobs, command)}


@pytest.mark.parametrize(("side", "rows"), [("after", 40), ("before", 40), ("after", 4)])  # of 4, most miss a class
def test_replicates_are_the_metrics_of_each_resample(factory, side, rows):
    runs = made([knot(factory, "sinkhorn_e", 0, 1.0, rows=rows)])
    ((run_id, run),) = runs.items()
    prefix = "before/" if side == "before" else ""
    stored = {k.removeprefix(prefix): v for k, v in predictions(run).items() if k.startswith("before") == bool(prefix)}
    wanted = [Want(run_id, side, measure, on) for measure in ("f1", "accuracy", "sd") for on in ("MELD", "ALL")]
    found, problems = replicates(wanted, runs)
    assert not problems
    draws = {name: drawn(labels) for name, (_, labels) in stored.items()}
    points = np.array(run.result.labels.coordinates)
    for b in (0, 1, 2, 3, 17, RESAMPLES - 1):
        resample = {name: (p[draws[name][b]], y[draws[name][b]]) for name, (p, y) in stored.items()}
        expected = metrics.measure_all(resample, points)
        for want in wanted:
            assert found[want][b] == pytest.approx(expected[want.measure][want.on], abs=1e-5), want


def drawn(labels):
    """The items of every resample [B, N], as the module's docstring says that they are drawn."""
    seed = int.from_bytes(hashlib.sha256(labels.tobytes()).digest()[:8], "big")
    return np.random.default_rng(seed).integers(0, len(labels), (RESAMPLES, len(labels)))


def test_replicates_share_items_across_runs_metrics_and_blocks(factory, monkeypatch):
    jobs = [knot(factory, method, seed, 1.0) for method in ("sinkhorn_e", "entropy_e") for seed in (0, 1)]
    runs, wanted = made(jobs), [Want(job.run_id, "after", "accuracy") for job in jobs]
    alone, _ = replicates(wanted, runs)
    beside, _ = replicates([*wanted, *(Want(job.run_id, "after", "f1") for job in jobs)], runs)
    monkeypatch.setattr(claims_items, "WIDEST", 4)
    blocks, _ = replicates(wanted, runs)
    assert np.array_equal(alone[wanted[0]], alone[wanted[2]])  # the same predictions
    for want in wanted:
        assert np.array_equal(alone[want], beside[want]) and np.array_equal(alone[want], blocks[want])


def test_replicates_name_damaged_predictions_and_keep_others(factory):
    good, bad = (knot(factory, "sinkhorn_e", seed, 1.0) for seed in (0, 1))
    (bad.folder / "predictions.safetensors").write_bytes(b"x" * 100)
    found, problems = replicates([Want(job.run_id, "after", "sd") for job in (good, bad)], made([good, bad], "make it"))
    assert [want.run_id for want in found] == [good.run_id]
    assert str(bad.folder) in problems[bad.run_id] and "make it" in problems[bad.run_id]


def test_accuracy_over_clients_is_binomial_in_each(tmp_path):
    """Four clients in two clusters, the third without test images."""
    job = clustered_runs.job(tmp_path, "affinity", clients=4)
    clusters = {"graph": "affinity", "labels": [0, 0, 1, 1], "sizes": [2, 2], "count": 2}
    clustered_runs.write(job, 0.5, rounds=1, clusters=clusters | {"ari": None, "eigenvalues": []})
    clustered_runs.record_clients(job, [1.0, 0.5, None, 0.25], [40, 10, 0, 20], 0.7)
    wanted = [Want(job.run_id, "after", "accuracy", over=over) for over in ("weighted", "clusters", "unweighted")]
    found, _ = replicates(wanted, made([job]))
    spread = {1: 0.5 * 0.5 * 10, 3: 0.25 * 0.75 * 20}  # of the hits
    expected = [
        (50 / 70, (spread[1] + spread[3]) / 70**2),
        ((45 / 50 + 0.25) / 2, (spread[1] / 50**2 + spread[3] / 20**2) / 4),
        (1.75 / 3, (spread[1] / 10**2 + spread[3] / 20**2) / 9),
    ]
    for want, (mean, variance) in zip(wanted, expected, strict=True):
        assert found[want].mean() == pytest.approx(mean, abs=5 * np.sqrt(variance / RESAMPLES))
        assert found[want].var() == pytest.approx(variance, rel=0.15)


def balanced(test):
    hits, truth = np.diag(test.confusion), test.confusion.sum(1)
    return float(np.mean(hits[truth > 0] / truth[truth > 0]))


def unsure(test):
    """A metric of probabilities: a confusion table is not enough."""
    return float(1 - test.probabilities.max(1).mean())


@pytest.fixture
def own(monkeypatch):
    """Returns a function that registers a metric for one test."""

    def register(name, function, **facts):
        monkeypatch.setitem(METRICS, name, Metric(name, "higher", function, **facts))

    return register


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("on", ["MELD", "ALL"])
@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize(
    ("name", "function", "over", "oracle"),
    [
        ("balanced_accuracy", balanced, "pooled", lambda p, y: balanced_accuracy_score(y, p.argmax(1))),
        ("recall", balanced, "mean", lambda p, y: recall_score(y, p.argmax(1), labels=np.unique(y), average="macro")),
        ("unsure", unsure, "pooled", lambda p, y: 1 - p.astype(np.float64).max(1).mean()),
    ],
)  # fmt: skip
def test_replicates_match_custom_metric_function(factory, own, name, function, over, oracle, side, on):
    own(name, function, over=over)
    job = knot(factory, "sinkhorn_e", 0, 1.0, rows=30)
    (run,) = load_runs([job])
    prefix = "before/" if side == "before" else ""
    stored = {key: pair for key, pair in predictions(run).items() if key.startswith("before/") == bool(prefix)}
    if on != "ALL":
        stored = {prefix + on: stored[prefix + on]}
    want = Want(job.run_id, side, name, on)
    found, problems = replicates([want, Want(job.run_id, side, "f1", on)], {job.run_id: run})
    assert not problems
    for b in (0, 1, 500, RESAMPLES - 1):
        parts = [(shares[drawn(labels)[b]], labels[drawn(labels)[b]]) for shares, labels in stored.values()]
        if over == "pooled":
            parts = [tuple(np.concatenate(column) for column in zip(*parts, strict=True))]
        assert found[want][b] == pytest.approx(np.mean([oracle(*part) for part in parts]), abs=1e-12)


def is_whole(test):
    return len(np.unique(test.probabilities[:, 0])) == len(test.labels)


@pytest.mark.parametrize(("function", "problem"), [
    (lambda test: 0.6, "own of the stored predictions is 0.6, but 0.5 is recorded"),
    (lambda test: 0.5 if is_whole(test) else None, "own is undefined on some resample"),
    (lambda test: 0.5 if is_whole(test) else np.nan, "own is undefined on some resample"),
    (lambda test: 0.5 if is_whole(test) else 1 / 0, "own fails on resampled test examples (ZeroDivisionError"),
])  # fmt: skip
def test_replicates_omit_unusable_metric_with_its_problem(factory, monkeypatch, function, problem):
    ((run_id, run),) = made([knot(factory, "sinkhorn_e", 0, 1.0, rows=30)]).items()
    run.result.metrics["own"] = {"MELD": 0.5}
    monkeypatch.setitem(METRICS.data, "own", Metric("own", "higher", function))
    want = Want(run_id, "after", "own", "MELD")
    found, problems = replicates([want], {run_id: run})
    assert not found and problem in problems[want]


@pytest.mark.parametrize(("resampled", "problem"), [
    (lambda count: np.full(count, np.nan), "of {count} finite"), (lambda count: np.ones(1), "of {count} finite"),
    (lambda count: 1 / 0, "ZeroDivisionError"),
])  # fmt: skip
def test_replicates_omit_failing_sums_with_their_problem(factory, own, resampled, problem):
    own("own", None, of_sums=lambda sums: np.full(1, 0.5) if len(sums.truth) == 1 else resampled(len(sums.truth)))
    ((run_id, run),) = made([knot(factory, "sinkhorn_e", 0, 1.0, rows=30)]).items()
    want = Want(run_id, "after", "own", "MELD")
    found, problems = replicates([want], {run_id: run})
    assert not found and problems[want].startswith("own fails on resampled test examples (")
    assert problem.format(count=RESAMPLES) in problems[want]


def test_claim_on_unresamplable_metric_uses_seeds_alone(factory, monkeypatch):
    own = Metric("own", "higher", lambda test: METRICS["accuracy"].value(test) if is_whole(test) else None)
    monkeypatch.setitem(METRICS.data, "own", own)
    found = judged(grid(factory), claim(measure="own"))[0]
    assert (found.verdict, found.basis) == ("holds", "seeds, not the test items that they share")
    assert "the test items are not resampled: own is undefined on some resample" in found.note


@pytest.mark.parametrize("value", [1, np.float32(0.5), np.int64(1), np.float64(0.25)])
def test_metric_returns_any_kind_of_number(own, value):
    own("own", lambda test: value)
    probabilities = np.eye(2)
    found = metrics.measured(metrics.TestSet(probabilities, probabilities, np.array([0, 1]), None))["own"]
    assert type(found) is float and found == value


@pytest.mark.parametrize("name", ["time", "rounds", "ari", "plain_loss"])
def test_judge_refuses_metric_named_like_claim_measure(factory, own, name):
    own(name, balanced)
    with refuses():
        judged([knot(factory, "sinkhorn_e", 0, 1.0)], claim())
