"""One request carried out: once, alone, and not waited for while there is other work."""

import contextlib
import dataclasses
from collections import Counter

import pytest
import torch

from knot_runner.config.settings import StageSettings
from knot_runner.engine import loop
from knot_runner.engine.loop import key_of, missing_of, run_each, run_one
from knot_runner.engine.objectives import cross_entropy
from knot_runner.engine.requests import Objective, Predict, StoredPart, Train
from knot_runner.engine.store import Store
from knot_runner.models.network import Network
from knot_runner.util.files import BusyError
from tests.unit.engine.test_loop import SPEC, put_texts


@pytest.fixture
def place(tmp_path):
    torch.set_num_threads(1)
    return loop.Place(Store(tmp_path), torch.device("cpu"), None)


@pytest.fixture
def parties(place):
    first = Train(
        stage="local", party="A", network=Network(SPEC, 500, 3), start=None,
        train=StoredPart(put_texts(place.store, "t", 20, 1)), valid=StoredPart(put_texts(place.store, "v", 10, 2)),
        objective=Objective(cross_entropy), training=StageSettings(1, 16, 1e-2, 0.1), select="f1", seed=7,
    )  # fmt: skip
    return [first, *(dataclasses.replace(first, party=party) for party in "BC")]


def nothing(*event):
    pass


def test_what_is_finished_is_not_missing_and_not_done_again(place, parties):
    assert list(missing_of([*parties, parties[0]], place.store)) == [key_of(request) for request in parties]
    made = run_one(parties[0], place, nothing)
    assert list(missing_of(parties, place.store)) == [key_of(request) for request in parties[1:]]
    assert made.info["title"] == "local A" and made.info["threads"] == 1

    def never(*event):
        raise AssertionError("it was computed again")

    assert run_one(parties[0], place, never) == made


def test_two_roles_share_a_prediction(parties):
    ask = Predict("soft_labels", "A", parties[0].network, ("local", "w"), ("tokens", "t"))
    assert key_of(ask) == key_of(dataclasses.replace(ask, stage="predictions", party="B"))
    assert key_of(ask)[0] == "predictions" and key_of(parties[0])[0] == "local"


def test_busy_ones_come_last(place, parties, monkeypatch):
    monkeypatch.setattr(loop, "RETRY", 0.001)
    finished, said = [], []
    with contextlib.ExitStack() as held:
        held.enter_context(place.store.lock(*key_of(parties[0])))

        def watch(title, done, total, text):
            said.append((title, text))
            if text == "done":
                finished.append(title)
            if len(finished) == 2:
                held.close()

        run_each(parties, place, watch)
    assert finished == ["local B", "local C", "local A"]
    assert ("local A", "another process is at it") in said


def test_it_waits_where_all_that_is_left_is_busy(place, parties, monkeypatch):
    """A and C are busy for three tries each. The first wait comes after both were tried once B was done."""
    tries, waits = Counter(), []

    def try_one(request, place, watch):
        tries[request.party] += 1
        if request.party != "B" and tries[request.party] <= 3:
            raise BusyError("lock")

    monkeypatch.setattr(loop, "run_one", try_one)
    monkeypatch.setattr(loop.time, "sleep", lambda seconds: waits.append((seconds, tries["A"], tries["C"])))
    run_each(parties, place, nothing)
    assert tries == {"A": 4, "B": 1, "C": 4}
    assert waits == [(loop.RETRY, *tried) for tried in ((2, 1), (2, 2), (3, 2), (3, 3))]
