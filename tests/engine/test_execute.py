"""The executor of a run by itself: when it deals requests to workers, and that they end with it.

Real worker processes are in ``test_shared_executor.py`` and ``tests/test_resume.py``; here threads stand in for them.
"""

import os
import threading

import pytest
import torch

from knot_runner.config.settings import HardwareSettings
from knot_runner.engine import execute
from knot_runner.engine.execute import Executor
from knot_runner.engine.hardware import worker_count
from knot_runner.engine.loop import key_of, run_one
from knot_runner.engine.requests import Predict
from knot_runner.engine.store import Store
from knot_runner.engine.worker import Event
from tests.engine.test_loop import put_texts
from tests.engine.test_shared_executor import NETWORK, ONE, nothing, training

pytestmark = pytest.mark.machine

TWO = HardwareSettings("cpu", "cpu", 1, 2)


def fill(path):
    store = Store(path)
    put_texts(store, "t", 40, 1)
    put_texts(store, "v", 20, 2)
    return store


class InThread:
    """A worker that trains in its thread, one at a time, since torch's global generator is one for all."""

    turn = threading.Lock()

    def __init__(self, place, hardware, plugins):
        self._place, self.ended = place, False

    def run(self, request, on_event):
        try:
            with self.turn:
                run_one(request, self._place, lambda *event: on_event(Event(*event)))
        except Exception as problem:
            return problem

    def stop(self):
        self.ended = True

    def reap(self):
        self.ended = True


@pytest.fixture
def workers(monkeypatch):
    """The workers that were started."""
    made = []

    def start(*arguments):
        made.append(InThread(*arguments))
        return made[-1]

    monkeypatch.setattr(execute, "Worker", start)
    return made


def test_two_workers_or_none_the_same_numbers_and_a_busy_one_last(tmp_path, workers):
    """The second of three trainings is held by somebody else until the other two are made."""
    requests = [training(party) for party in "ABC"]
    stores = [fill(tmp_path / name) for name in ("workers", "alone")]
    with Executor(stores[1], ONE, None, [], nothing) as executor:
        expected = executor(requests)
    assert not workers
    lock = stores[0].lock(*key_of(requests[1]))
    lock.__enter__()
    done = []

    def watch(title, finished, total, text):
        if text == "done":
            done.append(title)
            if len(done) == 2:
                lock.__exit__(None, None, None)

    with Executor(stores[0], TWO, None, [], watch) as executor:
        made = executor(requests)
        assert executor(requests) == made and len(done) == 3
    assert done[2] == "local B" and len(workers) == 2 and all(worker.ended for worker in workers)
    for artefact, one in zip(made, expected, strict=True):
        mine, theirs = artefact.tensors(), one.tensors()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs) and mine.keys() == theirs.keys()


def test_short_work_starts_no_workers(tmp_path, workers):
    store = fill(tmp_path)
    with Executor(store, TWO, None, [], nothing) as executor:
        executor([training("A")])
        asks = [Predict("predictions", "A", NETWORK, key_of(training("A")), ("tokens", text)) for text in "tv"]
        assert [len(artefact.tensors()["logits"]) for artefact in executor(asks)] == [40, 20]
    assert not workers


def test_an_interrupted_run_takes_its_workers_with_it(tmp_path, workers):
    def watch(*event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Executor(fill(tmp_path), TWO, None, [], watch) as executor:
        executor([training(party) for party in "AB"])
    assert workers and all(worker.ended for worker in workers)
    with pytest.raises(RuntimeError, match="have ended"):
        executor([training(party) for party in "CD"])


def test_workers_are_one_per_core_unless_said():
    assert worker_count(ONE) == 1 and worker_count(TWO) == 2
    assert worker_count(HardwareSettings("cpu", "cpu", 1, 0)) == len(os.sched_getaffinity(0))
