"""``hardware.engine=ray``: actors of a fake Ray, or of Ray; parity is in ``tests/integration/conformance``."""

import importlib.util
import os
import pickle
import signal
import sys
from dataclasses import replace

import pytest
import torch

from knot_runner.config.settings.groups import HardwareSettings
from knot_runner.engine.federated.choose import make_engine
from knot_runner.util.errors import UserError
from knot_runner.util.workers import WorkerDied
from tests.fake_ray import faked
from tests.golden.messages import refuses
from tests.unit.engine.federated.cases import MODELS, RECIPES, cohort, equal, images

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
NETWORK = MODELS["mlp"]


def made(engine="ray", workers=2, said=None, precision="float32"):
    hardware = HardwareSettings(
        "cpu", "cpu", threads=1, num_workers=workers, engine=engine, precision=precision, stack=0
    )
    data = images(NETWORK.inputs), images(NETWORK.inputs, 40, 1)
    return make_engine(hardware, [NETWORK], *data, (said if said is not None else []).append)


def requests():
    return cohort(NETWORK, RECIPES["everything"], torch.float32, (23, 5, 40, 16, 9, 12), seed=4)


def test_ray_engine_matches_lean_and_close_kills_actors(monkeypatch):
    ray, said = faked(monkeypatch), []
    engine = made(said=said)
    actual = engine.train(requests())
    assert all(map(equal, actual, made("lean", 1).train(requests())))
    actual[0].weights.add_(1.0)  # what comes back is the caller's own
    assert ray.options == [{"num_cpus": 1, "max_restarts": 0}] and said == ["ray: clients are assigned to 2 actors"]
    assert ray.calls.count("EngineActor") == 2 and ray.calls.count("run") == 6
    engine.close()
    engine.close()
    assert len(ray.killed) == 2


def test_ray_engine_queues_requests_and_shares_vectors_once(monkeypatch):
    ray = faked(monkeypatch, resources={"CPU": 3.0})
    engine, most, placed = made(workers=0), [], []
    wait, put = ray.wait, ray.put
    monkeypatch.setattr(ray, "wait", lambda refs, num_returns: most.append(len(refs)) or wait(refs, num_returns))
    monkeypatch.setattr(ray, "put", lambda value: placed.append(value.shape) or put(value))
    shared = cohort(NETWORK, RECIPES["plain"], torch.float32, (23, 5, 40, 16), shared=True)
    engine.train(shared)
    assert most == [3, 3, 2, 1] and len(placed) == 2  # the weights and the buffers of all four
    engine.train(shared)
    assert len(placed) == 4  # they may have changed meanwhile


def test_ray_engine_sends_views_without_their_base_tensors(monkeypatch):
    ray, sizes = faked(monkeypatch), []
    engine, called = made(), ray.called
    monkeypatch.setattr(ray, "called", lambda f, *sent: sizes.append(len(pickle.dumps(sent[0]))) or called(f, *sent))
    engine.train([replace(requests()[0], rows=torch.arange(500_000)[:23] % 80)])
    assert sizes[-1] < 20_000


def test_ray_engine_reports_lost_actor(monkeypatch):
    ray = faked(monkeypatch, lost=[3])
    engine = made()
    with refuses(WorkerDied):
        engine.train(requests())
    assert len(ray.killed) == 2


def test_ray_engine_reraises_errors_of_actor_code(monkeypatch):
    faked(monkeypatch)
    engine, (one, *_) = made(), requests()
    with pytest.raises(RuntimeError, match="in an actor of Ray: ray::function"):
        engine.train([replace(one, rows=torch.tensor([10**6]))])
    monkeypatch.setattr(
        "knot_runner.engine.federated.lean.Lean.train", lambda *_: (_ for _ in ()).throw(UserError("x"))
    )
    with refuses():
        engine.train([one])


@pytest.mark.parametrize(("workers", "cores"), [(3, 2.0), (0, 0.0)])
def test_ray_engine_refuses_more_actors_than_cluster_fits(workers, cores, monkeypatch):
    faked(monkeypatch, resources={"CPU": cores})
    with refuses():
        made(workers=workers)


def test_ray_is_an_extra(monkeypatch):
    faked(monkeypatch)
    monkeypatch.delitem(sys.modules, "ray")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refuses():
        made()


@needs_ray
def test_ray_engine_matches_lean_on_real_ray():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        before = signal.getsignal(signal.SIGTERM)
        engine = made()
        assert signal.getsignal(signal.SIGTERM) is before
        assert all(map(equal, engine.train(requests()), made("lean", 1).train(requests())))
        pids = ray.get([one.__ray_call__.remote(lambda _: os.getpid()) for one in engine._actors])
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="hardware.engine=ray: an actor was lost"):
            engine.train(requests() * 3)
        engine.close()
    finally:
        ray.shutdown()
