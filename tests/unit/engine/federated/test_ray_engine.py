"""``hardware.engine=ray``: the bits of ``lean``, from actors of a fake of Ray's transport, or of Ray itself."""

import importlib.util
import os
import pickle
import signal
from dataclasses import replace

import pytest
import torch

from knot_runner.cli.main import main
from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.choose import make_engine
from knot_runner.engine.federated.cohort import INFERENCE_ROWS, ClientModel, Inference
from knot_runner.testing.launchers import runs_below
from knot_runner.util.errors import UserError
from knot_runner.util.workers import WorkerDied
from tests.fake_ray import faked
from tests.golden.messages import refuses
from tests.tiny import TINY_IMAGES, replaced
from tests.unit.engine.federated.cases import FAMILIES, GREY, MODELS, RECIPES, cohort, equal, images

NETWORKS = [MODELS["mlp"], FAMILIES["wrn_batch"]]
DATA, TEST = images(GREY), images(GREY, 40, 1)
ENGINE = "hardware.engine=ray"
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")


def hardware(engine="ray", workers=2, **more):
    return HardwareSettings("cpu", "cpu", threads=1, workers=workers, engine=engine, **more)


def made(engine="ray", workers=2, said=None, **more):
    note = said.append if said is not None else (lambda text: None)
    return make_engine(hardware(engine, workers, **more), NETWORKS[0], DATA, TEST, note, others=NETWORKS[1:])


def requests():
    """Of both networks, in turn, with control variates and start weights that they share."""
    own = [cohort(one, RECIPES["everything"], torch.float32, (23, 5, 40), seed=4) for one in NETWORKS]
    return [replace(own[at % 2][at // 2], client=at, network=at % 2) for at in range(6)]


def asked():
    model = ClientModel(*flat.initial(NETWORKS[1], 3))
    rows = torch.arange(INFERENCE_ROWS + 9) % 80
    return [Inference(model, rows, "train", network=1), Inference(model, rows[:7], network=1)]


def agree(ray, lean):
    """Training, inference, and an empty cohort, to the last bit."""
    assert ray.name == "ray" and ray.device.type == "cpu" and ray.train([]) == []
    found = ray.train(requests())
    assert all(map(equal, found, lean.train(requests())))
    assert all(map(torch.equal, ray.logits(asked()), lean.logits(asked())))
    found[0].weights.add_(1.0)  # what comes back is the caller's own


def test_actors_have_the_bits_of_lean(monkeypatch):
    ray, said, start = faked(monkeypatch), [], [one.start.weights.clone() for one in requests()]
    engine = made(said=said)
    agree(engine, made("lean", 1))
    assert all(map(torch.equal, start, [one.start.weights for one in requests()]))
    assert ray.options == [{"num_cpus": 1, "max_restarts": 0}] and said == ["ray: clients are dealt to 2 actors"]
    assert ray.calls.count("EngineActor") == 2 and ray.calls.count("run") == 6 + 3
    engine.close()
    engine.close()
    assert len(ray.killed) == 2


def test_every_actor_has_one_request_at_a_time_and_shared_vectors_are_sent_once(monkeypatch):
    ray = faked(monkeypatch, resources={"CPU": 3.0})
    engine, most, placed = made(workers=0), [], []
    wait, put = ray.wait, ray.put
    monkeypatch.setattr(ray, "wait", lambda refs, num_returns: most.append(len(refs)) or wait(refs, num_returns))
    monkeypatch.setattr(ray, "put", lambda value: placed.append(value.shape) or put(value))
    shared = cohort(NETWORKS[0], RECIPES["plain"], torch.float32, (23, 5, 40, 16), shared=True)
    engine.train(shared)
    assert most == [3, 3, 2, 1] and len(placed) == 2  # the weights and the buffers of all four
    engine.train(shared)
    assert len(placed) == 4  # they may have changed meanwhile


def test_a_view_is_sent_without_what_it_is_a_view_of(monkeypatch):
    ray, sizes = faked(monkeypatch), []
    engine = made()
    called = ray.called
    monkeypatch.setattr(ray, "called", lambda f, *sent: sizes.append(len(pickle.dumps(sent[0]))) or called(f, *sent))
    (one, *_) = requests()
    engine.train([replace(one, rows=torch.arange(500_000)[:23] % 80)])
    assert sizes[-1] < 20_000


def test_an_actor_that_is_lost_is_one_line(monkeypatch):
    ray = faked(monkeypatch, lost=[3])
    engine = made()
    line = "hardware.engine=ray: an actor was lost (The worker died unexpectedly while executing this task.); repeat"
    with pytest.raises(WorkerDied) as problem:
        engine.train(requests())
    assert str(problem.value) == f"{line} the command to go on from the last commit"
    assert len(ray.killed) == 2


def test_what_an_actors_code_raises_is_raised_here(monkeypatch):
    faked(monkeypatch)
    engine = made()
    (one, *_) = requests()
    with pytest.raises(RuntimeError, match="in an actor of Ray: ray::function"):
        engine.train([replace(one, rows=torch.tensor([10**6]))])
    monkeypatch.setattr(
        "knot_runner.engine.federated.lean.engine.Lean.train", lambda *_: (_ for _ in ()).throw(UserError("x"))
    )
    with refuses():
        engine.train([one])


@pytest.mark.parametrize(("workers", "cores", "said"), [
    (3, 2.0, "hardware.workers: Ray's cluster has 2 cores, too few for 3 actors with hardware.threads=1; 0 = as"),
    (0, 0.0, "hardware.workers: Ray's cluster has 0 cores, too few for 1 actors"),
])  # fmt: skip
def test_more_actors_than_the_cluster_has_room_for_are_refused(workers, cores, said, monkeypatch):
    faked(monkeypatch, resources={"CPU": cores})
    with pytest.raises(UserError, match=said):
        made(workers=workers)


def test_ray_is_an_extra_and_for_cpus(monkeypatch):
    faked(monkeypatch)
    with refuses():
        made(precision="bf16")
    monkeypatch.setattr("knot_runner.engine.federated.choose.prepare_device", lambda _: torch.device("cuda"))
    with refuses():
        made()
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = "hardware.engine=ray: its package is not installed. Run: pip install 'knot_runner.ray.'"
    with pytest.raises(UserError, match=said):
        made()


# ------------------------------------------------------------------------------------------------------- whole runs


def run(out, *overrides):
    return main(replaced(TINY_IMAGES, "method=scaffold", "training.rounds=2", f"paths.out={out}", *overrides))


def test_a_run_goes_on_from_its_commit_when_an_actor_was_lost(tmp_path, monkeypatch, capsys):
    """Under the name of the run with ``lean``, whose bits it has."""
    assert run(tmp_path / "lean") == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        ray = faked(patch, lost=[7])
        assert run(tmp_path / "ray", ENGINE) == 2, capsys.readouterr()
        said = capsys.readouterr().err
        assert "hardware.engine=ray: an actor was lost (" in said and "Traceback" not in said
        assert ray.calls.count("EngineActor") == 1 and list(tmp_path.glob("ray/*/*/*/commit.json"))
        ray.lost = set()
        assert run(tmp_path / "ray", ENGINE) == 0
    assert read(tmp_path / "ray") == read(tmp_path / "lean")


def read(out):
    found = runs_below(out)
    for result, *_ in found.values():
        assert result.pop("engine") == out.name
    return found


@pytest.fixture
def cluster(monkeypatch):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@needs_ray
@pytest.mark.thorough
def test_two_actors_of_ray_itself(cluster):
    before = signal.getsignal(signal.SIGTERM)
    engine = made(workers=2)
    assert signal.getsignal(signal.SIGTERM) is before
    agree(engine, made("lean", 1))
    pids = cluster.get([one.__ray_call__.remote(lambda _: os.getpid()) for one in engine._actors])
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied, match="hardware.engine=ray: an actor was lost"):
        engine.train(requests() * 3)
    engine.close()
