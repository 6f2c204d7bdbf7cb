"""Federated methods: each is ``init``, ``plan``, ``fold`` and ``deployed``; one file per family, one table of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.methods.federated import averaging, personal, scaffold
from knot_runner.methods.federated.population import ClientModel, FederatedState

__all__ = ["FEDERATED", "FederatedMethod"]


@dataclass(frozen=True)
class FederatedMethod:
    """init(hp, population) -> state; plan(hp, state, population, round) -> requests, none when the method is through;
    fold(hp, state, population, requests, trained) -> state; deployed(hp, state, population, client) -> model.

    ``deployed`` is the model that a client uses; ``one_model``: it is the same for all clients.
    """

    init: Callable[..., FederatedState]
    plan: Callable[..., list[LocalTraining]]
    fold: Callable[..., FederatedState]
    deployed: Callable[..., ClientModel]
    one_model: bool


_averaging = FederatedMethod(averaging.init, averaging.plan, averaging.fold, averaging.deployed, True)
_personal = FederatedMethod(personal.init, personal.plan, personal.fold, personal.deployed, False)

#: ``method.algorithm`` -> its functions; settings: ``settings.FederatedSettings``.
FEDERATED: dict[str, FederatedMethod] = {
    "fedavg": _averaging,
    "fedprox": _averaging,
    "scaffold": FederatedMethod(scaffold.init, scaffold.plan, scaffold.fold, averaging.deployed, True),
    "fedrep": _personal,
    "fedper": _personal,
}
