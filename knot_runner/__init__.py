"""knot_runner: experiments in knowledge distillation and federated learning, composed from YAML.

From Python: ``import knot_runner as kr``, then ``kr.run(["task=femnist", "method=fedavg"]).result``. Each public name
is imported on first use, so that ``import knot_runner`` itself is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: Module -> the public names that it defines.
_NAMES = {
    "knot_runner.python": "claims compare compose run runs sweep table FinishedRun RunSelection",
    "knot_runner.config.settings.methods.federated": "AveragingSettings FederatedSettings",
    "knot_runner.config.settings.families": "Family register",
    "knot_runner.engine.federated.cohort": "ClientModel Inference LocalProgram LocalResult",
    "knot_runner.engine.objectives": "Objective",
    "knot_runner.engine.tracker": "TRACKERS TrackedRun",
    "knot_runner.metrics": "METRICS Metric TestSet",
    "knot_runner.methods.losses": "LOSSES Loss",
    "knot_runner.methods.weighting": "WEIGHTINGS",
    "knot_runner.methods.contract": "METHODS Method",
    "knot_runner.methods.messages": "Exchange",
    "knot_runner.methods.distill.term": "TERMS Term",
    "knot_runner.methods.federated.averaging": "local_request",
    "knot_runner.pipelines.clients": "make_setup open_engine",
    "knot_runner.pipelines.context": "RunInputs",
    "knot_runner.pipelines.rounds": "run_rounds",
    "knot_runner.report.claims.measures": "CLAIM_MEASURES ClaimMeasure",
    "knot_runner.report.figures.registry": "FIGURES",
    "knot_runner.report.tables.build": "TABLE_KINDS",
    "knot_runner.report.tables.kind": "TableKind TableRequest",
    "knot_runner.transport.federated": "Client Measure distance_between",
    "knot_runner.util.errors": "UserError",
}
#: Public name -> the module that defines this name.
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}

if TYPE_CHECKING:
    from knot_runner.config.settings.families import Family, register
    from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings
    from knot_runner.engine.federated.cohort import ClientModel, Inference, LocalProgram, LocalResult
    from knot_runner.engine.objectives import Objective
    from knot_runner.engine.tracker import TRACKERS, TrackedRun
    from knot_runner.methods.contract import METHODS, Method
    from knot_runner.methods.distill.term import TERMS, Term
    from knot_runner.methods.federated.averaging import local_request
    from knot_runner.methods.losses import LOSSES, Loss
    from knot_runner.methods.messages import Exchange
    from knot_runner.methods.weighting import WEIGHTINGS
    from knot_runner.metrics import METRICS, Metric, TestSet
    from knot_runner.pipelines.clients import make_setup, open_engine
    from knot_runner.pipelines.context import RunInputs
    from knot_runner.pipelines.rounds import run_rounds
    from knot_runner.python import FinishedRun, RunSelection, claims, compare, compose, run, runs, sweep, table
    from knot_runner.report.claims.measures import CLAIM_MEASURES, ClaimMeasure
    from knot_runner.report.figures.registry import FIGURES
    from knot_runner.report.tables.build import TABLE_KINDS
    from knot_runner.report.tables.kind import TableKind, TableRequest
    from knot_runner.transport.federated import Client, Measure, distance_between
    from knot_runner.util.errors import UserError

__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
