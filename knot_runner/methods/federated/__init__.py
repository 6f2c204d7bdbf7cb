"""Federated methods, one file per family: they request local training and average the results."""

from __future__ import annotations

from knot_runner.methods.contract import METHODS, Method
from knot_runner.methods.federated import (
    apfl,
    averaging,
    ditto,
    fedala,
    fedgen,
    fedsoup,
    own_models,
    personal,
    scaffold,
)
from knot_runner.methods.federated.feddistill import LABEL_MEANS, plan_regularised
from knot_runner.methods.federated.fedmd import CONSENSUS
from knot_runner.methods.federated.server_distillation import DISTILLATION
from knot_runner.methods.federated.traffic import BODIES, LABEL_LOGITS, MODELS_AND_CONTROLS, NOTHING_SENT, PUBLIC_LOGITS

_averaging = Method(averaging.init, averaging.plan, averaging.fold, averaging.deployed, exchange=DISTILLATION)
_controlled = scaffold.init, scaffold.plan, scaffold.fold, averaging.deployed
_personal = Method(personal.init, personal.plan, personal.fold, personal.deployed, one_model=False, traffic=BODIES)
_own = own_models.init, own_models.plan, own_models.fold, own_models.deployed
_by_labels = own_models.init, plan_regularised, own_models.fold, own_models.deployed

METHODS.update(
    fedavg=_averaging,
    fedprox=_averaging,
    scaffold=Method(*_controlled, exchange=DISTILLATION, traffic=MODELS_AND_CONTROLS),
    fedrep=_personal,
    fedper=_personal,
    ditto=Method(ditto.init, ditto.plan, ditto.fold, ditto.deployed, one_model=False),
    apfl=Method(averaging.init, apfl.plan, apfl.fold, apfl.deployed, one_model=False),
    fedala=Method(fedala.init, fedala.plan, fedala.fold, fedala.deployed, one_model=False),
    fedsoup=Method(fedsoup.init, fedsoup.plan, fedsoup.fold, fedsoup.deployed, one_model=False),
    feddistill=Method(*_by_labels, one_model=False, exchange=LABEL_MEANS, traffic=LABEL_LOGITS),
    fedmd=Method(*_own, one_model=False, exchange=CONSENSUS, traffic=PUBLIC_LOGITS),
    fedgen=Method(fedgen.init, fedgen.plan, fedgen.fold, averaging.deployed, exchange=DISTILLATION),
    local=Method(*_own, one_model=False, traffic=NOTHING_SENT),
)
