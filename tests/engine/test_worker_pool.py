"""Dealing requests to workers, with workers that are no processes: every ending reaches those it concerns."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.config.settings import StageSettings
from knot_runner.engine import worker_pool
from knot_runner.engine.objectives import cross_entropy
from knot_runner.engine.requests import Objective, Predict, StoredPart, Train
from knot_runner.engine.worker import Event
from knot_runner.engine.worker_pool import DEATHS, WorkerPool
from knot_runner.models.network import Network
from knot_runner.util.errors import UserError
from knot_runner.util.files import BusyError
from knot_runner.util.workers import WorkerDied
from tests.engine.test_loop import SPEC

pytestmark = pytest.mark.machine

NETWORK = Network(SPEC, 500, 3)
PART = StoredPart(("tokens", "t"))


def training(name):
    return Train(
        stage="local", party=name, network=NETWORK, start=None, train=PART, valid=PART,
        objective=Objective(cross_entropy), training=StageSettings(1, 16, 1e-3, 0.0), select="f1", seed=0,
    )  # fmt: skip


def asked(*names):
    """Requests by keys, as the pool gets them; a name with a question mark is a prediction."""
    return {
        ("x", name): Predict("predictions", name, NETWORK, ("local", "w"), ("tokens", "t"))
        if name.endswith("?")
        else training(name)
        for name in names
    }


def nothing(*event):
    pass


class Script:
    """Workers that do what ``endings[party]`` lists, one entry per attempt, then succeed; and what was seen of it."""

    def __init__(self, endings=(), gates=()):
        self.endings = {name: list(steps) for name, steps in dict(endings).items()}
        self.lock, self.begun, self.done, self.now = threading.Lock(), [], Counter(), set()
        self.gates, self.alone, self.reaped, self.stops = dict(gates), [], 0, 0

    def __call__(self):
        return self

    def run(self, request, on_event):
        name = request.party
        with self.lock:
            assert name not in self.now, "the same request twice at once"
            self.now.add(name)
            self.begun.append(name)
            self.alone.append(len(self.now) == 1)
            step = self.endings[name].pop(0) if self.endings.get(name) else None
        on_event(Event(name, 1, 2, "half"))
        if name in self.gates:
            assert self.gates[name].wait(10)
        with self.lock:
            self.now.discard(name)
            self.done[name] += step is None
        if step is WorkerDied:
            raise WorkerDied
        return step

    def stop(self):
        self.stops += 1

    def reap(self):
        self.reaped += 1


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(worker_pool, "RETRY", 0.001)


def test_all_are_carried_out_and_watched():
    script, seen = Script(), []
    pool = WorkerPool(script, 2)
    pool.run(asked("a", "b", "c"), lambda *event: seen.append(event))
    assert script.done == {"a": 1, "b": 1, "c": 1}
    assert {(name, 1, 2, "half") for name in "abc"} == set(seen)
    pool.close()


def test_predictions_first_then_what_most_wait_for():
    gate = threading.Event()
    script = Script(gates={"first": gate})
    pool = WorkerPool(script, 1)
    with ThreadPoolExecutor(4) as jobs:
        first = jobs.submit(pool.run, asked("first"), nothing)
        _until(lambda: script.begun)  # the only worker is taken
        waiting = [jobs.submit(pool.run, asked("one", "both"), nothing)]
        _until(lambda: len(pool._tickets) == 3)
        waiting.append(jobs.submit(pool.run, asked("both", "p?"), nothing))
        _until(lambda: len(pool._tickets) == 4)
        gate.set()
        for future in (first, *waiting):
            future.result(10)
    assert script.begun == ["first", "p?", "both", "one"]
    assert set(script.done.values()) == {1}
    pool.close()


def test_one_that_fails_concerns_those_who_wait_for_it():
    gate = threading.Event()
    script = Script({"bad": [ValueError("a bug")]}, {"bad": gate})
    pool = WorkerPool(script, 1)
    with ThreadPoolExecutor(3) as jobs:
        futures = [jobs.submit(pool.run, asked("bad"), nothing)]
        _until(lambda: script.begun)
        futures += [jobs.submit(pool.run, asked(*names), nothing) for names in (["bad", "c"], ["ok"])]
        _until(lambda: sum(len(ticket.inboxes) for ticket in list(pool._tickets.values())) == 4)
        gate.set()
        problems = [future.exception(10) for future in futures]
    assert [type(problem) for problem in problems] == [ValueError, ValueError, type(None)]
    assert problems[0] is not problems[1]  # each has a traceback of its own
    pool.run(asked("bad"), nothing)  # an error is not kept: the next who asks has it tried again
    assert script.done["bad"] == 1
    pool.close()


def test_a_request_that_kills_is_tried_alone_and_then_given_up():
    script = Script({"killer": [WorkerDied] * (DEATHS + 1), "unlucky": [WorkerDied] * DEATHS})
    pool = WorkerPool(script, 2)
    with ThreadPoolExecutor(3) as jobs:
        killer = jobs.submit(pool.run, asked("killer"), nothing)
        others = [jobs.submit(pool.run, asked(*names), nothing) for names in (["unlucky"], list("abcdef"))]
        with pytest.raises(UserError, match="hardware.workers: a worker process died"):
            killer.result(10)
        for other in others:
            other.result(10)
    for name in ("killer", "unlucky"):
        tries = [place for place, begun in enumerate(script.begun) if begun == name]
        assert len(tries) == DEATHS + 1 and script.alone[tries[-1]]
    pool.close()
    assert script.reaped == script.stops == 2


def test_the_last_try_waits_until_nothing_else_runs():
    gate = threading.Event()
    script = Script({"killer": [WorkerDied] * DEATHS}, {"long": gate})
    pool = WorkerPool(script, 2)
    with ThreadPoolExecutor(2) as jobs:
        found = [jobs.submit(pool.run, asked("long"), nothing)]
        _until(lambda: "long" in script.now)
        found.append(jobs.submit(pool.run, asked("killer"), nothing))
        _until(lambda: script.begun.count("killer") == DEATHS and "killer" not in script.now)
        time.sleep(0.2)  # in which it would begin, if it did not wait
        gate.set()
        for one in found:
            one.result(10)
    assert script.begun[-1] == "killer" and script.alone == [True, *[False] * DEATHS, True]
    pool.close()


def test_a_busy_one_comes_after_the_free_ones():
    script, seen = Script({"busy": [BusyError("lock")] * 3}), []
    pool = WorkerPool(script, 1)
    pool.run(asked("busy", "a", "b"), lambda *event: seen.append(event))
    assert script.begun[0] == "busy" and script.begun[-1] == "busy" and script.done["busy"] == 1
    assert ("local busy", 0, 1, "another process is at it") in seen
    pool.close()


def test_what_nobody_waits_for_any_more_is_not_begun():
    gates = {name: threading.Event() for name in ("bad", "shared")}
    script = Script({"bad": [ValueError("x")]}, gates)
    pool = WorkerPool(script, 1)
    with ThreadPoolExecutor(2) as jobs:
        left = jobs.submit(pool.run, asked("bad", "never", "shared"), nothing)
        _until(lambda: script.begun)
        stays = jobs.submit(pool.run, asked("shared"), nothing)
        _until(lambda: len(pool._tickets["x", "shared"].inboxes) == 2)
        gates["bad"].set()
        assert isinstance(left.exception(10), ValueError)
        gates["shared"].set()
        stays.result(10)
    pool.run(asked("last"), nothing)
    pool.close()
    assert script.begun == ["bad", "shared", "last"]


def test_close_wakes_whoever_waits():
    gate = threading.Event()
    script = Script(gates={"a": gate})
    pool = WorkerPool(script, 1)
    with ThreadPoolExecutor(2) as jobs:
        futures = [jobs.submit(pool.run, asked("a"), nothing)]
        _until(lambda: script.begun)
        futures.append(jobs.submit(pool.run, asked("b"), nothing))
        _until(lambda: len(pool._tickets) == 2)
        closing = threading.Thread(target=pool.close)
        closing.start()
        for future in futures:
            assert "have ended" in str(future.exception(10))
        gate.set()
        closing.join(10)
    assert script.stops == script.reaped == 1 and len(script.begun) == 1
    with pytest.raises(RuntimeError, match="have ended"):
        pool.run(asked("c"), nothing)


def test_a_worker_that_cannot_be_started_is_an_error_of_the_request():
    class NoRoom(Script):
        def run(self, request, on_event):
            raise OSError("no more processes")

    pool = WorkerPool(NoRoom(), 2)
    with pytest.raises(OSError, match="no more processes"):
        pool.run(asked("a"), nothing)
    pool.close()


STEPS = st.lists(st.sampled_from([WorkerDied, BusyError("lock")]), max_size=3)


@settings(max_examples=40, deadline=None)
@given(
    endings=st.dictionaries(st.sampled_from("abcde"), STEPS, max_size=5),
    bad=st.sets(st.sampled_from("abcde"), max_size=2),
    wishes=st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True), min_size=1, max_size=4),
    workers=st.integers(1, 3),
)
def test_any_mixture_ends_as_each_job_alone(endings, bad, wishes, workers):
    """A job fails if and only if one of its own requests is bad; what is good is made, and never twice at once."""
    script = Script(
        {name: [*endings.get(name, []), *([ValueError(name)] * 9 if name in bad else [])] for name in "abcde"}
    )
    pool = WorkerPool(script, workers)
    with ThreadPoolExecutor(len(wishes)) as jobs:
        futures = [jobs.submit(pool.run, asked(*names), nothing) for names in wishes]
        for names, future in zip(wishes, futures, strict=True):
            problem = future.exception(20)
            assert (problem is not None) == bool(set(names) & bad)
            assert problem is None or problem.args[0] in set(names) & bad
            assert problem is not None or all(script.done[name] for name in names)
    pool.close()


def _until(holds):
    for _ in range(5000):
        if holds():
            return
        threading.Event().wait(0.002)
    raise AssertionError("it never came")
