"""Stacks are as large as memory allows, and no number depends on it beyond rounding."""

import functools

import pytest
import torch

from knot_runner.engine.federated.stacked import engine as stacked
from knot_runner.engine.federated.stacked.engine import out_of_memory
from knot_runner.engine.federated.stacked.plan import structure_of
from knot_runner.engine.federated.stacked.program import Program
from tests.golden.messages import refuses
from tests.unit.engine.federated.cases import MODELS, RECIPES, assert_alike, cohort, made

SIZES = (23, 16, 5, 1, 9, 30, 12)


engine = functools.partial(made, "stacked", MODELS["mlp"])


def test_out_of_memory_detects_error_beneath_another():
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("operation not permitted when stream is capturing")  # as the end of a capture may
    except RuntimeError as problem:
        assert out_of_memory(problem)
    assert out_of_memory(torch.OutOfMemoryError()) and not out_of_memory(RuntimeError("CUDA error: device assert"))


def test_programs_of_other_structures_give_way(monkeypatch):
    said, requests = [], cohort(MODELS["mlp"], RECIPES["plain"], sizes=SIZES)
    held = engine(note=said.append)
    held.train(cohort(MODELS["mlp"], RECIPES["momentum"], sizes=SIZES))

    class Crowded(Program):
        def run(self, phase):
            if len(held.programs) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().run(phase)

    monkeypatch.setattr(stacked, "Program", Crowded)
    held.train(requests)
    (structure,) = held.programs
    assert structure == structure_of(requests[0]) and not held.limits and not said


class Small:
    """A program whose memory runs out with more than ``most`` clients."""

    most = 1

    def run(self, phase):
        if self.clients > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return Program.run(self, phase)


@pytest.fixture
def small(monkeypatch):
    def most(clients):
        kind = type("Smaller", (Small, Program), {"most": clients})
        monkeypatch.setattr(stacked, "Program", kind)

    return most


@pytest.mark.parametrize(("stack", "steps"), [(0, [(7, 3), (3, 1)]), (4, [(4, 2), (2, 1)]), (1, [])])
def test_stacked_engine_halves_stack_when_memory_runs_out(small, stack, steps):
    requests, said = cohort(MODELS["mlp"], RECIPES["momentum"], sizes=SIZES), []
    expected = engine(stack=stack).train(requests)
    small(1)
    halved = engine(stack=stack, note=said.append)
    for _ in range(2):  # the second round begins with what the first one found
        assert_alike(halved.train(requests), expected, 1e-13)
    assert said == [
        f"hardware.stack: out of GPU memory with {a} clients at once, continuing with {b} (float32 "
        "results may differ in the last digit)"
        for a, b in steps
    ]


def test_stacked_engine_refuses_client_larger_than_memory(small):
    small(0)
    with refuses():
        engine().train(cohort(MODELS["mlp"], RECIPES["plain"]))
