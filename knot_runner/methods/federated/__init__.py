"""Federated methods, one file per family: they ask for local training and average what comes of it."""

from __future__ import annotations

from knot_runner.methods.contract import METHODS, Method
from knot_runner.methods.federated import averaging, personal, scaffold
from knot_runner.methods.federated.server_distillation import DISTILLATION

_averaging = Method(averaging.init, averaging.plan, averaging.fold, averaging.deployed, exchange=DISTILLATION)
_personal = Method(personal.init, personal.plan, personal.fold, personal.deployed, one_model=False)

METHODS.update(
    fedavg=_averaging,
    fedprox=_averaging,
    scaffold=Method(scaffold.init, scaffold.plan, scaffold.fold, averaging.deployed, exchange=DISTILLATION),
    fedrep=_personal,
    fedper=_personal,
)
