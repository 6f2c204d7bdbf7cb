"""The interface of a personalisation: a method over the clients, and the points at which their models are measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated.cohort import ClientModel
from knot_runner.methods.contract import Method
from knot_runner.methods.federation import FederatedState, Federation


@dataclass(frozen=True, kw_only=True)
class PersonalFederation(Federation):
    """All clients after the last round. ``hp``: the settings of the rounds; ``start(client)``: the model that the
    client used after the last one, theta_0 (FedAvg: the global model); ``groups``: of each client, where the partition
    has planted some."""

    hp: FederatedSettings
    start: Callable[[int], ClientModel]
    groups: Sequence[int] | None = None

    @staticmethod
    def after(
        federation: Federation,
        hp: FederatedSettings,
        start: Callable[[int], ClientModel],
        groups: Sequence[int] | None = None,
    ) -> PersonalFederation:
        """``federation`` after its rounds."""
        fields = {field.name: getattr(federation, field.name) for field in dataclasses.fields(federation)}
        return PersonalFederation(**fields, hp=hp, start=start, groups=groups)


@dataclass(frozen=True)
class Point:
    """One model of every client. ``step``: saves of its training since the last round, 0 before any; ``epochs``: so
    many of local training; ``alpha``: its weight against theta_0, 1 for the trained model itself; ``phase``: whether a
    client ``trained`` it or it was ``combined`` from those of several, where a kind has both."""

    step: int
    epochs: int
    alpha: float = 1.0
    phase: Literal["trained", "combined"] | None = None

    @property
    def mixed(self) -> bool:
        """Whether its weights lie between models, so that running statistics are to be estimated anew."""
        return self.alpha not in (0.0, 1.0) or self.phase == "combined"


#: (settings, federation, state, round) -> (number of a point, client, its model) of all that are measured after it
Measured = Callable[[Any, PersonalFederation, FederatedState, int], Iterable[tuple[int, int, ClientModel]]]


def _nothing_to_say(hp: Any, federation: Federation) -> list[str]:
    return []


@dataclass(frozen=True)
class Personalisation:
    """``method``: ``init``, ``plan`` and ``fold`` over a :class:`PersonalFederation`; ``rounds(settings, federation)``:
    number of its rounds; ``points(settings)``: all measured points, in order; ``measured``: the models due after a
    round, point by point. Over all rounds every client's model of every point is measured once.

    ``check(settings, federation)``: notes for the user before the rounds; raises ``UserError`` where it cannot
    personalise these clients.
    """

    method: Method
    rounds: Callable[[Any, PersonalFederation], int]
    points: Callable[[Any], list[Point]]
    measured: Measured
    #: (settings, federation, state, losses) -> arrays for the record and facts for the result, once all rounds are
    #: through; ``losses(client, models)`` [models, K]: mean loss of models of a client on every client's test examples
    finish: Callable[..., tuple[dict[str, Tensor], dict[str, Any]]] | None = None
    check: Callable[[Any, Federation], list[str]] = _nothing_to_say


#: ``method.personalisation.kind`` -> its functions; a plug-in may add its own.
PERSONALISATIONS: dict[str, Personalisation] = {}
