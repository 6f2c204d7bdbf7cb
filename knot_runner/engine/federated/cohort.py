"""The interface of engines: requests for local training and inference, and their results, as plain data.

Requests contain all tensors that they need. Methods that train in stages use the requests in
:mod:`knot_runner.engine.requests` instead.
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
    """Ignore the message ``text``."""


@dataclass(frozen=True)
class ClientModel:
    """A model as two flat vectors: P weights, and Q buffer values. Buffers are the running statistics of BatchNorm."""

    weights: Tensor
    buffers: Tensor


@dataclass(frozen=True)
class LocalResult:
    """The result of local training, without the trained weights, which are in ``LocalWork.model``.

    Attributes:
        loss: Mean loss over all steps.
        steps: Number of optimizer steps.
        kept: The tensors that a :class:`LocalProgram` returns, by name. Empty for ordinary training.
    """

    loss: float
    steps: int
    kept: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class LocalProgram:
    """A function and its inputs. The function replaces the training steps of a :class:`LocalTraining` request.

    Attributes:
        run: The function ``run(settings, work)``, where ``work`` is a :class:`~knot_runner.engine.training.LocalWork`.
            Define it at the top level of a module, so that worker processes can import it.
        settings: Plain data for ``run``.
        tensors: Input tensors by name, in addition to the tensors of the request.
        further: Number of epochs that ``run`` trains in addition to the epochs of the request. This number is used
            only to report the compute cost.
    """

    run: Callable[[dict[str, Any], LocalWork], LocalResult]
    settings: dict[str, Any] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    further: float = 0.0


@dataclass(frozen=True)
class LocalTraining:
    """A request for one client's local training in one round.

    Attributes:
        client: The client's number.
        round: The round, counted from 0.
        seed: The seed of the run.
        start: The initial model, in the dtype of the computation.
        rows: Row numbers of the client's training examples among the training examples of all clients, int64, shape
            [n].
        test_rows: Row numbers of the test examples, shape [m]. The model is evaluated on these examples before and
            after training.
        control: A vector of P values that is added to every gradient, as in SCAFFOLD; None if the method has no such
            vector.
        objective: The training objective.
        inputs: The objective's input tensors by name, each of shape [n, ...] with one row per training example.
        models: Models by name, such as the client's previous model. The objective reads their features.
        network: Index of the client's network among the networks of the engine.
        held: Number of held-out examples. They are the last entries of ``rows``, and are used for early stopping, not
            for training. Training stops after ``recipe.patience`` steps without a lower mean loss on
            these examples. The result has the weights with the lowest mean loss.
        program: A local program that replaces the training steps; None for ordinary training.
    """

    client: int
    round: int
    seed: int
    # Tensors, not references to stored tensors: a round has thousands of requests.
    # Each request is executed once and never stored.
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
        """Return the model ``name`` of ``models``. If ``name`` is "start", return the initial model.

        Raises:
            UserError: The request has no model of this name.
        """
        models = {"start": self.start, **self.models}
        if name not in models:
            raise UserError(
                f"objective {self.objective.name!r}: unknown model {name!r} (choose from {', '.join(models)})"
            )
        return models[name]

    @property
    def is_plain(self) -> bool:
        """Return whether this request can be trained without the reference engine.

        This requires SGD with a constant learning rate, no held-out examples, and no local program. Also,
        ``objective.reads_head`` must be false.
        """
        steady = self.recipe.optimizer == "sgd" and not self.recipe.cosine
        return steady and not self.held and not self.objective.reads_head and self.program is None


@dataclass(frozen=True)
class Trained:
    """The result of one client's local training.

    Attributes:
        client: The client's number.
        weights: The trained weights, shape [P].
        buffers: The running statistics after training, shape [Q].
        steps: The number of optimizer steps.
        loss: The mean training loss over all steps, without the proximal term.
        before: The number of correct predictions on the request's test examples before training.
        after: The number of correct predictions on the request's test examples after training.
        finite: Whether all trained weights, and the tensors in ``kept``, are finite.
        kept: The tensors that a :class:`LocalProgram` returns, by name. Empty for ordinary training.
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
    """A request for the logits or the features of n examples under one model.

    Attributes:
        model: The model.
        rows: Row numbers of the examples, shape [n].
        split: The examples to which ``rows`` refer: the "test" examples or the "train" examples of all clients.
        network: The index of the network among the networks of the engine.
        many: Whether other requests evaluate other models on the same examples. If true, the engine may reuse work for
            all these models. Results may then differ by rounding from results with ``many=False``.
        body: Identifier of the model's body (all layers except the head); "" if unknown. Models with the same
            identifier must have equal bodies. The engine may reuse work for these models without changing results.
        output: The requested values. Features are the inputs of the network's last layer.
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
    """The interface of an engine, which trains the clients of a round (the cohort) and runs inference.

    Results do not depend on the order of requests or on the number of workers.
    """

    name: str
    device: torch.device

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """Train every client of ``cohort``; return the results in the same order, on the CPU."""

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Return the logits [n, C] or the features [n, H] of every request, in order and on the CPU.

        Models are in evaluation mode.
        """

    def close(self) -> None:
        """End worker processes and free memory."""


def ordered(results: Mapping[int, Item]) -> list[Item]:
    """Return the values of ``results`` in ascending order of their keys."""
    return [results[position] for position in sorted(results)]


#: ``hardware.precision`` -> the dtype of weights and gradients.
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class EngineInputs:
    """Inputs for building an engine.

    Attributes:
        hardware: The settings of the hardware.
        networks: The networks to train. Requests refer to a network by its index in this sequence.
        data: The training examples of all clients.
        test: The test examples of all clients.
        device: The device to compute on.
        note: Function that prints a message for the user.
        plugins: The plug-ins of the run.
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
    """One phase of local training. ``epochs``: the number of epochs.

    ``trains``: the parameters to train: "all", "head", or "body" (all except the head).
    """

    epochs: int
    trains: Literal["all", "head", "body"] = "all"


# A method computes a recipe from the settings for each client and round, and a recipe is never stored.
# In contrast, users write StageSettings, and the keys of stages depend on them.
@dataclass(frozen=True)
class Recipe:
    """The training configuration of one client in one round.

    The client minimizes the mean loss plus ``proximal / 2 * ||w - w_start||^2``, where w_start are the initial weights.

    Attributes:
        phases: The phases of the training, in order.
        drop_last: Whether to leave out the last batch of an epoch if it is smaller than ``batch_size``.
        decay_biases: Whether weight decay also applies to biases.
        frozen_statistics: Whether training leaves the running statistics of batch normalization unchanged.
        cosine: Whether the learning rate of step t is ``lr * (1 + cos(pi * t / T)) / 2``, where T is the maximum number
            of steps. If false, the learning rate is constant.
        check: Number of steps between two evaluations on held-out examples (see ``LocalTraining.held``).
        patience: Training stops after this number of steps without a lower loss on held-out examples.
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

    @property
    def epochs(self) -> int:
        """Return the number of epochs of all phases together."""
        return sum(phase.epochs for phase in self.phases)
