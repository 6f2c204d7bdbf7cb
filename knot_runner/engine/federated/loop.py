"""The plain loop over clients: modules, autograd, ``torch.optim``. The reference for the other engines."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from knot_runner.config.devices import is_host
from knot_runner.engine.examples import ClientData, ClientExamples, InputBatch
from knot_runner.engine.federated import flat, local
from knot_runner.engine.federated.cohort import (
    INFERENCE_ROWS,
    Inference,
    LocalResult,
    LocalTraining,
    LocalWork,
    Trained,
)
from knot_runner.engine.federated.recipe import Course, Recipe
from knot_runner.engine.hardware import on_device, zero_sum
from knot_runner.engine.objectives import LossRows, ObjectiveInputs, SampleLoss, make_loss
from knot_runner.engine.seeds import keyed, seeded
from knot_runner.engine.training import cut_rows, forward_all, train_batch
from knot_runner.models.layers import BatchNorm
from knot_runner.models.network import Network, build_network
from knot_runner.models.taps import feature_reader
from knot_runner.util.errors import UserError


class Loop:
    """One client after another on ``device``, any network and objective. ``data``, ``test``: of all clients."""

    name = "loop"

    def __init__(
        self, network: Network, data: ClientData, test: ClientData, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.network, self.layout = network, flat.layout_of(network)
        self.device, self.dtype = device, dtype
        self.data, self.test = data.to(device), test.to(device)
        self.model = _build(network, device, dtype)
        self._head = self.model.get_submodule(self.layout.head.removesuffix("."))
        self._read = torch.empty(0)  # what the head has read last, once an objective reads it
        self._watching = False

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`Engine`."""
        return [self.train_client(request) for request in cohort]

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`Engine`."""
        return [self._logits(request) for request in requests]

    def close(self) -> None:
        """Nothing to free."""

    def train_client(self, request: LocalTraining) -> Trained:
        """One client's epochs, step by step."""
        model, start = self.model, request.start
        flat.load_flat(model, self.layout, start.weights.to(self.device), start.buffers.to(self.device))
        trained, held = request.rows.split([len(request.rows) - request.held, request.held])
        examples, held_out = self.data.select(trained, self.dtype), self.data.select(held, self.dtype)
        before = self._correct(request.test_rows)
        with _dropout_seed(request, self.device):
            local_result = self._run(request, examples, held_out)
        weights, buffers = flat.flat_vectors(model)
        after = self._correct(request.test_rows)
        kept = {name: tensor.cpu() for name, tensor in local_result.kept.items()}
        (finite,) = local.finite(weights[None])
        finite = finite and all(bool(tensor.isfinite().all()) for tensor in kept.values())
        measures = local_result.steps, local_result.loss, before, after, finite
        return Trained(request.client, weights.cpu(), buffers.cpu(), *measures, kept)

    def _run(self, request: LocalTraining, examples: ClientExamples, held_out: ClientExamples) -> LocalResult:
        """The request's program, or else its recipe's steps; the model changes in place."""
        program, recipe, model = request.program, request.recipe, self.model
        if request.objective.reads_features:
            self._watch_head()
        if program is None:
            return LocalResult(*self._train(request, examples, held_out))
        work = LocalWork(
            request,
            model,
            self.layout,
            examples,
            {name: on_device(tensor, self.device) for name, tensor in program.tensors.items()},
            select=lambda rows: self.data.select(rows, self.dtype),
            objective=functools.partial(self._objective, request, examples, held_out),
            batches=functools.partial(_batches, request, examples),
            optimizer=lambda module: _optimizer(module, self.layout.head, recipe, "all"),
            train_mode=functools.partial(_train_mode, recipe=recipe),
            course=functools.partial(Course, model, recipe, steps=local.steps(recipe, len(examples))),
            train=functools.partial(self._train, request, examples, held_out),
        )
        result = program.run(program.settings, work)
        if not isinstance(result, LocalResult):
            raise UserError(f"program {program.run.__name__} returned {type(result).__name__} instead of a LocalResult")
        return result

    def _objective(
        self, request: LocalTraining, examples: ClientExamples, held_out: ClientExamples
    ) -> tuple[LossRows, SampleLoss]:
        """The rows and the loss of the request's objective under the model as it is now."""
        inputs = {name: tensor.to(self.device) for name, tensor in request.inputs.items()}

        def start_logits() -> Tensor:
            return forward_all(self.model, examples, INFERENCE_ROWS)

        def features(name: str) -> Tensor:
            weights, buffers = flat.flat_vectors(self.model)
            outputs = self._logits(Inference(request.model_of(name), request.rows, "train", output="features"))
            flat.load_flat(self.model, self.layout, weights, buffers)
            return outputs.to(self.device)

        head = self._head if request.objective.reads_head else None
        labels = torch.cat([examples.labels, held_out.labels])
        rows, loss = make_loss(request.objective, ObjectiveInputs(labels, inputs, start_logits, head, features))
        if not request.objective.reads_features:
            return rows, loss
        # plus 0, so that a loss of features alone gives the head a gradient, as in the other engines
        return rows, lambda logits, batch: loss(logits, batch, self._read) + 0 * logits.sum(1)

    def _watch_head(self) -> None:
        """Keep what the head reads in each forward pass from here on, that of a copy of the model, too."""

        def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._read = inputs[0]

        if not self._watching:
            self._head.register_forward_pre_hook(keep)
            self._watching = True

    def _train(self, request: LocalTraining, examples: ClientExamples, held_out: ClientExamples) -> tuple[float, int]:
        """(mean loss over all steps, steps) of the client's phases; the model changes in place."""
        model, recipe = self.model, request.recipe
        rows, loss = self._objective(request, examples, held_out)
        optimizers = {
            phase.trains: _optimizer(model, self.layout.head, recipe, phase.trains) for phase in recipe.phases
        }
        penalty = _proximal_term(model, recipe.proximal) if recipe.proximal else None
        before_step = None
        if request.control is not None:
            before_step = _control_step(model, self.layout, request.control.to(self.device, self.dtype))
        course = Course(model, recipe, optimizers.values(), local.steps(recipe, len(examples)))
        if request.held:
            course.watch(functools.partial(self._held_loss, request, examples, held_out, rows, loss))
        _train_mode(model, recipe)
        draws = local.local_draws(request)
        total, steps = zero_sum(self.device), 0
        for phase in recipe.phases:
            for _ in range(phase.epochs):
                for batch in examples.epoch(recipe.batch_size, draws, recipe.drop_last, recipe.augment):
                    value = train_batch(model, batch, loss, rows, optimizers[phase.trains], penalty, before_step)
                    total, steps = total + value.to(total.dtype), steps + 1
                    if course.ends(steps):
                        return float(total) / steps, steps
        course.finish(steps)
        return float(total) / max(steps, 1), steps

    def _held_loss(
        self, request: LocalTraining, examples: ClientExamples, held_out: ClientExamples, rows: LossRows,
        loss: SampleLoss,
    ) -> float:  # fmt: skip
        """Return the mean loss of the held-out examples, whose ``rows`` follow those of ``examples``."""
        places = torch.arange(len(examples), len(examples) + len(held_out))
        logits = forward_all(self.model, held_out, INFERENCE_ROWS)
        if request.objective.reads_features:
            self._read = forward_all(self.model, held_out, INFERENCE_ROWS, feature_reader(self.model, self.network))
        value = loss(logits, cut_rows(rows, places, self.device)).mean()
        _train_mode(self.model, request.recipe)
        return float(value)

    def _correct(self, rows: Tensor) -> int:
        """How many of the test examples at ``rows`` are classified correctly."""
        if not len(rows):
            return 0
        examples = self.test.select(rows, self.dtype)
        return int((forward_all(self.model, examples, INFERENCE_ROWS).argmax(1) == examples.labels).sum())

    def _logits(self, request: Inference) -> Tensor:
        model = request.model
        flat.load_flat(self.model, self.layout, model.weights.to(self.device), model.buffers.to(self.device))
        data = self.test if request.split == "test" else self.data
        call = feature_reader(self.model, self.network) if request.output == "features" else None
        return forward_all(self.model, data.select(request.rows, self.dtype), INFERENCE_ROWS, call).cpu()


def _proximal_term(model: nn.Module, mu: float) -> Callable[[], Tensor]:
    """Return (mu / 2) || w - w_start ||^2 (Li et al. 2020, eq. 2) from the weights as they are now."""
    origins = [parameter.detach().clone() for parameter in model.parameters()]

    def _term() -> Tensor:
        pairs = zip(model.parameters(), origins, strict=True)
        return mu / 2 * sum((parameter - origin).square().sum() for parameter, origin in pairs)

    return _term


def _control_step(model: nn.Module, layout: flat.FlatLayout, control: Tensor) -> Callable[[], None]:
    """Return a function that adds the control variate [P] of SCAFFOLD to every gradient."""
    named = flat.views(control, layout.parameters)

    def _add() -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                parameter.grad += named[name]

    return _add


def _batches(request: LocalTraining, examples: ClientExamples) -> Iterator[InputBatch]:
    """Yields the batches of all epochs of the request, whatever its phases train."""
    recipe, draws = request.recipe, local.local_draws(request)
    for _ in range(sum(phase.epochs for phase in recipe.phases)):
        yield from examples.epoch(recipe.batch_size, draws, recipe.drop_last, recipe.augment)


def _build(network: Network, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The module; every request brings its weights, so those of our image models are not even initialized."""
    if not network.is_ours:
        with seeded(0, "unused"):
            return build_network(network).to(device, dtype)
    with torch.device("meta"):
        model = build_network(network)
    return model.to(dtype).to_empty(device=device)


@contextlib.contextmanager
def _dropout_seed(request: LocalTraining, device: torch.device) -> Iterator[None]:
    """Dropout keyed by (seed, round, client)."""
    names = ("dropout", request.round, request.client)
    with seeded(request.seed, *names):
        if not is_host(device.type):
            torch.get_device_module(device).manual_seed(keyed(request.seed, *names))
        yield


def _train_mode(model: nn.Module, recipe: Recipe) -> None:
    model.train()
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.frozen = recipe.frozen_statistics
        elif isinstance(module, nn.modules.batchnorm._BatchNorm) and recipe.frozen_statistics:
            module.eval()


def _optimizer(model: nn.Module, head: str, recipe: Recipe, trains: str) -> torch.optim.Optimizer:
    """The optimizer of one kind of phase; parameters that it does not train get no gradient in that phase."""
    by_decay: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decay = recipe.weight_decay if recipe.decay_biases or not name.endswith("bias") else 0.0
        if trains == "all" or name.startswith(head) == (trains == "head"):
            by_decay.setdefault(decay, []).append(parameter)
    groups = [{"params": parameters, "weight_decay": decay} for decay, parameters in by_decay.items()]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.lr, fused=True)
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
