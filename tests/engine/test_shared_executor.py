"""Jobs as threads around one pool of worker processes: the numbers of each alone, every stage once, no job harmed."""

import dataclasses
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings import HardwareSettings, StageSettings
from knot_runner.engine import execute
from knot_runner.engine.execute import Executor, ExecutorPool
from knot_runner.engine.loop import Place, key_of
from knot_runner.engine.objectives import cross_entropy
from knot_runner.engine.requests import Objective, Predict, StoredPart, Train
from knot_runner.engine.store import Store
from knot_runner.models.network import Network
from knot_runner.util.errors import DivergedError
from tests.engine.test_loop import SPEC, put_texts

#: Objectives of a plug-in: cross-entropy, but each start of it leaves a mark, and then something may happen.
PLUGIN = '''
import os, signal, uuid
from pathlib import Path
from knot_runner.util.errors import DivergedError
from knot_runner.engine.objectives import cross_entropy

class Odd(Exception):
    """Cannot be made again from its text alone."""
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")

def marked(settings, inputs):
    folder = Path(settings["marks"])
    (folder / uuid.uuid4().hex).touch()
    rows, plain = cross_entropy({}, inputs)
    match settings.get("what"):
        case "bug": raise ValueError("a bug")
        case "odd": raise Odd("an odd", "bug")
        case "leave": raise SystemExit(3)
        case "diverge": raise DivergedError("not finite", round=3)

    def loss(logits, batch):
        """Dies once, when there is a commit."""
        if settings.get("what") == "die" and not list(folder.glob("killed-*")):
            if list(Path(settings["store"]).glob("local/*/commit.json")):
                (folder / f"killed-{uuid.uuid4().hex}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return plain(logits, batch)

    return rows, loss
'''


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugins") / "marks_plugin.py"
    path.write_text(PLUGIN)
    load_plugins([str(path)])
    return str(path)


@pytest.fixture(scope="module")
def pool():
    pool = ExecutorPool()
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("shared"))
    for key, count, seed in TEXTS:
        put_texts(store, key, count, seed)
    return store


TEXTS = [("t", 40, 1), ("v", 20, 2)]
ONE = HardwareSettings("cpu", "cpu", 1, 1)
NETWORK = Network(SPEC, 500, 3)


def training(party, objective=None, epochs=2, seed=7):
    return Train(
        stage="local", party=party, network=NETWORK, start=None, train=StoredPart(("tokens", "t")),
        valid=StoredPart(("tokens", "v")), objective=objective or Objective(cross_entropy),
        training=StageSettings(epochs, 16, 1e-2, 0.1), select="f1", seed=seed,
    )  # fmt: skip


def nothing(*event):
    pass


def marked(plugin, tmp_path, **what):
    """An objective that leaves marks in ``tmp_path``."""
    import marks_plugin

    return Objective(marks_plugin.marked, {"marks": str(tmp_path), **what})


def pids(pool):
    return [worker._process.pid for shared in pool._pools.values() for worker in shared._workers]


@pytest.mark.thorough
def test_jobs_that_share_teachers_train_each_once_with_the_numbers_of_each_alone(pool, store, plugin, tmp_path):
    """Three jobs at once: the same teachers, two of them the same student, predictions by all."""
    objective = marked(plugin, tmp_path)
    teachers = [training(party, objective) for party in "AB"]
    students = [training("student", seed=seed) for seed in (1, 2, 2)]
    events = [[], [], []]
    meet = threading.Barrier(3)

    def job(number):
        with pool.executor(store, ONE, None, [plugin], lambda *event: events[number].append(event)) as executor:
            meet.wait(10)
            taught = executor(teachers)
            student = executor([students[number]])[0]
            weights = [(artefact.stage, artefact.key) for artefact in (*taught, student)]
            asks = [Predict("predictions", "x", NETWORK, weight, ("tokens", "v")) for weight in weights]
            return [*taught, student, *executor(asks)]

    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(job, range(3)))
    assert len(list(tmp_path.iterdir())) == 2 * len(teachers)  # an objective is made for the train and the valid part
    assert len(pids(pool)) == 1
    for mine in events:  # each job heard of the teachers, whoever asked first
        assert {(f"local {party}", 1, 1, "done") for party in "AB"} <= set(mine)

    alone = Store(tmp_path / "alone")
    for text in TEXTS:
        put_texts(alone, *text)
    with Executor(alone, ONE, None, [plugin], nothing) as executor:
        for student, artefacts in zip(students, made, strict=True):
            for artefact, expected in zip(artefacts, executor([*teachers, student]), strict=False):
                _equal(artefact, expected)
        asks = [Predict("x", "", NETWORK, key_of(teachers[0]), ("tokens", "v"))]
        _equal(made[0][3], executor(asks)[0])
    assert made[1][2].key == made[2][2].key != made[0][2].key


def _equal(artefact, expected):
    mine, theirs = artefact.tensors(), expected.tensors()
    assert mine.keys() == theirs.keys() and artefact.key == expected.key
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.thorough
def test_what_goes_wrong_reaches_its_own_job_alone(pool, store, plugin, tmp_path):
    with pool.executor(store, ONE, None, [plugin], nothing) as executor:
        executor([training("before")])
    before = pids(pool)
    whats = {"bug": ValueError, "odd": RuntimeError, "diverge": DivergedError, "leave": SystemExit, None: type(None)}
    found = {}

    def job(what):
        with pool.executor(store, ONE, None, [plugin], nothing) as executor:
            try:
                executor([training(f"job {what}", marked(plugin, tmp_path, what=what))])
            except BaseException as problem:
                found[what] = problem

    threads = [threading.Thread(target=job, args=(what,)) for what in whats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {what: type(found.get(what)) for what in whats} == whats
    assert "in a worker process" in found["bug"].__notes__[0] and "marks_plugin.py" in found["bug"].__notes__[0]
    assert found["diverge"].where == {"round": 3} and found["leave"].code == 3
    assert "an odd bug" in str(found["odd"])
    assert pids(pool) == before  # and no worker was lost


def test_on_a_gpu_the_driver_trains_one_request_at_a_time(store, tmp_path, monkeypatch):
    """No GPU is needed to see who trains: only the choice of workers asks for the device's kind."""
    made, threads, now = [], set(), []

    def run_one(request, place, watch):
        if store.find(*key_of(request)) is not None:  # as the real one: it ended after the caller had looked
            return
        assert not now
        now.append(request)
        threads.add(threading.current_thread())
        watch(request.party, 1, 1, "done")
        made.append(request.party)
        store.put(*key_of(request), {"w": torch.zeros(1)}, {"title": "", "seconds": 0.0})
        now.pop()

    monkeypatch.setattr(execute, "run_one", run_one)
    pool = ExecutorPool()
    gpus = [dataclasses.replace(ONE, name=name) for name in ("first", "second")]
    executors = [pool.executor(store, gpu, None, [], nothing) for gpu in (*gpus, gpus[0])]
    for executor in executors:
        executor.place = Place(store, torch.device("cuda"), None)
    with ThreadPoolExecutor(3) as jobs:
        wishes = [[training(f"gpu {name}") for name in names] for names in ("ab", "cd", "be")]
        for future in [jobs.submit(executor, wish) for executor, wish in zip(executors, wishes, strict=True)]:
            future.result(10)
    pool.close()
    assert sorted(made) == [f"gpu {name}" for name in "abcde"] and len(threads) == 2


def test_a_killed_worker_is_replaced_and_close_ends_those_who_wait(pool, store, plugin, tmp_path):
    """Killed after a commit: the numbers of an undisturbed one. It closes the pool, so it is the last to use it."""
    objective = marked(plugin, tmp_path, what="die", store=str(store.root))
    before = pids(pool)
    with pool.executor(store, ONE, None, [plugin], nothing) as executor:
        made = executor([training("killed", objective, epochs=4)])[0]
    assert len(list(tmp_path.glob("killed-*"))) == 1 and not set(before) & set(pids(pool))
    with Executor(store, ONE, None, [], nothing) as executor:
        expected = executor([training("killed", epochs=4)])[0].tensors()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in made.tensors().items())
    begun, (pid,) = threading.Event(), pids(pool)

    def job(party, epochs):
        with pool.executor(store, ONE, None, [plugin], lambda *event: begun.set()) as executor:
            executor([training(party, epochs=epochs)])

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(job, "endless", 100_000)
        assert begun.wait(60)
        second = threads.submit(job, "behind", 1)
        pool.close()
        for future in (first, second):
            assert "have ended" in str(future.exception(10))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(RuntimeError, match="have ended"):
        job("late", 1)
