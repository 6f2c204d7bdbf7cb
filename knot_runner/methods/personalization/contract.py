"""The interface of a personalization, which adapts each client's model after the last round.

A personalization consists of a method that trains the clients, and of points at which the clients' models are
evaluated. Local training works as in the rounds, but has its own learning rate, optimizer and number of epochs.
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
from knot_runner.methods.contract import FoldFunction, PlanFunction
from knot_runner.methods.federated.averaging import local_request
from knot_runner.methods.federation import FederatedState, Federation, Folded
from knot_runner.util.files import Facts


@dataclass(frozen=True, kw_only=True)
class PersonalFederation(Federation):
    """The input of a personalization: all clients after the last federated round.

    Attributes:
        method: The settings of the federated method.
        start: ``(client) -> theta_0``. theta_0 is the client's model after the last round. With FedAvg, this
            model is the global model.
        groups: Each client's group; None if the partition defines no groups.
    """

    method: FederatedSettings
    start: Callable[[int], ClientModel]
    groups: Sequence[int] | None = None

    @staticmethod
    def after(
        federation: Federation, method: FederatedSettings, start: Callable[[int], ClientModel],
        groups: Sequence[int] | None = None,
    ) -> PersonalFederation:  # fmt: skip
        """Return a PersonalFederation: ``federation``, extended by ``method``, ``start`` and ``groups``."""
        fields = {field.name: getattr(federation, field.name) for field in dataclasses.fields(federation)}
        return PersonalFederation(**fields, method=method, start=start, groups=groups)

    @property
    def starts(self) -> list[ClientModel]:
        """Return theta_0 of every client: the client's model after the last round."""
        return [self.start(client) for client in self.everyone]


@dataclass(frozen=True)
class Point:
    """An evaluation point of a personalization. Every client has one model at this point.

    Attributes:
        step: The number of completed averaging rounds (``cossim``), gradient steps (``transfer_matrix``) or checkpoints
            (all other kinds).
        epochs: The number of epochs that the client has trained after the last round.
        alpha: The weight of the trained model in a mix with theta_0; 1 for the trained model alone.
        phase: ``trained`` if the client has just trained the model. ``combined`` if the model is a combination of
            several clients' models. None if the personalization does not combine clients' models.
    """

    step: int
    epochs: int
    alpha: float = 1.0
    phase: Literal["trained", "combined"] | None = None

    @property
    def mixed(self) -> bool:
        """Return whether each model at this point is a mix of several models. A mix needs new running statistics."""
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
    """A kind of personalization, as registered in :data:`PERSONALIZATIONS`.

    Attributes:
        init, plan, fold: The functions of the training in rounds, as in :class:`Method`, but ``fold(config, state,
            federation, round, requests, trained) -> (state, row)`` reads the results of the requests.
        rounds: ``(settings, federation) -> number``: the number of rounds.
        points: ``(settings) -> points``: all evaluated points, in order.
        measured: ``(settings, federation, state, round) -> pairs``: the models to evaluate after ``round``. Each pair
            holds the index of a point, and a dict from client numbers to models. The pairs of all rounds together hold
            one model for every client and point.
        check: ``(settings, federation) -> notes``: notes for the user. The check runs before the first federated
            round, and raises ``UserError`` if the method cannot personalize these clients.
    """

    init: Callable[..., FederatedState]
    plan: PlanFunction
    fold: FoldFunction
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
    """Return the configuration of a client's local training after the last round.

    ``config`` selects the optimizer, the learning rate and the batch size. Momentum, weight decay and the proximal
    term are 0. All other settings are those of the federated rounds.
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
    """Return the request to train the model ``start`` on the examples of ``client``, as configured in ``recipe``."""
    last = federation.training.rounds
    request = local_request(federation.method, federation, last, client, start)
    return dataclasses.replace(request, round=last + 1 + step, recipe=recipe, test_rows=request.test_rows[:0])


def train_all(
    config: Any, federation: PersonalFederation, step: int, starts: Sequence[ClientModel]
) -> list[LocalTraining]:
    """Return one request per client: train the client's model in ``starts`` for ``config.epochs`` epochs."""
    requests = []
    for client, start in enumerate(starts):
        recipe = personal_recipe(config, federation, client, config.epochs)
        requests.append(personal_training(federation, client, step, start, recipe))
    return requests


def with_trained(state: FederatedState, models: FederatedState, trained: Sequence[Trained]) -> Folded:
    """Return the state with ``models`` in place of the previous models, and a log entry with the mean loss.

    ``models``: state entries whose names begin with ``theta/``. ``trained``: the results of the training.
    """
    kept = {name: value for name, value in state.items() if not name.startswith("theta/")}
    return kept | models, {"train_loss": sum(result.loss for result in trained) / len(trained)}
