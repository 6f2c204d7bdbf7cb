"""How alike two runs are: each of the four answers, and what does not count."""

from __future__ import annotations

import copy
import math

import pytest
from scipy.stats import binomtest

from knot_runner.bundles.compare import compare_rounds, compare_whole
from tests.contents import LEAST, result_with

RESULT = {
    "metrics": LEAST["federated"]["metrics"] | {"accuracy": {"ALL": 0.8}, "loss": {"ALL": 1.25}}, "clients": 6,
    "datasets": {"train": 500, "test": 100}, "parameters": 10**6, "best": {"accuracy": 0.8, "round": 2},
    "seconds": {"total": 3.0}, "code": "a",
    "digest": {"model.safetensors": "x", "config.yaml": "c", "result.json": "r", "rounds.jsonl": "l"},
}  # fmt: skip
ROWS = [{"round": r, "participants": [r, 3], "accuracy": 0.5 + 0.1 * r, "loss": 2.0, "seconds": r} for r in range(3)]


def changed(**values):
    made = copy.deepcopy(RESULT)
    for key, value in values.items():
        *above, last = key.split("__")
        place = made
        for name in above:
            place = place[name]
        place[last] = value
    return made


def whole(was, rows, now, new_rows):
    return compare_whole(result_with(was), rows, result_with(now), new_rows)


def answer(now, rows=ROWS, was=RESULT):
    return whole(was, ROWS, now, rows).likeness


def test_compare_whole_ignores_timings_code_and_notes():
    now = changed(seconds={"total": 9.0}, code="b", notes=["other"], device="cuda")
    rows = [row | {"seconds": 9.0} for row in ROWS]
    found = whole(RESULT, ROWS, now, rows)
    assert (found.likeness, found.differences) == ("the same bits", [])
    assert found.extent == ", 24 values of the result and 1 files"


@pytest.mark.parametrize("values", [
    {"metrics__loss__ALL": 1.25 * (1 + 0.9e-3)}, {"metrics__accuracy__ALL": 0.80009},
    {"metrics__loss__ALL": math.nextafter(1.25, 2)}, {"digest__model.safetensors": "y"}
])  # fmt: skip
def test_compare_whole_accepts_differences_within_rounding(values):
    assert answer(changed(**values)) == "within rounding"


@pytest.mark.parametrize("values", [
    {"metrics__loss__ALL": 1.25 * (1 + 1.1e-3)}, {"clients": 7}, {"clients": 7, "metrics__accuracy__ALL": 0.81},
    {"best__round": 3}, {"parameters": 10**6 + 1},
])  # fmt: skip
def test_compare_whole_falls_back_to_accuracy_interval(values):
    assert answer(changed(**values)) == "within the interval"


def test_compare_whole_centers_interval_on_recorded_accuracy():
    low, high = binomtest(80, 100).proportion_ci(0.95, method="wilson")
    assert answer(changed(metrics__accuracy__ALL=low + 1e-6)) == "within the interval"
    assert answer(changed(metrics__accuracy__ALL=high + 1e-6)) == "not the same"
    found = whole(RESULT, ROWS, changed(metrics__accuracy__ALL=0.5), ROWS)
    assert found.likeness == "not the same"
    assert found.intervals == [f"accuracy ALL: 0.5000 now; 0.8000 recorded, with 95% interval [{low:.4f}, {high:.4f}]"]
    assert found.differences == ["metrics.accuracy.ALL: 0.8 recorded, 0.5 now"]


def test_compare_whole_judges_data_sets_without_a_total():
    sizes = {"a": {"role": "local", "test": 40}, "b": {"role": "local", "test": 60}}

    def answered(was, now):
        labels = {"names": ["a", "b"], "coordinates": [[0.0], [1.0]]}
        least = {"kind": "distillation", "datasets": sizes, "labels": labels}
        results = [least | {"metrics": {"accuracy": values}} for values in (was, now)]
        return whole(results[0], [], results[1], []).likeness

    apart, together = {"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5, "ALL": 0.5}
    assert answered(apart, {"a": 0.6, "b": 0.6}) == "within the interval"
    assert answered(apart, {"a": 0.7, "b": 0.6}) == "not the same"
    assert answered(together, {"a": 0.9, "b": 0.3, "ALL": 0.595}) == "within the interval"
    assert answered(together, {"a": 0.5, "b": 0.3, "ALL": 0.601}) == "not the same"  # of 100


def test_rows_count_and_so_does_their_number():
    other = copy.deepcopy(ROWS)
    other[1]["loss"] = 2.001
    assert answer(RESULT, other) == "within rounding"
    other[1]["participants"] = [3, 1]
    found = whole(RESULT, ROWS, RESULT, other)
    assert found.likeness == "within the interval"
    assert found.differences[0] == "rounds[1].participants[0]: 1 recorded, 3 now"
    assert answer(RESULT, ROWS[:2]) == "within the interval" and answer(RESULT, [*ROWS, ROWS[0]]) != "the same bits"


def test_compare_whole_lists_the_largest_differences_first():
    rows = [row | {"loss": row["loss"] * (1 + 0.1 * row["round"]), "accuracy": 0.01} for row in ROWS]
    found = whole(RESULT, ROWS, RESULT, rows).differences
    assert [line.partition(":")[0] for line in found] == [
        "rounds[2].accuracy", "rounds[1].accuracy", "rounds[0].accuracy", "and 2 more values",
    ]  # fmt: skip


def test_compare_rounds_judges_the_first_rounds_alone():
    cut = copy.deepcopy(ROWS[:2])
    cut[-1] |= {"f1": 0.3, "seconds": 8.0}  # measured after the last round
    found = compare_rounds(result_with(RESULT), ROWS[:2], cut)
    assert (found.likeness, found.extent) == ("the same bits", "")
    cut[-1]["accuracy"] = 0.65
    found = compare_rounds(result_with(RESULT), ROWS[:2], cut)
    assert found.likeness == "within the interval" and "accuracy of round 2: 0.6500 now" in found.intervals[0]
    cut[-1]["accuracy"] = 0.9
    assert compare_rounds(result_with(RESULT), ROWS[:2], cut).likeness == "not the same"
