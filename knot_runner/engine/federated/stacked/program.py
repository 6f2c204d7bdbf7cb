"""One SGD step of many clients at once, on tensors at fixed memory addresses. On CUDA, the step is a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import pad_sequence

from knot_runner.engine.examples import ImageData, augmented_images, normalized
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.engine.federated.stacked.plan import PADDING, PhasePlan, Structure, width
from knot_runner.engine.objectives import LossRows, SampleLoss, tempered
from knot_runner.engine.tensor_file import Tensors
from knot_runner.engine.training import train_mode
from knot_runner.models.layers import BatchNorm
from knot_runner.models.network import Network, build_network
from knot_runner.util.errors import UserError

#: Number of warm-up steps on a side stream before a graph is captured. These steps create handles and workspaces (see
#: PyTorch's notes on CUDA graphs).
WARM_UP = 3


class Program:
    """A stack of at most ``clients`` clients with the same structure. It holds their tensors and takes their SGD steps.

    The tensors are on the device of ``data`` and are allocated once. Each round copies the values of its clients into
    these tensors.

    ``shrinks``: whether a step leaves out clients that have no steps left (:func:`width`). If false, every step
    computes the whole stack, including empty positions. A client's results then do not depend on the other clients in
    the stack.
    """

    def __init__(
        self, network: Network, data: ImageData, structure: Structure, clients: int, dtype: torch.dtype,
        autocast: bool, shrinks: bool,
    ) -> None:  # fmt: skip
        self.model = _trained_model(network, structure)
        self.data = data
        self.structure = structure
        self.clients, self.shrinks, self.dtype, self.autocast = clients, shrinks, dtype, autocast
        self.device = data.labels.device
        # other objectives may contain operations that a graph cannot capture, such as iterating until convergence
        self.captures = data.labels.is_cuda and structure.objective is None
        self.layout = layout = flat.layout_of(network)
        # A CUDA graph always uses the memory addresses of its capture, so every round must use the same tensors.
        self.weights = self._zeros(layout.size)
        self.buffers = self._zeros(layout.buffer_size)
        self.start: Tensor | None = None
        if structure.proximal:
            self.start = self._zeros(layout.size)
        self.control: Tensor | None = None
        if structure.control:
            self.control = self._zeros(layout.size)
        self.spans: dict[str, tuple[int, int]] = {}
        self.velocity: Tensors = {}
        for trains in structure.trains:
            begin, end = _span(layout, trains)
            self.spans[trains] = begin, end
            if structure.momentum:
                self.velocity[trains] = self._zeros(end - begin)
        self.numbers = {name: self._zeros(1) for name in ("lr", "momentum", "weight_decay", "proximal", "temperature")}
        self.decayed = (~layout.biases() | structure.decay_biases).to(self.device, dtype)
        self.total = torch.zeros(clients, dtype=torch.float64, device=self.device)
        self.rows = torch.full((clients, structure.room), PADDING, device=self.device)
        self.crops: Tensor | None = None
        if structure.augment != "none":
            self.crops = self.rows.new_zeros(*self.rows.shape, 3)
        self.temperatures: Tensor | None = None  # T_i and scale_i of each row
        if structure.temperatures:
            self.temperatures = torch.ones(*self.rows.shape, 2, dtype=dtype, device=self.device)
        self.positions = torch.zeros_like(self.rows)  # of each row among the client's images
        self.loss: SampleLoss | None = None  # loss of an objective other than cross-entropy; rows [K, n, ...]
        self.loss_rows: LossRows = {}
        if structure.features:
            self.model.get_submodule(layout.head.removesuffix(".")).register_forward_pre_hook(self._keep_features)
        self.masks = [f"{name}.mask" for name, module in self.model.named_modules() if isinstance(module, BatchNorm)]
        self.graphs: dict[tuple[int, str], torch.cuda.CUDAGraph] = {}

    def load(self, chunk: list[LocalTraining], losses: list[tuple[LossRows, SampleLoss]] | None = None) -> None:
        """Load the initial weights and settings of the clients in ``chunk`` into the stack.

        ``losses``: the rows and the loss function of each client's objective; None for cross-entropy.
        """
        k = len(chunk)
        self.weights[:k] = torch.stack([request.start.weights for request in chunk]).to(self.device, self.dtype)
        self.buffers[:k] = torch.stack([request.start.buffers for request in chunk]).to(self.device, self.dtype)
        if self.start is not None:
            self.start.copy_(self.weights)
        if self.control is not None:
            controls = [request.control for request in chunk if request.control is not None]
            self.control[:k] = torch.stack(controls).to(self.device, self.dtype)
        for velocity in self.velocity.values():
            velocity.zero_()
        for name, values in self.numbers.items():
            chosen = [_number(request, name) for request in chunk]
            values[:k, 0] = torch.tensor(chosen, dtype=self.dtype, device=self.device)
        self.total.zero_()
        if losses is not None:
            self._load_losses(losses)

    def _load_losses(self, losses: list[tuple[LossRows, SampleLoss]]) -> None:
        """Load the rows of the objectives, padded to the longest client and to ``clients`` clients.

        Raises:
            UserError: The losses of the clients differ in values other than the rows.
        """
        self.loss = losses[0][1]
        self.loss_rows = {}
        if any(not _same_tensors(self.loss, loss) for _, loss in losses[1:]):
            raise UserError(
                "this engine requires that the loss functions of all clients hold equal tensors. "
                "Let Objective.make return the differing tensors as rows, or use hardware.engine=loop",
                "hardware.engine",
            )
        for name in losses[0][0]:
            padded = pad_sequence([rows[name] for rows, _ in losses], batch_first=True).to(self.device)
            places = torch.arange(self.clients, device=self.device).clamp_max(len(losses) - 1)
            self.loss_rows[name] = padded[places]

    @property
    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the current weights [K, P], buffers [K, Q] and sums of losses [K] of the K clients in the stack."""
        return self.weights, self.buffers, self.total

    def run(self, phase: PhasePlan) -> None:
        """Take all steps of a phase. A step changes only the clients that have steps left."""
        self.rows.fill_(PADDING)  # positions beyond the chunk hold padding
        moved = [(getattr(self, name), values.to(self.device)) for name, values in phase.inputs.items()]
        for step, active in enumerate(phase.active):
            for buffer, values in moved:
                buffer[: values.shape[1]] = values[step]
            # At another width, a kernel may round differently. With a fixed width, results depend on no other client.
            self._advance(width(active) if self.shrinks else self.clients, phase.trains)

    def _advance(self, k: int, trains: str) -> None:
        if not self.captures:
            self.step(k, trains)
            return
        if (k, trains) not in self.graphs:
            self.graphs[k, trains] = self._captured(k, trains)
        self.graphs[k, trains].replay()

    def _captured(self, k: int, trains: str) -> torch.cuda.CUDAGraph:
        """Return the CUDA graph of one step. Warm-up steps read only padding and therefore change nothing."""
        rows = self.rows.clone()
        self.rows.fill_(PADDING)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.step(k, trains)
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = None
        if self.graphs:  # graphs run one at a time and may share a pool
            pool = next(iter(self.graphs.values())).pool()
        with torch.cuda.graph(graph, pool=pool, stream=side):  # the default stream may be on another device
            self.step(k, trains)
        self.rows.copy_(rows)
        return graph

    def step(self, k: int, trains: str) -> None:
        """Take one SGD step for the clients 0 to k-1, in place. A client without an image in this step does not change.

        The batch is read from ``rows``, ``positions``, ``crops`` and ``temperatures``. The step changes the weights,
        the momentum, the running statistics and the sum of losses. ``trains``: the parameters to train.
        """
        real = self.rows[:k] != PADDING
        alive = real.any(1)
        a, b = self.spans[trains]
        leaves = {
            name: part.detach().requires_grad_(a <= field.start < b)
            for (name, part), field in zip(self._named(k).items(), self.layout.parameters, strict=True)
        }
        losses = self._losses(k, leaves, real)
        trained = [leaf for leaf in leaves.values() if leaf.requires_grad]
        gradients = torch.autograd.grad(losses.sum(), trained, materialize_grads=True)
        with torch.no_grad():
            self.total[:k] += losses.to(self.total.dtype).masked_fill(~alive, 0)
            self._update(k, trains, torch.cat([each.flatten(1) for each in gradients], 1), alive[:, None])

    def _named(self, k: int) -> Tensors:
        return flat.views(self.weights[:k], self.layout.parameters)

    def _losses(self, k: int, leaves: Tensors, real: Tensor) -> Tensor:
        """Return each client's mean loss over the images of its batch, without padding, shape [k]."""
        rows = self.rows[:k].clamp_min(0)
        images = normalized(self.data, rows.flatten(), self.dtype)
        if self.crops is not None:
            images = augmented_images(images, self.crops[:k].flatten(0, 1))
        images = images.contiguous().unflatten(0, rows.shape)  # vmap supports group_norm only for these strides
        buffers = flat.views(self.buffers[:k], self.layout.buffers)
        # no cache, because a graph must not read a cast tensor that was created outside of the graph
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
            outputs = vmap(self._forward)(leaves, buffers, images, real)
        logits, *features = (output.to(self.dtype) for output in outputs)
        if self.loss is not None:
            losses = self._own_losses(k, logits, *features)
        else:
            losses = self._cross_entropies(k, logits, rows)
        return losses.masked_fill(~real, 0).sum(1) / real.sum(1).clamp_min(1)

    def _cross_entropies(self, k: int, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the losses ``scale_i * CE(z_i / T_i, y_i)``, shape [k, B] (FLex&Chill, algorithm 1)."""
        # select the label's logit by a mask: the CUDA gradients of nll_loss and gather use atomic operations
        others = self.data.labels[rows][..., None] != torch.arange(logits.shape[-1], device=self.device)
        temperature = self.numbers["temperature"][:k, None]
        scale = None
        if self.temperatures is not None:
            temperature = self.temperatures[:k, :, :1]
            scale = self.temperatures[:k, :, 1]
        losses = -torch.log_softmax(logits / temperature, -1).masked_fill(others, 0).sum(-1)
        if scale is None:
            return losses
        return losses * scale

    def _own_losses(self, k: int, logits: Tensor, *features: Tensor) -> Tensor:
        """Return the losses of an objective that is not cross-entropy, shape [k, B]."""
        clients = torch.arange(k, device=self.device)[:, None]
        rows = {name: values[clients, self.positions[:k]].flatten(0, 1) for name, values in self.loss_rows.items()}
        read = (each.flatten(0, 1) for each in features)
        return self.loss(logits.flatten(0, 1), rows, *read).view(logits.shape[:2])

    def _forward(self, weights: Tensors, buffers: Tensors, images: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        """Return a client's logits and, if the objective reads features, the head's input."""
        logits = functional_call(self.model, {**weights, **buffers, **dict.fromkeys(self.masks, real)}, (images,))
        return (logits, self._read) if self.structure.features else (logits,)

    def _keep_features(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._read = inputs[0]

    def _update(self, k: int, trains: str, gradient: Tensor, alive: Tensor) -> None:
        """Update the weights as ``torch.optim.SGD`` does, after adding the proximal term and the control variate."""
        a, b = self.spans[trains]
        weights = self.weights[:k, a:b]
        numbers = self.numbers
        if self.start is not None:
            gradient = gradient + numbers["proximal"][:k] * (weights - self.start[:k, a:b])
        if self.control is not None:
            gradient = gradient + self.control[:k, a:b]
        if self.structure.decay:
            gradient = gradient + numbers["weight_decay"][:k] * self.decayed[a:b] * weights
        if self.structure.momentum:
            velocity = self.velocity[trains][:k]
            gradient = numbers["momentum"][:k] * velocity + gradient
            velocity.copy_(torch.where(alive, gradient, velocity))
        weights.copy_(torch.where(alive, weights - numbers["lr"][:k] * gradient, weights))

    def _zeros(self, size: int) -> Tensor:
        return torch.zeros(self.clients, size, dtype=self.dtype, device=self.device)


def _same_tensors(loss: SampleLoss, other: SampleLoss) -> bool:
    """Return whether two loss functions, which are closures of the same function, hold equal tensors."""
    pairs = zip(_held(loss), _held(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor))


def _held(loss: SampleLoss) -> list[Any]:
    """Return the values in the closure of the function ``loss``.

    For a loss that :func:`make_loss` has wrapped in a check, include the values of the wrapped loss.
    """
    held = _closure(loss)
    for each in held.copy():
        if isinstance(each, FunctionType):
            held += _closure(each)
    return held


def _closure(function: Callable[..., Any]) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


def _number(request: LocalTraining, name: str) -> float:
    """Return the setting ``name`` of the request as a number.

    ``temperature`` is the temperature of the cross-entropy, or 1 for other objectives.
    """
    if name != "temperature":
        return getattr(request.recipe, name)
    options = tempered(request.objective)
    return 1.0 if options is None else options.temperature


def _trained_model(network: Network, structure: Structure) -> nn.Module:
    """Return the module in training mode, on the meta device. Every step provides the parameters and buffers."""
    with torch.device("meta"):
        model = build_network(network)
    train_mode(model, structure.frozen_statistics)
    return model


def _span(layout: flat.FlatLayout, trains: str) -> tuple[int, int]:
    """Return the range of indices in the flat vector for the parameters ``trains``. The head is the last layer."""
    places = layout.mask(trains).nonzero()[:, 0]
    return int(places[0]), int(places[-1]) + 1
