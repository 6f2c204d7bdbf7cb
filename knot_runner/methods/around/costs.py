"""Estimated FLOPs of a federated round, summed over its clients.

Bytes are counted where messages are created, in :mod:`knot_runner.methods.federated.averaging`.

Let F be the FLOPs of one example's forward pass. Training takes 3 F per example and epoch, because the backward pass
takes about twice as many as the forward pass (Kaplan et al. 2020, section 2.1). Inference takes F. Not counted:
optimizer steps, aggregation, evaluation on test examples, and an objective's forward passes of other models.
"""

from __future__ import annotations

from collections.abc import Sequence

from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.engine.flops import ExampleFlops
from knot_runner.methods.contract import SERVER, FurtherWork


def round_flops(
    flops: ExampleFlops | None, requests: Sequence[LocalTraining], further: FurtherWork
) -> dict[str, int | None]:
    """Return ``client_flops`` and ``server_flops`` of one round; None if the FLOPs of an example are unknown.

    They cover the local training of ``requests`` and the ``further`` work after the fold. If the server trains, it also
    computes the clients' outputs.
    """
    if flops is None:
        return {"client_flops": None, "server_flops": None}
    client = server = 0
    answers = sum(len(inference.rows) for inference in further.inferences) * flops.forward
    for request in [*requests, *further.distillation]:
        if request.client != SERVER:
            client += training_flops(request, flops)
        else:
            server += training_flops(request, flops)
    if any(request.client == SERVER for request in further.distillation):
        server += answers
    else:
        client += answers
    return {"client_flops": client, "server_flops": server}


def training_flops(request: LocalTraining, flops: ExampleFlops) -> int:
    """Return the FLOPs of one local training: 3 F per example and epoch.

    An epoch that trains the head needs no gradients below the head, and an epoch that trains the body needs no
    gradients of the head's weights. A local program may train all parameters for further epochs.
    """
    recipe, count = request.recipe, len(request.rows)
    if recipe.drop_last:
        count -= count % recipe.batch_size
    each = {
        "all": 3 * flops.forward,
        "head": flops.forward + flops.head,
        "body": 3 * flops.forward - flops.head,
    }
    further = round(request.program.further * count * each["all"]) if request.program else 0
    return sum(phase.epochs * count * each[phase.trains] for phase in recipe.phases) + further
