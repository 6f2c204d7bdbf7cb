"""Cohorts of several runs in one stack: the numbers of each alone, whoever comes first, late, or to grief."""

import itertools
import threading
from dataclasses import replace

import pytest
import torch

from knot_runner.engine.federated import shared_engine
from knot_runner.engine.federated.engine_pool import EnginePool
from knot_runner.engine.federated.loop import Loop
from knot_runner.engine.federated.shared_engine import BatchedEngine, WaitingCohort, in_order
from knot_runner.engine.federated.stacked.engine import Stacked
from knot_runner.util.processes import Ended
from tests.engine.federated.cases import RECIPES, cohort
from tests.engine.federated.test_shared import DATA, MODEL, PLANS, TEST, Plan, hardware, in_threads, played

CPU = torch.device("cpu")
RUNS = [*PLANS, Plan(3, "head_body", 2.0, 0.1)]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def merged_sizes(monkeypatch):
    """Clients of every call of the one stacked engine behind the runs."""
    sizes, train = [], Stacked.train
    monkeypatch.setattr(Stacked, "train", lambda self, cohort: sizes.append(len(cohort)) or train(self, cohort))
    return sizes


@pytest.fixture
def patient(monkeypatch):
    """Runs that wait for all others, however long that takes."""
    monkeypatch.setattr(shared_engine, "WAIT_SECONDS", (60.0, 60.0))


def engines(pool, count, **changes):
    return [pool.engine(hardware("stacked", **changes), MODEL, DATA, TEST) for _ in range(count)]


def test_runs_together_get_the_numbers_of_each_alone_in_float64(merged_sizes, patient):
    pool = EnginePool(lambda text: None)
    members = engines(pool, len(RUNS), precision="float64")
    tasks = zip(members, RUNS, strict=True)
    found = in_threads(*(lambda e=e, p=p: played(e, p, dtype=torch.float64) for e, p in tasks))
    assert merged_sizes == [24, 24, 24]  # three rounds, each of them one program for all
    for a, plan in zip(found, RUNS, strict=True):
        b = played(Loop(MODEL, DATA, TEST, CPU, torch.float64), plan, dtype=torch.float64)
        assert max(float((x - y).abs().max()) for x, y in zip(a[:2], b[:2], strict=True)) < 1e-12
        assert a[2] == pytest.approx(b[2], abs=1e-12)


@pytest.mark.thorough
def test_a_fixed_stack_makes_the_bits_of_each_alone_in_float32(merged_sizes, patient):
    pool = EnginePool(lambda text: None)
    members = engines(pool, len(PLANS), stack=4)
    found = in_threads(*(lambda e=e, p=p: played(e, p) for e, p in zip(members, PLANS, strict=True)))
    assert merged_sizes == [18, 18, 18]
    for a, plan in zip(found, PLANS, strict=True):
        b = played(Stacked(MODEL, DATA, TEST, CPU, torch.float32, 4, "none", False), plan)
        assert torch.equal(a[0], b[0]) and a[2] == b[2]


def test_a_run_that_computes_elsewhere_holds_nobody_up(merged_sizes):
    pool = EnginePool(lambda text: None)
    busy, *members = engines(pool, 3)
    in_threads(*(lambda e=e, p=p: played(e, p, rounds=2) for e, p in zip(members, PLANS, strict=False)))
    assert sum(merged_sizes) == 24  # and both have come to their end
    busy.close()


def test_a_run_that_ends_is_not_waited_for(merged_sizes, patient):
    pool = EnginePool(lambda text: None)
    one, two = engines(pool, 2)
    found = in_threads(lambda: played(one, PLANS[0], rounds=1), lambda: played(two, PLANS[1], rounds=3))
    assert merged_sizes == [12, 6, 6] and not any(isinstance(each, Exception) for each in found)


def test_a_cohort_that_cannot_be_trained_is_its_own_runs_trouble(patient):
    pool = EnginePool(lambda text: None)
    engine, other = engines(pool, 2)
    requests = cohort(MODEL, RECIPES["plain"], torch.float32)
    bad = [*requests[:2], replace(requests[2], rows=torch.tensor([10**6]))]
    wrong, right = in_threads(lambda: engine.train(bad), lambda: other.train(requests))
    assert isinstance(wrong, IndexError)
    expected = Stacked(MODEL, DATA, TEST, CPU, torch.float32, 0, "none", False).train(requests)
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(right, expected, strict=True))


def test_closing_the_pool_ends_whoever_waits(patient):
    pool = EnginePool(lambda text: None)
    one, _ = engines(pool, 2)
    end = threading.Timer(0.1, pool.close)
    end.start()
    (found,) = in_threads(lambda: one.train(cohort(MODEL, RECIPES["plain"], torch.float32)))
    end.join()
    assert isinstance(found, Ended)


class Recording:
    """An engine that trains nothing and notes what it is given."""

    name, device = "recording", CPU

    def __init__(self):
        self.given = []

    def train(self, cohort):
        self.given.append([request.seed for request in cohort])
        return cohort


def test_the_one_program_sees_the_same_cohort_whoever_comes_first(patient):
    requests = {seed: cohort(MODEL, RECIPES["plain"], torch.float32, sizes=(5, 3), seed=seed) for seed in (4, 2, 9)}

    def given(order):
        engine = Recording()
        merged = BatchedEngine(engine, threading.Lock())
        merged.users(3)
        found = in_threads(*(lambda seed=seed: merged.train(requests[seed]) for seed in order))
        assert all(map(same_objects, found, (requests[seed] for seed in order)))
        return engine.given

    for order in itertools.permutations(requests):
        assert given(order) == [[2, 2, 4, 4, 9, 9]]


def same_objects(a, b):
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def test_cohorts_that_differ_in_their_tensors_alone_have_one_order():
    requests = cohort(MODEL, RECIPES["control"], torch.float32)
    warmer = [replace(request, start=replace(request.start, weights=request.start.weights + 1)) for request in requests]
    free = [replace(request, control=None) for request in requests]
    orders = [
        in_order([WaitingCohort(each) for each in order]) for order in itertools.permutations([requests, warmer, free])
    ]
    assert len({tuple(id(each.cohort) for each in order) for order in orders}) == 1
    assert [each.cohort for each in in_order([WaitingCohort([]), WaitingCohort([])])] == [[], []]


def test_what_happens_to_the_stack_is_said_to_every_run_that_shares_it_once():
    said, alone, general = [], [], []
    pool = EnginePool(general.append)
    listen = said.append
    one, _, _ = (pool.engine(hardware("stacked"), MODEL, DATA, TEST, note) for note in (listen, listen, None))
    pool.engine(hardware("stacked", precision="float64"), MODEL, DATA, TEST, alone.append)
    one._shared._engine.note("smaller")
    assert (said, alone, general) == (["smaller"], [], ["smaller"])
