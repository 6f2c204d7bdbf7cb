"""Pieces of a verdict, each against a small example by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from knot_runner.report.claims import evidence
from knot_runner.report.claims.items import Want
from knot_runner.report.claims.measures import read_measure
from knot_runner.report.claims.pairs import EffectPart, Unit
from knot_runner.report.claims.spec import Claim
from knot_runner.report.statistics.effects import EffectEstimate
from knot_runner.report.statistics.error_control import MAX_SEEDS, seeds_suggested
from knot_runner.report.tables.chilling import check_target
from tests.golden.messages import refuses

COLDER = Claim("colder is better", "here", "accuracy", "higher", {"method.temperature": 1}, {"method.temperature": 4})


def run_of(name, status="done", **result):
    return SimpleNamespace(job=SimpleNamespace(run_id=name, config={}), status=status, result=result, problem="")


def effect(cell, seed, *parts):
    return evidence.Effect(Unit(cell, seed, tuple(parts)), value=0.0)


def test_only_cells_with_the_most_seeds_count_and_only_at_seeds_that_all_of_them_have():
    """Cells a and b have two seeds and share seed 1; c has one, which is seed 1, too, and does not count."""
    found = [effect(*place) for place in (("a", 0), ("a", 1), ("b", 1), ("b", 2), ("c", 1))]
    kept = evidence._balanced(found)
    assert [(one.unit.cell, one.unit.seed) for one in kept] == [("a", 1), ("b", 1)]


def test_one_seeds_mean_effect_on_resampled_items():
    """Two effects, of 3 - 1 and 8 - 4 on the first resample, 5 - 2 and 6 - 6 on the second: means 3 and 1.5."""
    ours, theirs = [run_of("w"), run_of("x")], [run_of("y"), run_of("z")]
    pairs = [effect("a", 0, EffectPart(1.0, a), EffectPart(-1.0, b)) for a, b in zip(ours, theirs, strict=True)]
    numbers = {"w": [3.0, 5.0], "y": [1.0, 2.0], "x": [8.0, 6.0], "z": [4.0, 6.0]}
    bank = {Want(name, "after", "accuracy"): np.array(values) for name, values in numbers.items()}
    assert evidence._again(COLDER, pairs, bank).tolist() == [3.0, 1.5]


@pytest.mark.parametrize(("statuses", "apart"), [
    (("done", "done"), False), (("diverged", "done"), True), (("diverged", "diverged"), False),
])  # fmt: skip
def test_a_claim_whose_runs_diverge_on_one_side_alone_says_so(statuses, apart):
    sides = [run_of(name, status) for name, status in zip("wy", statuses, strict=True)]
    pair = effect("a", 0, EffectPart(1.0, sides[0]), EffectPart(-1.0, sides[1]))
    bank = {Want(name, "after", "accuracy"): np.array([0.5, 0.6]) for name in "wy"}
    assert evidence._evidence(COLDER, [pair], bank, {}, 1, None).one_sided is apart


def test_claims_decided_at_once_need_more_seeds_and_a_suggestion_is_at_least_one():
    estimate = EffectEstimate(effect=1.0, seeds=3, spread=1.0)
    alone, among = (seeds_suggested(estimate, 1.0, 3, 3, claims) for claims in (1, 40))
    assert 0 < alone < among <= MAX_SEEDS
    clear = EffectEstimate(effect=100.0, seeds=6, spread=1.0)
    assert seeds_suggested(clear, 100.0, 3, 6, 1) == 6  # the look at 6 is over: the next is at 12


def test_clusters_alike_are_clients_by_their_examples_where_there_are_no_clusters():
    over = Claim("x", "here", "accuracy", {"above": 0.1}, over="clusters")
    run = run_of("w", metrics={"client_accuracy": {"weighted": 0.25, "unweighted": 0.75}})
    assert read_measure(over, run, "after", None).value == 0.25
    run.result["metrics"]["client_accuracy"]["clusters"] = 0.5
    assert read_measure(over, run, "after", None).value == 0.5


def test_a_target_is_an_accuracy_above_0_and_at_most_1():
    assert check_target(1) == 1.0 and check_target(0.74) == 0.74 and check_target("best_of_T4") == "best_of_T4"
    for wrong in (0, -0.1, 1.01, True, "best"):
        with refuses():
            check_target(wrong)
