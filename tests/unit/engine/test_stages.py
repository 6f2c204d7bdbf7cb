"""One request carried out: once, alone, and not waited for while there is other work."""

import dataclasses
from collections import Counter

import pytest
import torch

from knot_runner.engine import execute, loop
from knot_runner.engine.execute import Executor
from knot_runner.engine.loop import key_of, missing_of, run_one
from knot_runner.engine.requests import Predict
from knot_runner.util.files import BusyError
from tests.unit.engine.test_execute import ONE, fill, nothing, training


@pytest.fixture
def place(tmp_path):
    return loop.Resources(fill(tmp_path), torch.device("cpu"), None)


@pytest.fixture
def parties():
    """Three trainings that differ by their party."""
    return [training(party) for party in "ABC"]


def test_missing_of_and_run_one_skip_finished_requests(place, parties):
    assert list(missing_of([*parties, parties[0]], place.store)) == [key_of(request) for request in parties]
    made = run_one(parties[0], place, nothing)
    assert list(missing_of(parties, place.store)) == [key_of(request) for request in parties[1:]]
    assert made.info["title"] == "local A" and made.info["threads"] == 1

    def never(*event):
        raise AssertionError("it was computed again")

    assert run_one(parties[0], place, never) == made


def test_key_of_ignores_prediction_role(parties):
    ask = Predict("soft_labels", "A", parties[0].network, ("local", "w"), ("tokens", "t"))
    assert key_of(ask) == key_of(dataclasses.replace(ask, stage="predictions", party="B"))
    assert key_of(ask)[0] == "predictions" and key_of(parties[0])[0] == "local"


def test_executor_waits_when_remaining_requests_are_busy(tmp_path, parties, monkeypatch):
    """A and C are busy for three tries each. Each pass tries them once, and then waits."""
    executor, tries, waits = Executor(fill(tmp_path), ONE, None, [], nothing), Counter(), []

    def try_one(request, place, watch):
        tries[request.party] += 1
        if request.party != "B" and tries[request.party] <= 3:
            raise BusyError("lock")

    monkeypatch.setattr(execute, "run_one", try_one)
    monkeypatch.setattr(execute.time, "sleep", lambda seconds: waits.append((seconds, tries["A"], tries["C"])))
    executor._compute(parties)
    assert tries == {"A": 4, "B": 1, "C": 4}
    assert waits == [(execute.RETRY, tried, tried) for tried in (1, 2, 3)]
