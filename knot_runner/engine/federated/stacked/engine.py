"""The stacked engine: the weights of all clients are stacked in one tensor, and one step trains all clients at once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from knot_runner.config.devices import is_host
from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated import local
from knot_runner.engine.federated.cohort import ClientModel, Inference, LocalTraining, Trained, ordered, silent
from knot_runner.engine.federated.loop import Loop
from knot_runner.engine.federated.stacked.plan import Structure, chunks, plan_chunk, width
from knot_runner.engine.federated.stacked.program import Program
from knot_runner.engine.objectives import LossRows, ObjectiveInputs, SampleLoss, make_loss
from knot_runner.models.network import Network
from knot_runner.util.errors import UserError


class Stacked:
    """An engine that trains many clients at once, as a stack. The clients of a stack have the same :class:`Structure`.

    With ``stack=0``, the number of clients in a stack is not limited.

    With ``stack=S``, at most S clients train at once. A client's results are then bitwise independent of the other
    clients in the stack. In float32, a different S may change the result of a convolution by units in the last place.
    In float64 on a CPU, the results are the same for every S.

    For cross-entropy on CUDA, each step is captured as a CUDA graph. A failed capture raises an error. A stack that
    does not fit into CUDA memory is halved until it fits. Each halving is reported by a call of ``note``.

    With ``precision="bf16"``, training computes in bfloat16 where torch's autocast supports it. Weights and metrics
    keep the dtype ``dtype``. With ``precision="tf32"``, training uses TF32 for float32 matrix products and
    convolutions.
    """

    name = "stacked"

    def __init__(
        self, network: Network, data: ImageData, test: ImageData, device: torch.device, dtype: torch.dtype,
        stack: int, precision: str = "float32", note: Callable[[str], None] = silent,
    ) -> None:  # fmt: skip
        self.network, self.device, self.dtype, self.stack = network, device, dtype, stack
        self.autocast = precision == "bf16"
        self.tf32 = precision == "tf32"
        self.measuring = Loop(network, data, test, device, dtype)
        self.programs: dict[Structure, Program] = {}
        self.note = note
        self.limits = dict[Structure, int]()

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """Train every client of ``cohort``; return the results in the order of ``cohort`` (:meth:`Engine.train`).

        Requests for which ``LocalTraining.is_plain`` is false are trained by the reference engine :class:`Loop`.

        Raises:
            UserError: The GPU memory is too small even for one client at a time.
        """
        results: dict[int, Trained] = {}
        for structure, positions in chunks(cohort).items():
            requests = [cohort[position] for position in positions]
            trained = self.measuring.train(requests) if structure is None else self._train_alike(structure, requests)
            results.update(zip(positions, trained, strict=True))
        return ordered(results)

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Return the logits or features of every request, computed one model after another (:meth:`Engine.logits`)."""
        return self.measuring.logits(requests)

    def close(self) -> None:
        """Free the memory of all stacks and their CUDA graphs."""
        self.programs.clear()

    def _train_alike(self, structure: Structure, requests: list[LocalTraining]) -> list[Trained]:
        """Train requests of the same structure, as many at a time as fit into memory.

        If the memory is exceeded, try again with half as many clients at a time.
        """
        trained: list[Trained] = []
        while len(trained) < len(requests):
            left = len(requests) - len(trained)
            room = min(self.stack or left, self.limits.get(structure, left))
            try:
                trained += self._train_chunk(structure, requests[len(trained) : len(trained) + room], room)
                continue
            except RuntimeError as problem:  # the traceback holds tensors until this block ends
                if not out_of_memory(problem):
                    raise
            self._make_room(structure, room)
        return trained

    def _make_room(self, structure: Structure, room: int) -> None:
        """Free memory after a stack of ``room`` clients exceeded the GPU memory.

        The memory of all programs is freed. If all of it belonged to ``structure``, the next stack has half the size.
        """
        if room == 1:
            raise UserError(
                "out of GPU memory even with one client at a time. Use a smaller training.batch_size", "hardware.stack"
            )
        others = self.programs.keys() - {structure}
        self.programs.clear()
        gc.collect()
        if not is_host(self.device.type):
            torch.get_device_module(self.device).empty_cache()
        if others:
            return
        self.limits[structure] = room // 2
        self.note(
            f"hardware.stack: out of GPU memory with {room} clients at once, continuing with {room // 2} "
            "(float32 results may differ in the last digit)"
        )

    def _train_chunk(self, structure: Structure, chunk: list[LocalTraining], room: int) -> list[Trained]:
        before = [self.measuring.correct(request.test_rows, request.start) for request in chunk]
        temperatures = losses = None
        if structure.temperatures:
            temperatures = list(map(self._temperatures, chunk))
        phases = plan_chunk(structure, chunk, temperatures)
        program = self._program(structure, room)
        if structure.objective:
            losses = list(map(self._loss, chunk))
        program.load(chunk, losses)
        with _tf32(self.tf32):
            for phase in phases:
                program.run(phase)
        finite = program.state[0][: len(chunk)].isfinite().all(1).tolist()
        weights, buffers, totals = (each[: len(chunk)].to("cpu", copy=True) for each in program.state)
        results = []
        for k, request in enumerate(chunk):
            steps = local.steps(request.recipe, len(request.rows))
            model = ClientModel(weights[k].clone(), buffers[k].clone())
            mean = float(totals[k]) / max(steps, 1)
            after = self.measuring.correct(request.test_rows, model)
            results.append(
                Trained(request.client, model.weights, model.buffers, steps, mean, before[k], after, finite[k])
            )
        return results

    def _program(self, structure: Structure, clients: int) -> Program:
        """Return the structure's program. If it has room for fewer than ``clients`` clients, create a larger one."""
        program = self.programs.get(structure)
        if program is None or program.clients < clients:
            self.programs.pop(structure, None)  # free the old program's memory first
            room = clients if self.stack else width(clients)
            data = self.measuring.data
            program = Program(self.network, data, structure, room, self.dtype, self.autocast, shrinks=self.stack == 0)
            self.programs[structure] = program
        return program

    def _temperatures(self, request: LocalTraining) -> Tensor:
        """Return (temperature T_i, loss factor scale_i) of each image under the initial weights, shape [n, 2]."""
        rows, _ = self._loss(request)
        return torch.stack([rows["temperatures"], rows["scales"]], 1)

    def _loss(self, request: LocalTraining) -> tuple[LossRows, SampleLoss]:
        """Return the rows and the loss function of the client's objective, on the CPU."""

        def outputs(model: ClientModel, output: Literal["logits", "features"]) -> Tensor:
            """Return the outputs of ``model`` on the training examples of the request."""
            return self.measuring.infer(Inference(model, request.rows, "train", output=output))

        inputs = ObjectiveInputs(
            self.measuring.data.labels[request.rows.to(self.device)].cpu(),
            request.inputs,
            start_logits=lambda: outputs(request.start, "logits"),
            features=lambda name: outputs(request.model_of(name), "features"),
        )
        return make_loss(request.objective, inputs)


@contextmanager
def _tf32(wanted: bool) -> Iterator[None]:
    """Context manager that allows TF32 on CUDA only if ``wanted`` is true, and restores the setting at the end."""
    matmul = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = wanted
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def out_of_memory(problem: BaseException | None) -> bool:
    """Return whether ``problem``, or an exception that caused ``problem``, reports that CUDA memory ran out."""
    # If memory runs out during a graph capture, the end of the capture may raise another exception.
    while problem is not None:
        if isinstance(problem, torch.OutOfMemoryError):
            return True
        problem = problem.__cause__ or problem.__context__
    return False
