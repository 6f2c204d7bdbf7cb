"""Which runs decide a claim: pairs that differ in nothing else, averaged by seed."""

import json

import numpy as np
import pytest

from knot_runner.report.run_folders import load_runs
from tests.golden.messages import refuses
from tests.unit.report import clustered_runs
from tests.unit.report.claimed import claim, grid, judged, knot, rewrite
from tests.unit.report.clustered_runs import job as clustered
from tests.unit.report.clustered_runs import write


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
    assert bool(left_out) == (f"{left_out} of 6 effects left out: some settings have fewer seeds" in found.note)


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
    """Accuracy over clients is resampled from rounds.jsonl and partition.json; without them the runs are left out."""
    found = judged(clustered_runs.two_seeds(tmp_path), lift())[0]
    assert found.verdict == "no runs" and "have no rounds.jsonl" in found.note
