"""The interface of a personalization.

A personalization consists of a method over the clients, the clients' training after the last round, and the points
(times and mixing weights) at which the clients' models are evaluated. This training works as in the rounds, but has its
own learning rate, optimizer and number of epochs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from knot_runner.config.plugins import Table
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.config.settings.methods.personalization import LocalSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase, Recipe, Trained
from knot_runner.engine.tensor_file import Tensors
from knot_runner.methods.contract import RoundMethod
from knot_runner.methods.federated.averaging import local_request
from knot_runner.methods.federation import FederatedState, Federation, Folded
from knot_runner.util.files import Facts


@dataclass(frozen=True, kw_only=True)
class PersonalFederation(Federation):
    """All clients after the last round.

    ``method``: the method settings of the rounds; ``start(client)``: the model theta_0 that the client used after the
    last round (FedAvg: the global model); ``groups``: each client's group, if the partition defines groups.
    """

    method: FederatedSettings
    start: Callable[[int], ClientModel]
    groups: Sequence[int] | None = None

    @staticmethod
    def after(
        federation: Federation, method: FederatedSettings, start: Callable[[int], ClientModel],
        groups: Sequence[int] | None = None,
    ) -> PersonalFederation:  # fmt: skip
        """Return a copy of ``federation`` for personalization, with the method's settings, theta_0 and the groups."""
        fields = {field.name: getattr(federation, field.name) for field in dataclasses.fields(federation)}
        return PersonalFederation(**fields, method=method, start=start, groups=groups)

    @property
    def starts(self) -> list[ClientModel]:
        """Return every client's theta_0."""
        return [self.start(client) for client in self.everyone]


@dataclass(frozen=True)
class Point:
    """A point at which one model of every client is evaluated.

    Attributes:
        step: The number of checkpoints reached in the training after the last round; 0 before the first checkpoint.
        epochs: The number of epochs of local training after the last round.
        alpha: The trained model's weight in the mix with theta_0; 1 for the trained model.
        phase: ``trained`` for a model that the client has trained, ``combined`` for a combination of several models;
            None for methods that do not have both phases.
    """

    step: int
    epochs: int
    alpha: float = 1.0
    phase: Literal["trained", "combined"] | None = None

    @property
    def mixed(self) -> bool:
        """Return whether the model is a mix of models, whose running statistics must be estimated again."""
        return self.alpha not in (0.0, 1.0) or self.phase == "combined"


#: Models by the client's number.
ClientModels = dict[int, ClientModel]
#: Pairs (index of a point, each client's model at this point).
MeasuredModels = Iterator[tuple[int, ClientModels]]
#: (settings, federation, state, round) -> all models to evaluate after this round
Measured = Callable[[Any, PersonalFederation, FederatedState, int], MeasuredModels]
#: Arrays for the record, and facts for the result.
Finished = tuple[Tensors, Facts]


@dataclass(frozen=True)
class Personalization:
    """A personalization: ``method`` with ``init``, ``plan`` and ``fold`` over a :class:`PersonalFederation`.

    ``rounds(settings, federation)``: the number of personalization rounds; ``points(settings)``: all evaluated points,
    in order; ``measured``: the models to evaluate after a round, point by point. Over all rounds, every client's model
    is evaluated once at every point.

    ``check(settings, federation)`` returns notes for the user before the rounds, and raises ``UserError`` if the method
    cannot personalize these clients.
    """

    method: RoundMethod
    rounds: Callable[[Any, PersonalFederation], int]
    points: Callable[[Any], list[Point]]
    measured: Measured
    #: (settings, federation, state, losses) -> arrays for the record and facts for the result, after all rounds.
    #: ``losses(client, models)`` [models, K] returns the mean loss of each model of a client on every client's test
    #: examples.
    finish: Callable[..., Finished] | None = None
    check: Callable[[Any, Federation], list[str]] = lambda config, federation: []


#: All personalizations, by ``method.personalization.kind``. Plug-ins may add more.
PERSONALIZATIONS: Table[Personalization] = Table("PERSONALIZATIONS", {}, papers="methods")


def personal_recipe(config: LocalSettings, federation: PersonalFederation, client: int, epochs: int) -> Recipe:
    """Return the configuration of local training after the rounds: SGD or AdamW with the learning rate ``rate``.

    Momentum and weight decay are 0. Temperature, batches and augmentation are the same as in the last round.
    """
    training = federation.training
    whole = local_request(federation.method, federation, training.rounds, client, federation.model).recipe
    return dataclasses.replace(
        whole,
        phases=(Phase(epochs),),
        batch_size=config.batch_size or whole.batch_size,
        lr=config.rate * (whole.lr / training.lr),  # with lr_control, the learning rate includes the temperature
        momentum=0.0,
        weight_decay=0.0,
        proximal=0.0,
        optimizer=config.optimizer,
    )


def personal_training(
    federation: PersonalFederation, client: int, step: int, start: ClientModel, recipe: Recipe
) -> LocalTraining:
    """Return the request that trains ``client`` from the model ``start``."""
    last = federation.training.rounds
    request = local_request(federation.method, federation, last, client, start)
    return dataclasses.replace(request, round=last + 1 + step, recipe=recipe, test_rows=request.test_rows[:0])


def train_all(
    config: Any, federation: PersonalFederation, step: int, starts: Sequence[ClientModel]
) -> list[LocalTraining]:
    """Return requests that train every client for ``config.epochs`` epochs, from the models ``starts``."""
    requests = []
    for client, start in enumerate(starts):
        recipe = personal_recipe(config, federation, client, config.epochs)
        requests.append(personal_training(federation, client, step, start, recipe))
    return requests


def with_trained(state: FederatedState, models: FederatedState, trained: Sequence[Trained]) -> Folded:
    """Return the state in which ``models`` replace the previous models, and log entries with the mean training loss.

    ``models``: state entries below ``theta/``.
    """
    kept = {name: value for name, value in state.items() if not name.startswith("theta/")}
    return kept | models, {"train_loss": sum(result.loss for result in trained) / len(trained)}
