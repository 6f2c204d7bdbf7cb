"""The stacked engine: what stacking, grouping, memory and CUDA graphs must not change."""

import functools
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from knot_runner.engine.federated.cohort import Phase
from knot_runner.engine.federated.stacked import engine as stacked_engine
from knot_runner.engine.federated.stacked.engine import out_of_memory
from knot_runner.engine.federated.stacked.plan import chunks, plan_chunk, structure_of, width
from knot_runner.engine.federated.stacked.program import Program
from knot_runner.engine.objectives import Objective, cross_entropy
from tests.golden.messages import refuses
from tests.unit.engine.federated.cases import MODELS, PLAIN, RECIPES, Case, assert_alike, cohort, equal, images, made

SIZES = (23, 16, 5, 1, 9, 30, 12)
stacked = functools.partial(made, "stacked")


@pytest.mark.parametrize("model", ["mlp", "resnet_batch"])
def test_stack_changes_no_bit_in_float64(model):
    requests = cohort(MODELS[model], RECIPES["everything"], sizes=SIZES[:5])
    whole = stacked(MODELS[model]).train(requests)
    for stack in (1, 3):
        for a, b in zip(stacked(MODELS[model], stack=stack).train(requests), whole, strict=True):
            assert equal(a, b)


@pytest.mark.parametrize("model", ["mlp", "resnet_group"])
def test_stacked_float32_ignores_neighbors_at_fixed_stack(model):
    requests = cohort(MODELS[model], RECIPES["everything"], torch.float32, sizes=SIZES)
    engine = stacked(MODELS[model], torch.float32, stack=4)
    together = engine.train(requests)
    for chosen in ([0], [6, 2, 3], [5, 4, 3, 2, 1]):
        for k, actual in zip(chosen, engine.train([requests[k] for k in chosen]), strict=True):
            assert equal(actual, together[k])


def test_stacked_engine_repeats_round_after_other_requests():
    network = MODELS["resnet_batch"]
    engine, requests = stacked(network), cohort(network, RECIPES["everything"], sizes=SIZES)
    first = engine.train(requests)
    engine.train(cohort(network, RECIPES["everything"], sizes=SIZES[:3], seed=9))
    for a, b in zip(engine.train(requests), first, strict=True):
        assert equal(a, b)


def test_chunks_group_recipes_differing_only_in_numbers():
    network, requests = MODELS["mlp"], cohort(MODELS["mlp"], RECIPES["proximal"])
    recipes = [replace(one.recipe, lr=0.05 * (k + 1), proximal=0.1 + k) for k, one in enumerate(requests)]
    losses = [Objective(cross_entropy, {"temperature": 2.0**-k}) for k in range(len(requests))]
    mixed = [replace(one, recipe=r, objective=loss) for one, r, loss in zip(requests, recipes, losses, strict=True)]
    engine = stacked(network)
    assert len(chunks(mixed)) == 1
    for request, actual in zip(mixed, engine.train(mixed), strict=True):
        assert equal(actual, engine.train([request])[0])


def _fewer_epochs():
    requests = cohort(MODELS["cnn"], RECIPES["momentum"])
    return [replace(r, recipe=replace(r.recipe, phases=(Phase(1 + 2 * (r.client % 2)),))) for r in requests]


def _not_plain():
    first, second, *others = cohort(MODELS["mlp"], RECIPES["plain"])
    return [first, replace(second, recipe=replace(second.recipe, optimizer="adamw", lr=0.01)), *others]


STRUCTURES = ["plain", "head_body", "momentum", "control"]
#: Model, requests, and the number of programs that train them.
COHORTS = {
    "recipes of other structure": (
        "mlp", [cohort(MODELS["mlp"], RECIPES[name])[k] for k, name in enumerate(STRUCTURES)], 4
    ),
    "fewer epochs beside others": ("cnn", _fewer_epochs(), 1),
    "a batch far larger than the client": ("mlp", cohort(MODELS["mlp"], Case(replace(PLAIN, batch_size=100_000))), 1),
    "one that is not plain": ("mlp", _not_plain(), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", COHORTS)
def test_unlike_requests_train_as_in_the_loop(name):
    model, requests, programs = COHORTS[name]
    assert len(chunks(requests).keys() - {None}) == programs
    assert_alike(stacked(MODELS[model]).train(requests), made("loop", MODELS[model]).train(requests))
    if name == "a batch far larger than the client":
        assert {structure_of(request).room for request in requests} == {64}


def test_stacked_engine_isolates_a_diverging_client():
    requests = cohort(MODELS["cnn"], RECIPES["momentum"])
    hot = replace(requests[0], recipe=replace(requests[0].recipe, lr=1e200))
    engine = stacked(MODELS["cnn"])
    actual, expected = engine.train([hot, *requests[1:]]), engine.train(requests)
    assert not actual[0].weights.isfinite().all()
    assert all(equal(a, b) for a, b in zip(actual[1:], expected[1:], strict=True))


def test_stacked_bf16_differs_slightly_from_float32():
    requests = cohort(MODELS["cnn"], RECIPES["plain"], torch.float32)
    exact = stacked(MODELS["cnn"], torch.float32).train(requests)
    for a, b in zip(stacked(MODELS["cnn"], torch.float32, precision="bf16").train(requests), exact, strict=True):
        assert a.weights.dtype == torch.float32
        assert 0 < float((a.weights - b.weights).abs().max()) < 0.02


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_tf32_is_allowed_only_with_this_precision_and_while_training(monkeypatch, precision):
    seen, run, flags = [], Program.run, (torch.backends.cuda.matmul, torch.backends.cudnn)
    monkeypatch.setattr(Program, "run", lambda *args: (seen.extend(flag.allow_tf32 for flag in flags), run(*args)))
    before, requests = [flag.allow_tf32 for flag in flags], cohort(MODELS["mlp"], RECIPES["plain"], torch.float32)
    stacked(MODELS["mlp"], torch.float32, precision=precision).train(requests)
    assert set(seen) == {precision == "tf32"} and [flag.allow_tf32 for flag in flags] == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")
@pytest.mark.parametrize("model", MODELS)
def test_stacked_graphs_on_gpu_match_cpu_loop(model):
    requests = cohort(MODELS[model], RECIPES["everything"], sizes=SIZES)
    expected, engine = made("loop", MODELS[model]).train(requests), stacked(MODELS[model], device=torch.device("cuda"))
    for _ in range(2):  # captured, then replayed
        assert_alike(engine.train(requests), expected, 1e-10)


@given(st.integers(1, 5000))
def test_widths_are_few_and_close(active):
    assert active <= width(active) <= max(active * 1.25, 1)
    assert width(active) <= width(active + 1) and width(width(active)) == width(active)
    assert len({width(k) for k in range(1, active + 1)}) <= 8 + 4 * active.bit_length()


engine = functools.partial(stacked, MODELS["mlp"])


def test_out_of_memory_detects_error_beneath_another():
    problem = RuntimeError("operation not permitted when stream is capturing")  # as the end of a capture may raise
    problem.__context__ = torch.OutOfMemoryError("CUDA out of memory")
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

    monkeypatch.setattr(stacked_engine, "Program", Crowded)
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
        monkeypatch.setattr(stacked_engine, "Program", kind)

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


#: reads a value back to the host, or has a shape that depends on values: a CUDA graph cannot hold it
NOT_IN_A_GRAPH = {"_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "is_nonzero", "unique_dim"}
#: raise under deterministic algorithms on CUDA, or add atomically
NOT_DETERMINISTIC = {
    "nll_loss_forward", "nll_loss_backward", "scatter_add", "index_put", "_adaptive_avg_pool2d_backward",
}  # fmt: skip


class Operations(TorchDispatchMode):
    """The names of all operations, also of the backward pass."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(("model", "recipe"), [
    *((model, "everything") for model in MODELS), ("mlp", "plain"), ("resnet_batch", "plain"),
    ("resnet_batch", "frozen"),
])  # fmt: skip
def test_program_step_avoids_operations_unfit_for_graphs(model, recipe):
    network, requests = MODELS[model], cohort(MODELS[model], RECIPES[recipe])
    structure = structure_of(requests[0])
    program = Program(network, images(network.inputs), structure, 4, torch.float64, False, shrinks=True)
    program.load(requests)
    with Operations() as operations:
        for trains in structure.trains:
            program.step(4, trains)
    actual = {name.strip("_") for name in operations.names}
    assert "bmm" in actual and not actual & {name.strip("_") for name in NOT_IN_A_GRAPH | NOT_DETERMINISTIC}


class Tape:
    """Stands in for a CUDA graph: what is called while it is open is noted, not done, and done at ``replay``."""

    def __init__(self):
        self.calls, self.replays = [], 0

    def replay(self):
        self.replays += 1
        for call in self.calls:
            call()

    def pool(self):
        return "pool"


@pytest.fixture
def tapes(monkeypatch):
    """CUDA's streams and graphs without CUDA: Program's own part of capturing is then tested anywhere."""
    made, step = [], Program.step

    @contextmanager
    def record(tape, pool, stream):
        made.append(tape)
        with monkeypatch.context() as patch:
            patch.setattr(Program, "step", lambda *arguments: tape.calls.append(lambda: step(*arguments)))
            yield

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape)
    monkeypatch.setattr(torch.cuda, "graph", record)
    return made


@pytest.mark.parametrize("model", ["mlp", "resnet_batch"])
def test_program_capture_preserves_results_and_reuses_graphs(model, tapes):
    network, recipe = MODELS[model], RECIPES["everything"]
    requests = cohort(network, recipe)
    structure = structure_of(requests[0])
    temperatures = [torch.ones(len(request.rows), 2, dtype=torch.float64) for request in requests]
    phases, actual = plan_chunk(structure, requests, temperatures), []
    for captures in (False, True):
        program = Program(network, images(network.inputs), structure, 4, torch.float64, False, shrinks=True)
        program.captures = captures
        for _ in range(2):
            program.load(requests)
            for phase in phases:
                program.run(phase)
            actual.append([tensor.clone() for tensor in program.state])
    for other in actual[1:]:
        assert all(torch.equal(a, b) for a, b in zip(actual[0], other, strict=True))
    widths = {(width(active), phase.trains) for phase in phases for active in phase.active}
    assert set(program.graphs) == widths and len(tapes) == len(widths) > 1
    assert sum(tape.replays for tape in tapes) == 2 * sum(len(phase.active) for phase in phases)
