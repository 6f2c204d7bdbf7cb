"""Results are valid for the dataclass of their kind."""

from __future__ import annotations

import pytest

from knot_runner.results import RESULTS, kind_problem

PROBE = {"status": "done", "kind": "probe", "task": "mnist", "method": "temperature_probe", "seed": 0,
         "temperatures": [4.0, 0.05], "model": "cnn", "labels": {"names": ["a"]}, "notes": []}  # fmt: skip


def test_results_that_fit_their_dataclass_have_no_problem():
    assert not kind_problem(PROBE)
    assert not kind_problem({**PROBE, "kind": "a plug-in's", "anything": 1})
    diverged = {"status": "diverged", "kind": "probe", "task": "m", "method": "x", "seed": 0, "diverged": {}}
    assert not kind_problem(diverged)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"temperature": [1.0]}, "unknown keys ['temperature']"),
        ({"temperatures": [1.0, 0]}, "temperatures"),
        ({"temperatures": "4"}, "temperatures"),
        ({"seed": "0"}, "seed"),
        ({"status": "finished"}, "status"),
    ],
)
def test_an_invalid_value_is_named(changes, named):
    assert kind_problem({**PROBE, **changes}).startswith(named)


@pytest.mark.parametrize("kind", RESULTS)
def test_a_result_without_its_own_keys_is_none(kind):
    bare = {"status": "done", "kind": kind, "task": "t", "method": "m", "seed": 0}
    assert "is not set" in kind_problem(bare)
