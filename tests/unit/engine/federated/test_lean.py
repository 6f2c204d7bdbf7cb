"""Worker processes of the lean engine: same bits as without them, and no hang or leftover whatever happens to one. That
the engine trains as the loop does is in test_parity.py."""

import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from tests.golden.messages import refuses
from tests.unit.engine.federated.cases import MODELS, RECIPES, cohort, equal, made

pytestmark = pytest.mark.machine


@pytest.fixture(scope="module", params=["mlp", "resnet_batch"])
def both(request):
    """(model, engine without processes, engine with two)"""
    alone, pool = (made("lean", MODELS[request.param], torch.float32, workers) for workers in (1, 2))
    yield request.param, alone, pool
    pool.close()


def test_lean_pool_resends_tensors_changed_between_calls(both):
    model, alone, pool = both
    requests = cohort(MODELS[model], RECIPES["plain"], torch.float32)
    pool.train(requests)
    requests[0].start.weights.mul_(0.5)  # the weights that all requests share
    assert all(map(equal, pool.train(requests), alone.train(requests)))


def test_lean_train_returns_tensors_owned_by_caller(both):
    model, alone, pool = both
    requests = cohort(MODELS[model], RECIPES["plain"], torch.float32)
    for engine in (alone, pool):
        first = engine.train(requests)
        kept = [trained.weights.clone() for trained in first]
        engine.train(requests[::-1])
        assert all(torch.equal(trained.weights, copy) for trained, copy in zip(first, kept, strict=True))
        first[0].weights.add_(1)  # outside inference mode


@pytest.fixture
def pool():
    others = {process.pid for process in active_children()}
    engine = made("lean", MODELS["mlp"], torch.float32, 2)
    yield engine, [process.pid for process in active_children() if process.pid not in others]
    engine.close()


def gone(pids, seconds=20.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end and {process.pid for process in active_children()} & set(pids):
        time.sleep(0.02)
    return time.monotonic() < end


def endless(requests):
    phase = replace(requests[0].recipe.phases[0], epochs=10**9)
    return [replace(requests[0], recipe=replace(requests[0].recipe, phases=(phase,)))] * 2


@pytest.mark.parametrize("at_work", [False, True])
def test_lean_pool_reports_killed_worker_without_hanging(pool, at_work):
    engine, pids = pool
    requests = cohort(MODELS["mlp"], RECIPES["plain"], torch.float32)
    engine.train(requests)  # so that the workers are up
    kill = f"import os, time; time.sleep({0.5 * at_work}); os.kill({pids[0]}, 9)"
    killer = subprocess.Popen([sys.executable, "-c", kill])
    if not at_work:
        killer.wait()
    with refuses():
        for _ in range(3):  # the other worker may finish a round before the death is seen
            engine.train(endless(requests) if at_work else requests)
    killer.wait()
    assert gone(pids)


def test_lean_pool_close_frees_processes_and_file_descriptors():
    before = len(list(Path("/proc/self/fd").iterdir()))
    others = set(active_children())
    engine = made("lean", MODELS["mlp"], torch.float32, 2)
    pids = [process.pid for process in active_children() if process not in others]
    engine.close()
    engine.close()
    assert len(pids) == 2 and gone(pids)
    del engine
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1  # multiprocessing's own resource tracker
