"""Stacks are as large as memory allows, and no number depends on it beyond rounding."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.config.settings import MlpSettings
from knot_runner.engine.federated.stacked import engine as stacked
from knot_runner.engine.federated.stacked.engine import Stacked
from knot_runner.engine.federated.stacked.memory import client_bytes, narrowed, out_of_memory
from knot_runner.engine.federated.stacked.plan import structure_of, width
from knot_runner.engine.federated.stacked.program import Program
from knot_runner.models.network import Network
from tests.engine.federated.cases import CLASSES, MODELS, RECIPES, cohort, images
from tests.golden.messages import refuses

CPU = torch.device("cpu")
SIZES = (23, 16, 5, 1, 9, 30, 12)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def engine(stack=0, note=lambda text: None):
    network = MODELS["mlp"]
    data, test = images(network.inputs), images(network.inputs, 40, 1)
    return Stacked(network, data, test, CPU, torch.float64, stack, "none", False, note)


def allocated(network, structure, clients, steps):
    """The most bytes that torch's own profiler sees allocated at once by a program and its steps."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        program = Program(network, images(network.inputs), structure, clients, torch.float32, False, True)
        for trains in steps:
            program.step(clients, trains)
        del program
    changes = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for change in changes:
        now += change
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("model", "recipe"),
    [("mlp", "everything"), ("cnn", "plain"), ("resnet_batch", "momentum"), ("resnet_group", "proximal")],
)
def test_the_estimate_is_what_is_allocated(model, recipe):
    network = MODELS[model]
    structure = structure_of(cohort(network, RECIPES[recipe], sizes=(23,))[0])
    few, many = (allocated(network, structure, clients, structure.trains) for clients in (4, 12))
    estimate = client_bytes(network, images(network.inputs), structure, torch.float32)
    assert 0.95 < estimate / ((many - few) / 8) < 1.3


def test_a_large_linear_layer_takes_five_vectors_by_plain_sgd():
    network = Network(MlpSettings("mlp", "mlp", [1000], "logits"), (1, 8, 8), CLASSES)
    structure = structure_of(cohort(network, RECIPES["plain"], sizes=(8,))[0])
    weights = (64 * 1000 + 1000 + 1000 * CLASSES + CLASSES) * 8
    found = client_bytes(network, images((1, 8, 8)), structure, torch.float64)
    # weights, gradient, its product with the rate, the new weights, and their choice; some activations besides
    assert 5 * weights < found < 6 * weights


@given(st.integers(1, 5000))
def test_a_narrowed_stack_is_one_that_programs_have(clients):
    found = narrowed(clients)
    assert found <= clients and width(found) == found
    assert all(width(between) > clients for between in range(found + 1, clients + 1))


def test_memory_that_runs_out_is_known_under_another_error():
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("operation not permitted when stream is capturing")  # as the end of a capture may
    except RuntimeError as problem:
        assert out_of_memory(problem)
    assert out_of_memory(torch.OutOfMemoryError()) and not out_of_memory(RuntimeError("CUDA error: device assert"))


@pytest.fixture
def free(monkeypatch):
    """Sets what is free to so many clients of the first structure that asks."""

    def clients(count):
        def found(device):
            each = client_bytes(MODELS["mlp"], images((1, 8, 8)), structure, torch.float64)
            return count * each + 1.0

        structure = structure_of(cohort(MODELS["mlp"], RECIPES["plain"])[0])
        monkeypatch.setattr(stacked, "free_bytes", found)

    return clients


@pytest.mark.parametrize(("stack", "room"), [(0, 3), (6, 3), (2, 2)])
def test_a_stack_that_does_not_fit_is_split_and_said_once(free, stack, room):
    requests, said = cohort(MODELS["mlp"], RECIPES["plain"], sizes=SIZES), []
    expected = engine(stack=stack).train(requests)
    free(3)
    split = engine(stack=stack, note=said.append)
    for _ in range(2):
        for a, b in zip(split.train(requests), expected, strict=True):
            assert float((a.weights - b.weights).abs().max()) < 1e-14 and a.client == b.client
    (program,) = split.programs.values()
    assert program.clients == room
    assert [line.split("; ")[1] for line in said] == (
        ["going on with 3 (float32 may round differently in the last place)"] * (stack != 2)
    )


def test_programs_of_other_structures_give_way(free, monkeypatch):
    held, requests = engine(), cohort(MODELS["mlp"], RECIPES["plain"], sizes=SIZES)
    held.train(cohort(MODELS["mlp"], RECIPES["momentum"], sizes=SIZES))
    monkeypatch.setattr(stacked, "free_bytes", lambda device: 1.0 if held.programs else 1e9)
    held.train(requests)
    (structure,) = held.programs
    assert structure == structure_of(requests[0]) and not held.limits


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


@pytest.mark.parametrize(
    ("stack", "steps"),
    [(0, [(7, 3), (3, 1)]), (4, [(4, 2), (2, 1)]), (1, [])],
)
def test_memory_that_runs_out_halves_the_stack_and_changes_no_result(small, stack, steps):
    requests, said = cohort(MODELS["mlp"], RECIPES["momentum"], sizes=SIZES), []
    expected = engine(stack=stack).train(requests)
    small(1)
    halved = engine(stack=stack, note=said.append)
    for _ in range(2):  # the second round begins with what the first one found
        for a, b in zip(halved.train(requests), expected, strict=True):
            assert float((a.weights - b.weights).abs().max()) < 1e-13 and a.loss == pytest.approx(b.loss, abs=1e-13)
            assert (a.client, a.steps, a.before, a.after) == (b.client, b.steps, b.before, b.after)
    assert said == [
        f"hardware.stack: out of GPU memory with {a} clients together; going on with {b} (float32 may round "
        "differently in the last place)"
        for a, b in steps
    ]


def test_one_client_that_does_not_fit_is_the_users_to_mend(small):
    small(0)
    with refuses():
        engine().train(cohort(MODELS["mlp"], RECIPES["plain"]))
