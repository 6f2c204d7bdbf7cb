"""What a kind of personalisation is: a method over the clients, and the models of theirs that are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from knot_runner.config.settings import FederatedSettings
from knot_runner.methods.contract import Method
from knot_runner.methods.federated.population import ClientModel, FederatedState, Population


@dataclass(frozen=True)
class PersonalFederation:
    """All clients after the last round. ``hp``: the settings of the rounds; ``start(client)``: the model that the
    client used after the last one, theta_0 (FedAvg: the global model)."""

    hp: FederatedSettings
    population: Population
    start: Callable[[int], ClientModel]

    @property
    def clients(self) -> range:
        """All of them, with those that took part in no round."""
        return range(len(self.population.train))


@dataclass(frozen=True)
class Point:
    """One model of every client. ``step``: saves of its training since the last round, 0 before any; ``epochs``: so
    many of local training; ``alpha``: its weight against theta_0, 1 for the trained model itself."""

    step: int
    epochs: int
    alpha: float = 1.0

    @property
    def mixed(self) -> bool:
        """Whether its weights lie between models, so that running statistics are to be estimated anew."""
        return self.alpha not in (0.0, 1.0)


#: (settings, federation, state, round) -> (number of a point, client, its model) of all that are measured after it
Measured = Callable[[Any, PersonalFederation, FederatedState, int], Iterable[tuple[int, int, ClientModel]]]


@dataclass(frozen=True)
class Personalisation:
    """``method``: ``init``, ``plan`` and ``fold`` over a :class:`PersonalFederation`; ``rounds(settings, federation)``:
    how many it plans; ``points(settings)``: all that are measured, in order; ``measured``: which after which round, one
    point after another. Over all rounds every client's model of every point is measured once."""

    method: Method
    rounds: Callable[[Any, PersonalFederation], int]
    points: Callable[[Any], list[Point]]
    measured: Measured
    #: (settings, federation, state, losses) -> arrays for the record and facts for the result, once all rounds are
    #: through; ``losses(client, models)`` [models, K]: mean loss of models of a client on every client's test examples
    finish: Callable[..., tuple[dict[str, Tensor], dict[str, Any]]] | None = None


#: ``method.personalisation.kind`` -> its functions; a plug-in may add its own.
PERSONALISATIONS: dict[str, Personalisation] = {}
