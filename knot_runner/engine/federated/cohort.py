"""The engine interface: requests for a client's local training and for inference, and results, as plain data.

:mod:`knot_runner.engine.requests` has similar classes with the same field names for stages. The classes in this module
contain tensors instead of references to stored tensors. A round has thousands of requests, and each request is executed
once and never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from knot_runner.config.settings.groups import HardwareSettings
from knot_runner.engine.examples import Augment, ClientData
from knot_runner.engine.objectives import Objective
from knot_runner.engine.tensor_file import Tensors
from knot_runner.models.network import Network
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from knot_runner.engine.training import LocalWork

Item = TypeVar("Item")
#: Number of examples per inference request. This number is fixed, so that logits do not depend on the number of
#: workers.
INFERENCE_ROWS = 512
#: Number of examples per inference request if ``Inference.many`` is true. Larger requests are then faster.
ROWS_OF_MANY = 1024


def silent(text: str) -> None:
    """Print nothing."""


@dataclass(frozen=True)
class ClientModel:
    """A model as two flat vectors: P weights, and Q buffer values (running statistics; Q = 0 without BatchNorm)."""

    weights: Tensor
    buffers: Tensor


@dataclass(frozen=True)
class LocalResult:
    """The result of local training, except for the trained weights, which are in the module.

    ``loss``: mean loss over all steps; ``steps``: number of optimizer steps; ``kept``: further tensors that a
    :class:`LocalProgram` returns, by name.
    """

    loss: float
    steps: int
    kept: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class LocalProgram:
    """A local program: a function ``run(settings, work)`` that replaces the steps of local training, and its inputs.

    ``work`` is a :class:`~knot_runner.engine.training.LocalWork`.

    ``settings``: plain data. ``tensors``: inputs in addition to the tensors of the request, by name. ``further``: for
    cost accounting, the number of epochs that the program trains in addition to the epochs of the request. Worker
    processes look up ``run`` by its module and name, so it must be defined at the top level of a module of the package
    or of a plug-in.
    """

    run: Callable[[dict[str, Any], LocalWork], LocalResult]
    settings: dict[str, Any] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    further: float = 0.0


@dataclass(frozen=True)
class LocalTraining:
    """A request for one client's work in one round.

    Attributes:
        client: The client's number.
        round: The round, counted from 0.
        seed: The seed of the run.
        start: The model that training starts from, in the dtype of the computation. Requests of a round may share
            this object.
        rows: Row numbers of the client's training examples among the training examples of all clients, int64, shape
            [n].
        test_rows: Row numbers, shape [m], of the test examples on which the model is evaluated before and after
            training.
        control: A vector of P values that is added to every gradient (SCAFFOLD); None if the method has no such vector.
        inputs: Inputs of the objective by name, each of shape [n, ...] with one entry per training example.
        models: Further models whose features the objective reads, such as the client's previous model.
        network: Index of the client's network among the networks of the engine.
        held: Number of examples at the end of ``rows`` that are held out from training. The mean loss on these examples
            is computed every ``recipe.check`` steps. Training stops after ``recipe.patience`` steps without a lower
            mean loss, and the weights with the lowest mean loss are returned.
        program: Replaces the training steps. Every engine runs it for one client at a time.
    """

    client: int
    round: int
    seed: int
    start: ClientModel
    rows: Tensor
    test_rows: Tensor
    recipe: Recipe
    control: Tensor | None = None
    objective: Objective = field(default_factory=Objective)
    inputs: Tensors = field(default_factory=dict)
    models: dict[str, ClientModel] = field(default_factory=dict)
    network: int = 0
    held: int = 0
    program: LocalProgram | None = None

    def model_of(self, name: str) -> ClientModel:
        """Return the model ``name``, whose features the objective reads.

        Raises:
            UserError: The request has no model of this name.
        """
        models = {"start": self.start, **self.models}
        if name not in models:
            raise UserError(
                f"objective {self.objective.name}: unknown model {name!r} (choose from {', '.join(models)})"
            )
        return models[name]

    @property
    def is_plain(self) -> bool:
        """Return whether the request needs only SGD with a constant learning rate.

        Such a request has no held-out rows and no program, and its objective does not read the head (``reads_head``).

        Every engine has its own training loop for such requests. All other requests run in the plain loop.
        """
        steady = self.recipe.optimizer == "sgd" and not self.recipe.cosine
        return steady and not self.held and not self.objective.reads_head and self.program is None


@dataclass(frozen=True)
class Trained:
    """The result of one client.

    Attributes:
        client: The client's number.
        weights: The trained weights [P].
        buffers: The running statistics [Q].
        steps: The number of optimizer steps.
        loss: The mean training loss over all steps, without the proximal term.
        before: The number of correct predictions on the request's test examples before training.
        after: The number of correct predictions on the same examples after training.
        finite: Whether all trained weights are finite.
        kept: Further tensors that a program returns.
    """

    client: int
    weights: Tensor
    buffers: Tensor
    steps: int
    loss: float
    before: int
    after: int
    finite: bool
    kept: Tensors = field(default_factory=dict)

    @property
    def model(self) -> ClientModel:
        """Return the trained model."""
        return ClientModel(self.weights, self.buffers)


@dataclass(frozen=True)
class Inference:
    """A request for the logits of ``rows`` [n] of the test or training examples under one ``model``.

    Attributes:
        network: The index of the network among the networks of the engine.
        output: ``logits`` or ``features``. Features are the inputs of the network's last layer.
        many: Whether further requests evaluate other models on the same rows. If so, the engine may share computations
            that depend only on the rows among these models. Results then differ by rounding.
        body: Identifier of the model's body (all layers except the head). Models with the same identifier differ only
            in their heads, so the engine may compute the inputs of these heads once. The results are bitwise equal.
    """

    model: ClientModel
    rows: Tensor
    split: Literal["test", "train"] = "test"
    _: KW_ONLY
    network: int = 0
    many: bool = False
    body: str = ""
    output: Literal["logits", "features"] = "logits"


class Engine(Protocol):
    """The interface of an engine, which trains cohorts and runs inference.

    Results do not depend on the order of requests, on the number of workers, or on how requests are divided into
    chunks.
    """

    name: str
    device: torch.device

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """Train every client of ``cohort``; return the results in the same order, on the CPU."""

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Return the logits [n, classes], or features [n, H], of every request, on the CPU, in evaluation mode."""

    def close(self) -> None:
        """End worker processes and free memory."""


def ordered(results: Mapping[int, Item]) -> list[Item]:
    """Return the values of ``results``, sorted by key. The keys are the positions of the requests."""
    return [results[position] for position in sorted(results)]


#: ``hardware.precision`` -> the dtype of weights and gradients.
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class EngineInputs:
    """Inputs for building an engine.

    Requests refer to ``networks`` by their index. ``note`` prints a message for the user. ``plugins`` are the plug-ins
    of the run.
    """

    hardware: HardwareSettings
    networks: Sequence[Network]
    data: ClientData
    test: ClientData
    device: torch.device
    note: Callable[[str], None]
    plugins: Sequence[str]

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of weights and gradients."""
        return DTYPES[self.hardware.precision]

    @property
    def has_only_image_models(self) -> bool:
        """Return whether all networks are image models of the package, not text or custom models."""
        return all(network.is_ours for network in self.networks)


# ------------------------------------------------------------------------------------------------------------- recipes


@dataclass(frozen=True)
class Phase:
    """A number of epochs that train all parameters, only the head, or all parameters except the head."""

    epochs: int
    trains: Literal["all", "head", "body"] = "all"


@dataclass(frozen=True)
class Recipe:
    """The training configuration of a client. The client minimizes mean_i loss_i + (proximal / 2) || w - w_start ||^2.

    A method computes the configuration for one client and one round from the settings (for example, a learning rate
    from a temperature). The configuration is never stored. In contrast, a user writes
    :class:`~knot_runner.config.settings.groups.StageSettings`, and the key of a stage depends on these settings. Both
    classes have an optimizer, learning rate, batch size and weight decay.

    ``cosine``: whether the learning rate of step t is lr (1 + cos(pi t / T)) / 2, where T is the maximum number of
    steps. ``check``, ``patience``: early stopping for requests with held-out rows; see ``held`` of
    :class:`LocalTraining`.
    """

    phases: tuple[Phase, ...]
    batch_size: int
    drop_last: bool
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay_biases: bool = True
    proximal: float = 0.0
    frozen_statistics: bool = False
    augment: Augment = "none"
    optimizer: Literal["sgd", "adamw"] = "sgd"
    cosine: bool = False
    check: int = 0
    patience: int = 0
