"""The plain loop over clients: modules, autograd and ``torch.optim``. It is the reference for the other engines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from knot_runner.engine.examples import ClientData, ClientExamples, InputBatch
from knot_runner.engine.federated import flat, local
from knot_runner.engine.federated.cohort import (
    INFERENCE_ROWS,
    Course,
    Inference,
    LocalProgram,
    LocalResult,
    LocalTraining,
    LocalWork,
    Phase,
    Recipe,
    Trained,
)
from knot_runner.engine.hardware import on_device
from knot_runner.engine.objectives import LossRows, ObjectiveInputs, SampleLoss, make_loss
from knot_runner.engine.seeds import seeded
from knot_runner.engine.training import cut_rows, forward_all, make_optimizer, take_steps, train_batch
from knot_runner.models.layers import TORCH_BATCH_NORMS, BatchNorm
from knot_runner.models.network import Network, build_network
from knot_runner.models.taps import feature_reader
from knot_runner.util.errors import UserError


class Loop:
    """Trains one client after another on ``device``, with any network and objective.

    ``data``, ``test``: the examples of all clients.
    """

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
        """Implement :meth:`Engine.train`."""
        return [self.train_client(request) for request in cohort]

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Implement :meth:`Engine.logits`."""
        return [self._logits(request) for request in requests]

    def close(self) -> None:
        """Do nothing, because there is nothing to free."""

    def train_client(self, request: LocalTraining) -> Trained:
        """Train one client, starting from the request's model, by the request's settings or program.

        The model is evaluated before and after training.
        """
        model, start = self.model, request.start
        flat.load_flat(model, self.layout, start.weights.to(self.device), start.buffers.to(self.device))
        examples = self.data.select(request.rows[: len(request.rows) - request.held], self.dtype)
        before = self._correct(request.test_rows)
        with seeded(request.seed, "dropout", request.round, request.client, device=self.device):
            if request.program is None:
                result = LocalResult(*self._train(request, examples))
            else:
                result = self._run(request.program, request, examples)
        weights, buffers = flat.flat_vectors(model)
        after = self._correct(request.test_rows)
        kept = {name: tensor.cpu() for name, tensor in result.kept.items()}
        (finite,) = local.finite(weights[None])
        finite = finite and all(bool(tensor.isfinite().all()) for tensor in kept.values())
        return Trained(
            request.client, weights.cpu(), buffers.cpu(), result.steps, result.loss, before, after, finite, kept
        )

    def _train(self, request: LocalTraining, examples: ClientExamples) -> tuple[float, int]:
        """Take all steps of the request; return (mean loss over all steps, steps). The model changes in place."""
        model, recipe = self.model, request.recipe
        rows, loss = self._objective(request, examples)
        optimizers = {}
        for phase in recipe.phases:
            optimizers[phase.trains] = _optimizer(model, self.layout.head, recipe, phase.trains)
        penalty = before_step = ends = None
        if recipe.proximal:
            penalty = _proximal_term(model, recipe.proximal)
        if request.control is not None:
            before_step = _control_step(model, self.layout, request.control.to(self.device, self.dtype))
        if recipe.cosine or request.held:
            held_loss = functools.partial(self._held_loss, request, rows, loss) if request.held else None
            ends = Course(model, recipe, optimizers.values(), local.steps(recipe, len(examples)), held_loss).ends
        _train_mode(model, recipe)

        def step(part: tuple[Phase, InputBatch]) -> tuple[Tensor, int]:
            phase, batch = part
            return train_batch(model, batch, loss, rows, optimizers[phase.trains], penalty, before_step), 1

        return take_steps(_batches(request, examples), step, self.device, ends)

    def _run(self, program: LocalProgram, request: LocalTraining, examples: ClientExamples) -> LocalResult:
        """Run ``program`` instead of the training steps."""
        recipe, model = request.recipe, self.model
        work = LocalWork(
            request,
            model,
            self.layout,
            examples,
            {name: on_device(tensor, self.device) for name, tensor in program.tensors.items()},
            select=lambda rows: self.data.select(rows, self.dtype),
            objective=functools.partial(self._objective, request, examples),
            batches=lambda: (batch for _, batch in _batches(request, examples)),
            optimizer=lambda module: _optimizer(module, self.layout.head, recipe, "all"),
            train_mode=functools.partial(_train_mode, recipe=recipe),
            course=functools.partial(Course, model, recipe, steps=local.steps(recipe, len(examples))),
            train=functools.partial(self._train, request, examples),
        )
        result = program.run(program.settings, work)
        if not isinstance(result, LocalResult):
            raise UserError(f"{program.run.__name__}() returned {type(result).__name__} instead of a LocalResult")
        return result

    def _objective(self, request: LocalTraining, examples: ClientExamples) -> tuple[LossRows, SampleLoss]:
        """Return the rows and the loss of the request's objective, whose initial logits come from the current model."""
        objective, labels = request.objective, self.data.labels
        inputs = ObjectiveInputs(
            labels[request.rows.to(labels.device)],
            {name: tensor.to(self.device) for name, tensor in request.inputs.items()},
            start_logits=functools.partial(forward_all, self.model, examples, INFERENCE_ROWS),
            head=self._head if objective.reads_head else None,
            features=functools.partial(self._features, request),
        )
        rows, loss = make_loss(objective, inputs)
        if objective.reads_features:
            loss = self._on_features(loss)
        return rows, loss

    def _features(self, request: LocalTraining, name: str) -> Tensor:
        """Return the features [n, H] of the request's rows under the request's model ``name``."""
        weights, buffers = flat.flat_vectors(self.model)
        outputs = self._logits(Inference(request.model_of(name), request.rows, "train", output="features"))
        flat.load_flat(self.model, self.layout, weights, buffers)
        return outputs.to(self.device)

    def _on_features(self, loss: SampleLoss) -> SampleLoss:
        """Return ``loss``, which also reads features, as a function of the logits only.

        From now on, each forward pass stores the head's input, also in copies of the model.
        """

        def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._read = inputs[0]

        if not self._watching:
            self._head.register_forward_pre_hook(keep)
            self._watching = True
        # plus 0, so that a loss of features alone gives the head a gradient, as in the other engines
        return lambda logits, batch: loss(logits, batch, self._read) + 0 * logits.sum(1)

    def _held_loss(self, request: LocalTraining, rows: LossRows, loss: SampleLoss) -> float:
        """Return the mean loss of the held-out examples, which are the last rows of the request."""
        places = torch.arange(len(request.rows))[-request.held :]
        held_out = self.data.select(request.rows[-request.held :], self.dtype)
        logits = forward_all(self.model, held_out, INFERENCE_ROWS)
        if request.objective.reads_features:
            self._read = forward_all(self.model, held_out, INFERENCE_ROWS, feature_reader(self.model, self.network))
        value = loss(logits, cut_rows(rows, places, self.device)).mean()
        _train_mode(self.model, request.recipe)
        return float(value)

    def _correct(self, rows: Tensor) -> int:
        """Return the number of correctly classified test examples at ``rows``."""
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
    """Return a function that computes (mu / 2) || w - w_start ||^2 (Li et al. 2020, eq. 2).

    w_start are the weights at the time of this call.
    """
    origins = [parameter.detach().clone() for parameter in model.parameters()]

    def _term() -> Tensor:
        pairs = zip(model.parameters(), origins, strict=True)
        return mu / 2 * sum((parameter - origin).square().sum() for parameter, origin in pairs)

    return _term


def _control_step(model: nn.Module, layout: flat.FlatLayout, control: Tensor) -> Callable[[], None]:
    """Return a function that adds SCAFFOLD's control variate [P] to every gradient."""
    named = flat.views(control, layout.parameters)

    def _add() -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                parameter.grad += named[name]

    return _add


def _batches(request: LocalTraining, examples: ClientExamples) -> Iterator[tuple[Phase, InputBatch]]:
    """Yield every batch of the request's epochs, together with the batch's phase."""
    recipe, draws = request.recipe, local.local_draws(request)
    for phase in recipe.phases:
        for _ in range(phase.epochs):
            for batch in examples.epoch(recipe.batch_size, draws, recipe.drop_last, recipe.augment):
                yield phase, batch


def _build(network: Network, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Return the module. The package's own image models are not initialized, because every request provides weights."""
    if not network.is_ours:
        with seeded(0, "unused"):
            return build_network(network).to(device, dtype)
    with torch.device("meta"):
        model = build_network(network)
    return model.to(dtype).to_empty(device=device)


def _train_mode(model: nn.Module, recipe: Recipe) -> None:
    model.train()
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.frozen = recipe.frozen_statistics
        elif isinstance(module, TORCH_BATCH_NORMS) and recipe.frozen_statistics:
            module.eval()


def _optimizer(model: nn.Module, head: str, recipe: Recipe, trains: str) -> torch.optim.Optimizer:
    """Return the optimizer for one kind of phase. Parameters that the phase does not train get no gradient."""
    named = list(model.named_parameters())
    if trains != "all":
        named = [(name, parameter) for name, parameter in named if name.startswith(head) == (trains == "head")]
    decayed = [parameter for name, parameter in named if recipe.decay_biases or not name.endswith("bias")]
    others = [parameter for name, parameter in named if not recipe.decay_biases and name.endswith("bias")]
    groups: list[dict[str, Any]] = [{"params": decayed}]
    if others:  # each group, even an empty one, takes time in every step
        groups.append({"params": others, "weight_decay": 0.0})
    return make_optimizer(recipe, groups, fused_sgd=False)
