"""Measures on resampled test items, compared with the metrics of explicit resamples."""

import hashlib
import json

import numpy as np
import pytest

from knot_runner import METRICS, Metric, metrics
from knot_runner.pipelines.parties.evaluation import measure_all
from knot_runner.report.claims.items import Want, replicates
from knot_runner.report.run_folders import load_runs, predictions
from knot_runner.report.statistics.intervals import RESAMPLES
from tests.golden.messages import refuses
from tests.unit.report import clustered_runs
from tests.unit.report.claimed import claim, grid, judged, knot, rewrite
from tests.unit.report.clustered_runs import job as clustered
from tests.unit.report.clustered_runs import write


def made(jobs, command=""):
    return {run.run_id: run for run in load_runs(jobs, command)}


@pytest.mark.parametrize(("side", "rows"), [("after", 40), ("before", 40), ("after", 4)])  # of 4, most miss a class
def test_replicates_are_the_metrics_of_each_resample(factory, side, rows):
    runs = made([knot(factory, "sinkhorn_e", 0, 1.0, rows=rows)])
    ((run_id, run),) = runs.items()
    stored = predictions(run, side)
    wanted = [Want(run_id, side, measure, on) for measure in ("f1", "accuracy", "sd") for on in ("MELD", "ALL")]
    found, problems = replicates(wanted, runs)
    assert not problems
    draws = {name: drawn(labels) for name, (_, labels) in stored.items()}
    points = np.array(run.result.labels.coordinates)
    for b in (0, 1, 2, 3, 17, RESAMPLES - 1):
        resample = {name: (p[draws[name][b]], y[draws[name][b]]) for name, (p, y) in stored.items()}
        expected = measure_all(resample, points)
        for want in wanted:
            assert found[want][b] == pytest.approx(expected[want.measure][want.on], abs=1e-5), want


def drawn(labels):
    """The items of every resample [B, N], as the module's docstring says that they are drawn."""
    seed = int.from_bytes(hashlib.sha256(labels.tobytes()).digest()[:8], "big")
    return np.random.default_rng(seed).integers(0, len(labels), (RESAMPLES, len(labels)))


def test_replicates_share_items_across_runs_and_metrics(factory):
    jobs = [knot(factory, method, seed, 1.0) for method in ("sinkhorn_e", "entropy_e") for seed in (0, 1)]
    runs, wanted = made(jobs), [Want(job.run_id, "after", "accuracy") for job in jobs]
    alone, _ = replicates(wanted, runs)
    beside, _ = replicates([*wanted, *(Want(job.run_id, "after", "f1") for job in jobs)], runs)
    assert np.array_equal(alone[wanted[0]], alone[wanted[2]])  # the same predictions
    for want in wanted:
        assert np.array_equal(alone[want], beside[want])


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


@pytest.fixture
def own(monkeypatch):
    """Returns a function that registers a metric for one test."""

    def register(name, function, **facts):
        monkeypatch.setitem(METRICS, name, Metric(name, "higher", function, **facts))

    return register


@pytest.mark.parametrize(("resampled", "problem"), [
    (lambda count: np.full(count, np.nan), "of length {count}"), (lambda count: np.ones(1), "of length {count}"),
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
    monkeypatch.setitem(METRICS.data, "own", Metric("own", "higher", METRICS["accuracy"].value))
    found = judged(grid(factory), claim(measure="own"))[0]
    assert (found.verdict, found.basis) == ("holds", "seeds, not the test items that they share")
    assert "the test items are not resampled: own is not computed from sums over examples" in found.note


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


def test_pairs_agree_on_all_other_settings(factory):
    methods = ("sinkhorn_a", "sinkhorn_e", "entropy_a", "entropy_e")
    jobs = [knot(factory, m, seed, skill) for m, skill in zip(methods, (1, 2, 1, 1.5), strict=True) for seed in (0, 1)]
    weighting = judged(jobs, claim(of={"method.weighting": "e"}, against={"method.weighting": "a"}))[0]
    assert weighting.runs == 8  # E with A of its own loss
    loss = judged(jobs, claim(of={"method.loss.name": "sinkhorn"}, against={"method.loss.name": "entropy"}))[0]
    assert loss.runs == 8  # a name takes with it what it selects: epsilon, form
    f1 = {(job.method, job.seed): run.metric("f1", "ALL") for job, run in zip(jobs, load_runs(jobs), strict=True)}
    gains = [f1[f"{loss}_e", seed] - f1[f"{loss}_a", seed] for seed in (0, 1) for loss in ("sinkhorn", "entropy")]
    assert weighting.effect == pytest.approx(np.mean(gains))


def test_judge_refuses_two_runs_of_one_side(factory):
    jobs = grid(factory, seeds=1)
    other = knot(factory, "entropy_e", 0, 1.0, label="again")
    other.config["method"]["form"] = "b"
    with refuses():
        judged([*jobs, other], claim())


LIFT = {"measure": "accuracy", "over": "clusters", "of": {"method.clustering.graph": "affinity"}}


def lift(**changes):
    return claim(**{**LIFT, "against": {"method.clustering.graph": "none"}, **changes})


def with_clients(jobs):
    """All hits at the recorded share."""
    for job in jobs:
        result = json.loads((job.folder / "result.json").read_text())
        share, clients = result["metrics"]["client_accuracy"]["clusters"], result["clients"]
        rewrite(job.folder, rounds=1)
        clustered_runs.record_clients(job, [share] * clients, [100_000] * clients, share)
    return jobs


@pytest.mark.parametrize(("absent", "effects", "left_out"), [
    ([], [20, 21, 21], 0),
    ([-1], [10, 11, 11], 2),  # 40 clients have two seeds, 20 clients three
    ([-3, 5], [21], 2),  # both have two seeds, and share the middle one
], ids=["none", "one", "two"])  # fmt: skip
def test_effect_averages_pairs_of_settings_with_most_seeds(tmp_path, absent, effects, left_out):
    gained = [
        write(clustered(tmp_path, graph, seed, n), 0.5 + (graph != "none") * (gain + 0.01 * bool(seed)))
        for n, gain in ((20, 0.1), (40, 0.3))
        for graph in ("none", "affinity")
        for seed in (0, 1, 2)
    ]
    jobs = with_clients(gained)
    for at in absent:
        (jobs[at].folder / "result.json").unlink()
    found = judged(jobs, lift())[0]
    assert found.effect == pytest.approx(np.mean(effects)) and found.seeds == len(effects)
    assert bool(left_out) == (f"{left_out} of 6 effects left out: their seeds are missing" in found.note)


def test_judge_pairs_repeated_run_with_each_side(tmp_path):
    jobs = []
    for support in (10, 100):
        for seed in (0, 1):
            jobs.append(write(clustered(tmp_path, "none", seed, support=support), 0.2))
            jobs.append(write(clustered(tmp_path, "affinity", seed, support=support), 0.5 + support / 1000))
    assert jobs[0].run_id == jobs[4].run_id
    found = judged(with_clients(jobs), lift())[0]
    assert found.effect == pytest.approx(35.5) and found.runs == 6


@pytest.mark.parametrize(("expect", "indices", "verdict"), [
    ({"above": 0.9}, (0.99, 1.0, 0.98), "holds"), ({"below": 0.9}, (0.99, 1.0, 0.98), "does not hold"),
    ({"above": 0.9}, (0.90, 0.90, 0.90), "undecided"),  # equal to the bound: neither above nor below
    ({"below": 0.9}, (0.90, 0.90, 0.90), "undecided"), ({"below": 0.9}, (0.61, 0.62, 0.63), "holds"),
    ({"above": 0.9}, (0.61, 0.62, 0.63), "does not hold"),
])  # fmt: skip
def test_level_is_compared_with_a_bound(tmp_path, expect, indices, verdict):
    jobs = [write(clustered(tmp_path, "affinity", seed), 0.5, ari=ari) for seed, ari in enumerate(indices)]
    found = judged(jobs, claim(measure="ari", of=LIFT["of"], against=None, expect=expect))[0]
    assert (found.verdict, found.signed, found.basis) == (verdict, False, "seeds")
    assert found.effect == pytest.approx(np.mean(indices))


def test_accuracy_interval_stays_within_0_and_100(tmp_path):
    jobs = [write(clustered(tmp_path, "affinity", seed), value) for seed, value in enumerate((0.9, 0.98, 0.99))]
    found = judged(with_clients(jobs), claim(**LIFT, against=None, expect={"above": 50}))[0]
    assert found.effect == pytest.approx(100 * (0.9 + 0.98 + 0.99) / 3) and 80 < found.low < 90 and found.high == 100


@pytest.mark.parametrize(("over", "gain"), [("clusters", 20.0), ("weighted", 5.0), ("unweighted", 10.0)])
def test_client_weightings_read_their_own_accuracy(tmp_path, over, gain):
    jobs = with_clients([write(clustered(tmp_path, g, s), 0.5) for g in ("none", "affinity") for s in (0, 1, 2)])
    for job in jobs[3:]:
        metrics = json.loads((job.folder / "result.json").read_text())["metrics"]
        rewrite(
            job.folder, metrics=metrics | {"client_accuracy": {"clusters": 0.7, "weighted": 0.55, "unweighted": 0.6}}
        )
    assert judged(jobs, lift(over=over))[0].effect == pytest.approx(gain)


def test_judge_uses_sign_test_for_equal_seeds(tmp_path):
    jobs = [write(clustered(tmp_path, "affinity", seed), 0.5, ari=1.0) for seed in range(6)]
    index = claim(measure="ari", of=LIFT["of"], against=None, expect={"above": 0.9})
    assert judged(jobs, index, seeds=6)[0].verdict == "holds"  # 2^-5 = .031, below .05 * 2/3
    few = judged(jobs[:5], index, seeds=5)[0]  # 2^-4
    assert few.verdict == "undecided" and few.more_seeds == 5 and few.low is None and "sign test" in few.note


def test_judge_treats_value_list_as_one_side(factory):
    skills = {"sinkhorn_a": 2, "sinkhorn_e": 2, "entropy_e": 1}
    jobs = [knot(factory, method, seed, skill) for method, skill in skills.items() for seed in (0, 1)]
    found = judged(jobs, claim(of={"method.name": ["sinkhorn_a", "sinkhorn_e"]}))[0]
    assert found.runs == 6 and found.seeds == 2


def test_accuracy_over_clients_needs_its_records(tmp_path):
    """Accuracy over clients is resampled from rounds.jsonl and partition.json; without them only seeds count."""
    found = judged(clustered_runs.two_seeds(tmp_path), lift())[0]
    assert found.effect == pytest.approx(72)
    assert "items are not resampled: runs of kind 'federated' do not save rounds.jsonl" in found.note
