"""Results are valid for the dataclass of their kind, and the part that cannot be is named."""

import math
from pathlib import Path

import pytest

from knot_runner.config.settings.families import FAMILIES
from knot_runner.results import RunResult, result_of, total_costs
from tests.contents import problem_of
from tests.of_papers import of_papers
from tests.unit.report import made_runs
from tests.unit.report.made_runs import CORESET, COSTS, EXACT, FLEET, KNN, SCORES, Factory, FederatedFactory

PROBE = {"status": "done", "kind": "probe", "task": "mnist", "method": "temperature_probe", "seed": 0,
         "temperatures": [4.0, 0.05], "model": "cnn", "labels": {"names": ["a"]}, "notes": []}  # fmt: skip
TEXTS, IMAGES = Factory(Path()), FederatedFactory(Path())
SPENT = total_costs([COSTS], 1, "models")
#: kind -> a result that is valid
VALID = {
    "probe": PROBE, "distillation": TEXTS.result(TEXTS.job()), "coreset": CORESET, "knn": KNN,
    "federated": IMAGES.result(IMAGES.job(), IMAGES.rows(IMAGES.job(), [0.1, 0.2])),
    "distance": made_runs.distance_result(), "matrix": made_runs.matrix_result(),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "changes"), of_papers([
    *((kind, {}) for kind in VALID), ("federated", {"costs": SPENT}),
    ("distance", {"server_only": []}), ("distance", {"closed_form": 0.0}), ("distance", {"value": 0, "exact": 0}),
    ("matrix", {"groups": [0, 0, 1], "solver": "federated"}),
]))  # fmt: skip
def test_valid_result_has_no_problem(kind, changes):
    assert not problem_of(VALID[kind] | changes)


def test_result_of_a_family_that_is_not_loaded_is_read():
    found = result_of(PROBE | {"kind": "a plug-in's", "anything": 1, "metrics": {"accuracy": {"ALL": 0.5}}})
    assert type(found) is RunResult and found.metrics == {"accuracy": {"ALL": 0.5}} and not hasattr(found, "anything")


@pytest.mark.paper("chill")
def test_diverged_result_needs_no_numbers():
    diverged = {"status": "diverged", "kind": "probe", "task": "m", "method": "x", "seed": 0, "diverged": {}}
    assert not problem_of(diverged)


#: kind -> (what is changed, the part that is named)
INVALID = {
    "probe": [
        ({"temperature": [1.0]}, "temperature: unknown setting"), ({"temperatures": [1.0, 0]}, "temperatures"),
        ({"temperatures": "4"}, "temperatures"), ({"seed": "0"}, "seed"), ({"status": "finished"}, "status"),
    ],
    "distillation": [
        ({"status": "running"}, "status"), ({"metrics": {}}, "metrics"),
        ({"metrics": {"f1": {"MELD": 1.2}}}, "metrics"), ({"metrics": {"sd": {"MELD": -0.1}}}, "metrics"),
        ({"metrics": {"f1": {"MELD": "0.4"}}}, "metrics"), ({"metrics": {"f1": {"MELD": True}}}, "metrics"),
        ({"before": {"f1": {"MELD": 7}}}, "before"), ({"teachers": {"MELD": {"f1": None}}}, "teachers"),
        ({"datasets": {"MELD": 5}}, "datasets"), ({"datasets": {"MELD": {"train": "many"}}}, "datasets"),
        ({"labels": {"names": ["a", "b"], "coordinates": [[0], [1, 2]]}}, "labels"),
        ({"bias": {"MELD": [0.5, 0.5]}}, "bias"),
    ],
    "federated": [
        ({"metrics": {"accuracy": {"ALL": 0.5}}}, "metrics"), ({"metrics": {"accuracy": {"ALL": 1.5}}}, "metrics"),
        ({"best": {"accuracy": 2, "round": 0}}, "best"), ({"rounds": 0}, "rounds"), ({"clients": "many"}, "clients"),
        ({"datasets": {"train": 5}}, "datasets"), ({"labels": {"names": [[1], 2]}}, "labels"),
        ({"rounds_to_target": 0}, "rounds_to_target"), ({"target": -1}, "target"),
        ({"costs": SPENT | {"bytes_up": -1}}, "costs"), ({"fleet": FLEET | {"clock": -1.0}}, "fleet.clock"),
        ({"fleet": FLEET | {"late": 0.5}}, "fleet.late"), ({"fleet": FLEET | {"lost": 1}}, "fleet.lost"),
    ],
    "coreset": [
        ({"points": 0}, "points"), ({"shape": [1, 3]}, "shape"), ({"losses": [1.0, math.nan]}, "losses"),
        ({"losses": []}, "losses"), ({"distance": "guess"}, "distance"), ({"seconds": {"totl": 1.0}}, "seconds"),
        ({"metrics": {"distance": {"ALL": -1.0}}}, "metrics"), ({"classes_covered": 4}, "classes_covered"),
    ],
    "knn": [
        ({"metrics": SCORES | {"accuracy": {"ALL": 1.2}}}, "metrics"), ({"metrics": SCORES | {"f1": None}}, "metrics"),
        ({"clients": True}, "clients"), ({"labels": {"names": "abc"}}, "labels"),
        ({"datasets": {"train": 50}}, "datasets"),
    ],
    "distance": [
        ({"mode": "rough"}, "mode"), ({"value": -1.0}, "value"), ({"exact": math.nan}, "exact"),
        ({"closed_form": None}, "closed_form"), ({"samples": [20]}, "samples"), ({"samples": [20, 0]}, "samples"),
        ({"dimension": "2"}, "dimension"), ({"support": [4, 4]}, "support"), ({"support": [4, 4, 0.5]}, "support"),
        ({"values": [2.0]}, "values"), ({"sums": [1, 2, math.inf]}, "sums"), ({"sums": [1.0]}, "sums"),
        ({"iterations": 4}, "support"),
        ({"seconds": {"total": -1}}, "seconds"), ({"server_only": [1.0]}, "server_only"),
        ({"server_only": "none"}, "server_only"),
    ],
    "matrix": [
        ({"matrix": EXACT[:2]}, "matrix"), ({"matrix": [row[:2] for row in EXACT]}, "matrix"),
        ({"matrix": [[0.0, 1.0, 2.0], [1.5, 0.0, 4.0], [2.0, 4.0, 0.0]]}, "matrix"),
        ({"matrix": [[0.5, 1.0, 2.0], [1.0, 0.0, 4.0], [2.0, 4.0, 0.0]]}, "matrix"),
        ({"matrix": [[0.0, -1.0, 2.0], [-1.0, 0.0, 4.0], [2.0, 4.0, 0.0]]}, "matrix"),
        ({"matrix": [[0.0, math.inf, 2.0], [math.inf, 0.0, 4.0], [2.0, 4.0, 0.0]]}, "matrix"),
        ({"matrix": "EXACT"}, "matrix"), ({"names": ["a", "b"]}, ""), ({"names": [[1], 2, 3]}, "names"),
        ({"solver": "guess"}, "solver"), ({"sizes": [50, 50]}, "sizes"), ({"sizes": [50, 50, -1]}, "sizes"),
        ({"groups": [0, 1]}, "groups"), ({"seconds": {"totl": 1.0}}, "seconds"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes", "named"), of_papers((kind, *case) for kind, cases in INVALID.items() for case in cases)
)
def test_invalid_part_of_a_result_is_named(kind, changes, named):
    problem = problem_of(VALID[kind] | changes)
    assert problem and problem.startswith(named)


@pytest.mark.parametrize("kind", FAMILIES)
def test_kind_problem_reports_missing_keys(kind):
    bare = {"status": "done", "kind": kind, "task": "t", "method": "m", "seed": 0}
    assert "required, but not set" in problem_of(bare)


def test_total_costs_sums_rows_overall_and_to_target():
    rows = [COSTS | {"server_flops": 7, "bytes_up": own} for own in (12, 100, 1000)]
    found = total_costs(rows, 2, "models", example_flops=9)
    assert (found["bytes_up"], found["bytes_down"], found["bytes"]) == (1112, 90, 1202)
    assert found["bytes_to_target"] == 12 + 100 + 60 and found["bytes_per_round"] == pytest.approx(1202 / 3)
    assert (found["client_flops"], found["server_flops"], found["example_flops"]) == (15_000, 21, 9)
    assert found["sent"] == "models" and "Kaplan" in found["formula"]
    assert total_costs(rows, None, "models")["bytes_to_target"] is None
    assert total_costs([COSTS], None, "models")["server_flops"] is None
