"""The executor of a run: when it starts worker processes, that these change no number, and how each request ends."""

import os
from multiprocessing import active_children

import pytest
import torch

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.groups import HardwareSettings
from knot_runner.engine.execute import Executor
from knot_runner.engine.hardware import worker_count
from knot_runner.engine.loop import key_of
from knot_runner.engine.objectives import cross_entropy
from knot_runner.engine.requests import Objective, StoredPart, Train
from knot_runner.engine.store import Store
from knot_runner.models.network import Network
from knot_runner.util.errors import DivergedError
from knot_runner.util.workers import WorkerDied
from tests.changed_settings import stage
from tests.unit.engine.test_loop import SPEC, put_texts

pytestmark = pytest.mark.machine

ONE, TWO = (HardwareSettings("cpu", "cpu", 1, workers, "auto", "float32", 0) for workers in (1, 2))
NETWORK = Network(SPEC, 500, 3)
PARTS = {name: StoredPart(("tokens", name)) for name in "tv"}
#: An objective that ends its process, or raises ``what``.
PLUGIN = """
import os, signal
from knot_runner.engine.objectives import cross_entropy
from knot_runner.util.errors import DivergedError
from tests.changed_settings import stage

def marked(settings, inputs):
    match settings.get("what"):
        case "bug": raise ValueError("a bug")
        case "die": os.kill(os.getpid(), signal.SIGKILL)
        case "diverge": raise DivergedError("not finite", round=3)
    return cross_entropy({}, inputs)
"""


def fill(path):
    store = Store(path)
    put_texts(store, "t", 40, 1)
    put_texts(store, "v", 20, 2)
    return store


def training(party, objective=None):
    return Train(
        stage="local", party=party, network=NETWORK, start=None, train=PARTS["t"], valid=PARTS["v"],
        objective=objective or Objective(cross_entropy), training=stage(1, 16, 1e-3, 0.0), select="f1", seed=0,
    )  # fmt: skip


def nothing(*event):
    pass


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "marks_plugin.py"
    path.write_text(PLUGIN)
    load_plugins([str(path)])
    return str(path)


def marked(party, **settings):
    import marks_plugin

    return training(party, Objective(marks_plugin.marked, settings))


def test_executor_defers_busy_requests_and_matches_one_worker(tmp_path):
    requests = [training(party) for party in "ABC"]
    stores = [fill(tmp_path / name) for name in ("workers", "alone")]
    with Executor(stores[1], ONE, None, [], nothing) as executor:
        expected = executor(requests)
    lock = stores[0].lock(*key_of(requests[1]))
    lock.__enter__()
    before, done, processes = set(active_children()), [], set()

    def watch(title, finished, total, text):
        processes.add(len(set(active_children()) - before))
        if text == "done":
            done.append(title)
            if len(done) == 2:
                lock.__exit__(None, None, None)

    with Executor(stores[0], TWO, None, [], watch) as executor:
        made = executor(requests)
        assert executor(requests) == made and len(done) == 3
    assert done[2] == "local B" and max(processes) == 2
    for artifact, one in zip(made, expected, strict=True):
        mine, theirs = artifact.tensors(), one.tensors()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs) and mine.keys() == theirs.keys()


def test_executor_stops_its_workers_when_interrupted(tmp_path):
    def watch(*event):
        raise KeyboardInterrupt

    before = set(active_children())
    with pytest.raises(KeyboardInterrupt), Executor(fill(tmp_path), TWO, None, [], watch) as executor:
        executor([training(party) for party in "AB"])
    assert executor._pool is None and set(active_children()) == before


@pytest.mark.parametrize(("what", "kind"), [("die", WorkerDied), ("bug", RuntimeError), ("diverge", DivergedError)])
def test_executor_raises_the_error_of_a_request(what, kind, tmp_path, plugin):
    requests = [marked("A", what=what), marked("B")]
    with Executor(fill(tmp_path / "store"), TWO, None, [plugin], nothing) as executor:
        with pytest.raises(kind) as problem:
            executor(requests)
        assert executor([requests[1]])  # the other one was made, or is made now by a new worker
    assert kind is not DivergedError or problem.value.where == {"round": 3}


def test_workers_are_one_per_core_unless_said():
    assert worker_count(ONE) == 1 and worker_count(TWO) == 2
    assert worker_count(HardwareSettings("cpu", "cpu", 1, 0, "auto", "float32", 0)) == len(os.sched_getaffinity(0))
