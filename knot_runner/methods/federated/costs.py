"""Costs of a federated round: bytes (:mod:`~knot_runner.methods.federated.traffic`) and estimated FLOPs, of all of its
clients together.

With F, the forward pass of one example, training takes 3 F per example and epoch, since the backward pass takes about
twice the forward one (Kaplan et al. 2020, section 2.1), and inference takes F. Optimiser steps, aggregation, evaluation
on test examples, and an objective's forward passes of the starting model are left out.
"""

from __future__ import annotations

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.engine.flops import ExampleFlops
from knot_runner.methods.contract import Method, RoundWork
from knot_runner.methods.federated.server_distillation import SERVER
from knot_runner.methods.federated.traffic import WHOLE_MODELS
from knot_runner.methods.federation import Federation


def round_costs(
    method: Method, hp: FederatedSettings, federation: Federation, work: RoundWork, flops: ExampleFlops | None
) -> dict[str, int | None]:
    """``bytes_down``, ``bytes_up``, ``client_flops`` and ``server_flops`` of one round of ``federation``; FLOPs are
    None where those of an example are unknown."""
    down, up = (method.traffic or WHOLE_MODELS).count(hp, federation, work)
    client = server = None
    if flops is not None:
        client = sum(training_flops(request, flops) for request in work.requests)
        client += sum(training_flops(request, flops) for request in work.distillation if request.client != SERVER)
        server = sum(training_flops(request, flops) for request in work.distillation if request.client == SERVER)
        answers = sum(len(inference.rows) for inference in work.inferences) * flops.forward
        if method.exchange is not None and method.exchange.answered_by == "clients":
            client += answers
        else:
            server += answers
    return {"bytes_down": down, "bytes_up": up, "client_flops": client, "server_flops": server}


def training_flops(request: LocalTraining, flops: ExampleFlops) -> int:
    """Of one local training: 3 F per example and epoch; an epoch of the head alone needs no gradient below it, one of
    the body none of the head's weights; a program may train further epochs of all."""
    recipe, count = request.recipe, len(request.rows)
    if recipe.drop_last:
        count -= count % recipe.batch
    each = {
        "all": 3 * flops.forward,
        "head": flops.forward + flops.head,
        "body": 3 * flops.forward - flops.head,
    }
    further = round(request.program.further * count * each["all"]) if request.program else 0
    return sum(phase.epochs * count * each[phase.trains] for phase in recipe.phases) + further
