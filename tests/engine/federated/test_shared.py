"""Runs in threads of one program: each gets the bits it gets alone, and what befalls one is no other's business."""

import os
import signal
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, Inference
from knot_runner.engine.federated.engine_pool import EnginePool
from knot_runner.engine.federated.lean.engine import Lean
from knot_runner.engine.federated.loop import Loop
from knot_runner.engine.federated.recipe import Phase, Recipe
from knot_runner.engine.objectives import Objective, cross_entropy
from knot_runner.util.errors import UserError
from knot_runner.util.processes import Ended
from tests.engine.federated.cases import GREY, MODELS, RECIPES, cohort, images

pytestmark = pytest.mark.machine

MODEL = MODELS["mlp"]
DATA, TEST = images(GREY), images(GREY, 40, 1)
SIZES = (23, 5, 40, 16, 9, 30)


def hardware(engine="lean", **changes):
    return replace(HardwareSettings("cpu", "cpu", threads=1, workers=2, engine=engine), **changes)


@dataclass(frozen=True)
class Plan:
    """A run of three rounds: its seed and the recipe (and control) of its clients."""

    seed: int
    case: str = "plain"
    temperature: float = 1.0
    lr: float = 0.1


PLANS = [Plan(0), Plan(1, "proximal", 0.25, 0.05), Plan(2, "control", 0.05, 0.002)]


def requests(plan, round, weights, dtype=torch.float32):
    for request in cohort(MODEL, RECIPES[plan.case], dtype, sizes=SIZES, seed=plan.seed):
        recipe, objective = (
            replace(request.recipe, lr=plan.lr),
            Objective(cross_entropy, {"temperature": plan.temperature}),
        )
        start = replace(request.start, weights=weights)
        yield replace(request, round=round, start=start, recipe=recipe, objective=objective)


def played(engine, plan, rounds=3, dtype=torch.float32):
    """(final weights, logits under them, every client's loss) of federated averaging; the engine is closed."""
    weights, buffers = (vector.to(dtype) for vector in flat.initial(MODEL, plan.seed))
    losses = []
    for round in range(rounds):
        trained = engine.train(list(requests(plan, round, weights, dtype)))
        weights = torch.stack([each.weights for each in trained]).mean(0)
        losses += [each.loss for each in trained]
    (logits,) = engine.logits([Inference(ClientModel(weights, buffers), torch.arange(40))])
    engine.close()
    return weights, logits, losses


def same_bits(a, b):
    return torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) and a[2] == b[2]


def in_threads(*tasks):
    """What each task returned or raised, all at once; none may hang."""
    found = [None] * len(tasks)

    def carry_out(number):
        try:
            found[number] = tasks[number]()
        except Exception as problem:
            found[number] = problem

    threads = [threading.Thread(target=carry_out, args=(n,), daemon=True) for n in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    return found


def alone(plan):
    return played(Lean(MODEL, DATA, TEST, torch.float32, workers=1, threads=1), plan)


@pytest.fixture(scope="module")
def pool():
    """A pool, what it said, and a run that keeps its workers; each test's runs come and go."""
    said = []
    pool = EnginePool(said.append)
    keeper = pool.engine(hardware(), MODEL, DATA, TEST)
    yield pool, said, keeper
    pool.close()


def engine(pool):
    return pool.engine(hardware(), MODEL, DATA, TEST)


def test_runs_in_threads_get_the_bits_of_each_alone(pool):
    found = in_threads(*(lambda plan=plan: played(engine(pool[0]), plan) for plan in PLANS))
    assert all(same_bits(a, alone(plan)) for a, plan in zip(found, PLANS, strict=True))


def test_what_is_wrong_with_one_run_is_raised_there_alone(pool):
    (request, *_) = requests(PLANS[0], 0, flat.initial(MODEL, 0)[0])

    def wrong(**changes):
        return lambda: engine(pool[0]).train([request, replace(request, **changes), request, request])

    far, short, *others = in_threads(
        wrong(rows=torch.tensor([10**6])),
        wrong(start=replace(request.start, weights=request.start.weights[:7])),
        *(lambda plan=plan: played(engine(pool[0]), plan) for plan in PLANS[:2]),
    )
    assert isinstance(far, RuntimeError) and "IndexError" in str(far)  # in the worker
    assert isinstance(short, RuntimeError) and "size" in str(short)  # on the way there
    assert all(same_bits(a, alone(plan)) for a, plan in zip(others, PLANS, strict=False))


class Deadly(Recipe):
    """A recipe that no worker survives reading."""

    def __reduce__(self):
        return os._exit, (1,)


def test_a_worker_that_dies_is_followed_by_another_and_a_deadly_request_by_an_error(pool):
    pool, said, keeper = pool
    said.clear()
    doomed, *others = in_threads(
        lambda: engine(pool).train([
            replace(request, recipe=Deadly(**vars(request.recipe)))
            for request in list(requests(PLANS[0], 0, flat.initial(MODEL, 0)[0]))[:1]
        ]),
        *(lambda plan=plan: played(engine(pool), plan) for plan in PLANS[:2]),
    )  # fmt: skip
    assert isinstance(doomed, UserError) and str(doomed).startswith("hardware.workers: a worker process died")
    assert all(same_bits(a, alone(plan)) for a, plan in zip(others, PLANS, strict=False))
    assert said and {line.split(" (")[0] for line in said} == {"hardware.workers: a worker process died"}
    assert len(keeper.train(list(requests(PLANS[0], 0, flat.initial(MODEL, 0)[0])))) == len(SIZES)


@pytest.mark.thorough
def test_a_worker_killed_at_work_changes_no_bit(pool):
    pool, said, keeper = pool
    said.clear()
    (request, *_) = requests(PLANS[0], 0, flat.initial(MODEL, 0)[0])
    slow = replace(request, recipe=replace(request.recipe, phases=(Phase(2000),)))
    pids = workers(keeper)
    killer = threading.Timer(0.3, os.kill, (pids[0], signal.SIGKILL))
    killer.start()
    found = keeper.train([slow, slow])
    killer.join()
    while workers(keeper) == pids:  # it was at its end already: whoever finds it dead begins another
        keeper.train([request] * 4)
    expected = Lean(MODEL, DATA, TEST, torch.float32, workers=1, threads=1).train([slow])[0]
    assert all(torch.equal(each.weights, expected.weights) for each in found) and said


def workers(member):
    return [worker._process and worker._process.pid for worker in member._shared.engine._pool._workers]


def test_closing_the_pool_ends_whoever_waits_and_every_worker():
    pool = EnginePool(lambda text: None)
    keeper = pool.engine(hardware(workers=1), MODEL, DATA, TEST)
    other = pool.engine(hardware(workers=1), MODEL, DATA, TEST)
    pids = workers(keeper)
    (request, *_) = requests(PLANS[0], 0, flat.initial(MODEL, 0)[0])
    endless = replace(request, recipe=replace(request.recipe, phases=(Phase(10**9),)))
    end = threading.Timer(0.3, pool.close)
    end.start()
    found = in_threads(lambda: keeper.train([endless]), lambda: other.train([request, endless]))
    end.join()
    assert all(isinstance(each, Ended) for each in found)
    assert len(pids) == 1 and not Path(f"/proc/{pids[0]}").exists()
    with pytest.raises(Ended):
        pool.engine(hardware(), MODEL, DATA, TEST)
    keeper.close(), other.close(), pool.close()


def test_runs_share_an_engine_if_model_data_and_hardware_are_the_same():
    pool = EnginePool(lambda text: None)

    def engine(model="mlp", data=DATA, **changes):
        return pool.engine(hardware("loop", **changes), MODELS[model], data, TEST)._shared

    first = engine()
    view = replace(DATA, pixels=torch.from_numpy(DATA.pixels.numpy()), mean=DATA.mean.clone())
    assert engine() is first and engine(data=view) is first
    others = [
        engine("mlp_softmax"), engine(data=replace(DATA, pixels=DATA.pixels.clone())), engine(precision="float64"),
        engine(data=replace(DATA, mean=DATA.mean + 1)), engine(threads=2), engine(workers=1), engine(stack=3),
    ]  # fmt: skip
    assert len({first, *others}) == 1 + len(others)
    pool.close()


def test_an_engine_is_closed_with_its_last_run(monkeypatch):
    closed = []
    monkeypatch.setattr(Loop, "close", lambda self: closed.append(self))
    pool = EnginePool(lambda text: None)
    one, two = (pool.engine(hardware("loop"), MODEL, DATA, TEST) for _ in range(2))
    one.close(), one.close()
    assert not closed
    two.close()
    assert len(closed) == 1
    three = pool.engine(hardware("loop"), MODEL, DATA, TEST)
    assert three._shared is not two._shared
    three.close()


def test_the_loop_takes_one_run_at_a_time():
    pool = EnginePool(lambda text: None)

    def engine():
        return pool.engine(hardware("loop"), MODEL, DATA, TEST)

    found = in_threads(*(lambda plan=plan: played(engine(), plan) for plan in PLANS))
    device = torch.device("cpu")
    for a, plan in zip(found, PLANS, strict=True):
        assert same_bits(a, played(Loop(MODEL, DATA, TEST, device, torch.float32), plan))


def test_a_mistake_in_the_settings_names_the_key_and_leaves_the_pool_open():
    pool = EnginePool(lambda text: None)
    with pytest.raises(UserError, match=r"^hardware\.precision: tf32"):
        pool.engine(hardware(precision="tf32"), MODEL, DATA, TEST)
    pool.engine(hardware("loop"), MODEL, DATA, TEST).close()


def test_models_begun_in_threads_are_those_begun_one_after_another():
    resnet, seeds = MODELS["resnet_group"], range(12)
    expected = [flat.initial(resnet, seed)[0] for seed in seeds]
    found = in_threads(*(lambda seed=seed: flat.initial(resnet, seed)[0] for seed in seeds))
    assert all(map(torch.equal, found, expected))


def test_an_engine_draws_nothing_from_the_generator_that_all_share():
    before = torch.get_rng_state()
    pool = EnginePool(lambda text: None)
    for name in ("loop", "stacked"):
        pool.engine(hardware(name), MODELS["resnet_batch"], images(MODELS["resnet_batch"].inputs), TEST).close()
    assert torch.equal(torch.get_rng_state(), before)
