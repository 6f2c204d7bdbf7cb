"""One step of the stack: padding changes nothing, a CUDA graph can hold it, and capturing leaves no trace."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from knot_runner.engine.federated.stacked.plan import plan_chunk, structure_of, width
from knot_runner.engine.federated.stacked.program import Program
from tests.unit.engine.federated.cases import MODELS, RECIPES, cohort, images

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


@pytest.mark.parametrize("recipe", ["plain", "everything", "frozen"])
@pytest.mark.parametrize("model", MODELS)
def test_program_step_avoids_operations_unfit_for_graphs(model, recipe):
    network, requests = MODELS[model], cohort(MODELS[model], RECIPES[recipe])
    structure = structure_of(requests[0])
    program = Program(network, images(network.inputs), structure, 4, torch.float64, False, shrinks=True)
    program.load(requests)
    with Operations() as operations:
        for trains in structure.trains:
            program.step(4, trains)
    found = {name.strip("_") for name in operations.names}
    assert "bmm" in found and not found & {name.strip("_") for name in NOT_IN_A_GRAPH | NOT_DETERMINISTIC}


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
    phases, found = plan_chunk(structure, requests, temperatures), []
    for captures in (False, True):
        program = Program(network, images(network.inputs), structure, 4, torch.float64, False, shrinks=True)
        program.captures = captures
        for _ in range(2):
            program.load(requests)
            for phase in phases:
                program.run(phase)
            found.append([tensor.clone() for tensor in program.state])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    widths = {(width(active), phase.trains) for phase in phases for active in phase.active}
    assert set(program.graphs) == widths and len(tapes) == len(widths) > 1
    assert sum(tape.replays for tape in tapes) == 2 * sum(len(phase.active) for phase in phases)
