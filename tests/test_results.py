"""Results are what their dataclasses say, when they are written and when they are read."""

from __future__ import annotations

import pytest

from knot_runner.results import RESULTS, check_written, kind_problem

PROBE = {"status": "done", "kind": "probe", "task": "mnist", "method": "temperature_probe", "seed": 0,
         "temperatures": [4.0, 0.05], "model": "cnn", "labels": {"names": ["a"]}, "notes": []}  # fmt: skip


def test_a_result_that_is_as_it_should_be_is_written():
    check_written(PROBE)
    check_written({**PROBE, "kind": "a plug-in's", "anything": 1})
    check_written({"status": "diverged", "kind": "probe", "task": "m", "method": "x", "seed": 0, "diverged": {}})


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
def test_a_run_that_would_write_anything_else_stops(changes, named):
    with pytest.raises(ValueError, match="a result that ProbeResult does not allow") as problem:
        check_written({**PROBE, **changes})
    assert named in str(problem.value)


def test_what_another_version_wrote_besides_is_left_alone():
    assert not kind_problem({**PROBE, "spectrum": [1, 2]})
    assert "temperatures" in kind_problem({key: part for key, part in PROBE.items() if key != "temperatures"})


@pytest.mark.parametrize("kind", RESULTS)
def test_a_result_without_its_own_keys_is_none(kind):
    bare = {"status": "done", "kind": kind, "task": "t", "method": "m", "seed": 0}
    assert "is not set" in kind_problem(bare)
