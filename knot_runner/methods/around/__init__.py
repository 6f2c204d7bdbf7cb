"""Wrappers that add a feature to a federated method, and estimates of a round's FLOPs.

The wrappers add privacy, compression, a simulated fleet, server distillation, or clusters.

Let F be the FLOPs of one example's forward pass. Inference takes F per example. Training takes 3 F per example and
epoch, because the backward pass takes about twice the forward pass (Kaplan et al. 2020, section 2.1). The estimate
does not count optimizer steps, aggregation, evaluation, and forward passes of other models.
"""

from __future__ import annotations

from collections.abc import Sequence

from knot_runner.config.settings.run import Settings
from knot_runner.engine.federated.cohort import Inference, LocalTraining
from knot_runner.engine.federated.local import EngineRequest
from knot_runner.engine.flops import ExampleFlops
from knot_runner.methods.contract import SERVER, Method, RoundMethod
from knot_runner.methods.federation import Federation
from knot_runner.methods.messages import in_rounds

#: Setting groups that add a wrapper to a method unless they are null. All other groups configure the method itself.
AROUND = ("privacy", "fleet")


def surrounded(method: Method, settings: Settings, federation: Federation) -> tuple[RoundMethod, Federation, list[str]]:
    """Wrap ``method`` in the wrappers that ``settings`` select.

    Returns:
        The wrapped method, converted by :func:`in_rounds`, the federation on which it runs, and notes for the user.

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
    if settings.fleet is None:
        return in_rounds(method, settings.method), federation, notes
    from knot_runner.methods.around.fleet import on_fleet

    rounds, federation = on_fleet(method, settings.method, settings.fleet, federation)
    notes.append(f"fleet {settings.fleet.name}: the clock is simulated and counts virtual seconds")
    return rounds, federation, notes


def round_flops(
    flops: ExampleFlops | None, requests: Sequence[LocalTraining], further: Sequence[EngineRequest]
) -> dict[str, int | None]:
    """Return the entries ``client_flops`` and ``server_flops`` of one round; both are None if ``flops`` is None.

    Args:
        flops: The FLOPs of one example.
        requests: The round's requests for local training. They count as ``client_flops``.
        further: The requests after the aggregation. They count as ``server_flops`` if they train a model of the server,
            and otherwise as ``client_flops``.
    """
    if flops is None:
        return {"client_flops": None, "server_flops": None}
    local = sum(training_flops(request, flops) for request in requests)
    later = 0
    on_server = False
    for request in further:
        if isinstance(request, Inference):
            later += len(request.rows) * flops.forward
        else:
            later += training_flops(request, flops)
            on_server = request.client == SERVER
    if on_server:
        return {"client_flops": local, "server_flops": later}
    return {"client_flops": local + later, "server_flops": 0}


def training_flops(request: LocalTraining, flops: ExampleFlops) -> int:
    """Return the FLOPs of one local training.

    An epoch costs three forward passes per example. Training only the head or only the body costs less. Additional
    epochs of the request's program are included.
    """
    recipe = request.recipe
    count = len(request.rows)
    if recipe.drop_last:
        count -= count % recipe.batch_size
    whole = 3 * flops.forward
    # Training the head needs no gradients below the head. Training the body needs no gradients of the head's weights.
    each = {"all": whole, "head": flops.forward + flops.head, "body": whole - flops.head}
    total = sum(phase.epochs * count * each[phase.trains] for phase in recipe.phases)
    if request.program:
        total += round(request.program.further * count * whole)
    return total
