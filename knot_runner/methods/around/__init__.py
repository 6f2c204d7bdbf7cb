"""Wrappers that change the clients' messages in any federated method, and FLOP estimates for a round.

The wrappers are privacy, compression, a simulated fleet, server distillation, and clusters.

Message bytes are counted where messages are created (:mod:`knot_runner.methods.federated.averaging`,
:mod:`knot_runner.methods.messages`). FLOPs are estimated. Let F be the FLOPs of one example's forward pass. Inference
takes F. Training takes 3 F per example and epoch, since the backward pass takes about twice the forward pass (Kaplan et
al. 2020, section 2.1). The estimate leaves out optimizer steps, aggregation, evaluation on test examples, and an
objective's forward passes of other models.
"""

from __future__ import annotations

from collections.abc import Sequence

from knot_runner.config.settings.run import Settings
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.engine.flops import ExampleFlops
from knot_runner.methods.contract import SERVER, FurtherWork, Method
from knot_runner.methods.federation import Federation

#: Setting groups that add a wrapper to a method unless they are null. All other groups configure the method itself.
AROUND = ("privacy", "fleet")


def surrounded(method: Method, settings: Settings, federation: Federation) -> tuple[Method, Federation, list[str]]:
    """Return ``method`` with the wrappers that ``settings`` select, the wrapped federation, and notes for the user.

    Raises:
        UserError: The method does not support one of the wrappers.
    """
    notes: list[str] = []
    if getattr(settings.method, "server_distillation", None) is not None:
        from knot_runner.methods.around.server_distillation import with_distillation

        method = with_distillation(method, settings.method)
    if settings.privacy is not None:
        from knot_runner.methods.around.privacy import privately  # imports the privacy accountant

        method, federation, notes = privately(method, settings.privacy, settings, federation)
    share = getattr(settings.method, "top_k", None)
    if share is not None:
        from knot_runner.methods.around.compression import compressed

        method = compressed(method, share)
    if settings.fleet is not None:
        from knot_runner.methods.around.fleet import on_fleet

        method, federation = on_fleet(method, settings.fleet, federation)
        notes.append(f"fleet {settings.fleet.name}: the clock is simulated and counts virtual seconds")
    return method, federation, notes


def round_flops(
    flops: ExampleFlops | None, requests: Sequence[LocalTraining], further: FurtherWork
) -> dict[str, int | None]:
    """Return ``client_flops`` and ``server_flops`` of one round; both are None if ``flops`` is None.

    The counts cover the local training of ``requests`` and the work in ``further``, which follows the aggregation of
    the clients' messages. Inference in ``further`` is added to ``server_flops`` if the server trains, and otherwise to
    ``client_flops``.
    """
    if flops is None:
        return {"client_flops": None, "server_flops": None}
    local = sum(training_flops(request, flops) for request in requests)
    later = sum(training_flops(request, flops) for request in further.distillation)
    for inference in further.inferences:
        later += len(inference.rows) * flops.forward
    if further.distillation and further.distillation[0].client == SERVER:
        return {"client_flops": local, "server_flops": later}
    return {"client_flops": local + later, "server_flops": 0}


def training_flops(request: LocalTraining, flops: ExampleFlops) -> int:
    """Return the FLOPs of one local training: 3 F per example and epoch.

    An epoch that trains the head needs no gradients below the head, and an epoch that trains the body needs no
    gradients of the head's weights. If the request has a local program, ``further`` of the program is added as epochs
    that train all parameters.
    """
    recipe = request.recipe
    count = len(request.rows)
    if recipe.drop_last:
        count -= count % recipe.batch_size
    whole = 3 * flops.forward
    each = {"all": whole, "head": flops.forward + flops.head, "body": whole - flops.head}
    total = sum(phase.epochs * count * each[phase.trains] for phase in recipe.phases)
    if request.program:
        total += round(request.program.further * count * whole)
    return total
