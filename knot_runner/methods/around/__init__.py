"""Wrappers that act on the messages of any federated method: privacy, compression, fleets, clusters and others.

They also include distillation by the server, and the costs of a round.
"""

from __future__ import annotations

from knot_runner.config.settings import Settings
from knot_runner.methods.contract import Method
from knot_runner.methods.federation import Federation

#: Groups of settings of what stands around a method, where they are not null; others are the method's own.
AROUND = ("privacy", "fleet")


def surrounded(method: Method, settings: Settings, federation: Federation) -> tuple[Method, Federation, list[str]]:
    """Return ``method`` with the wrappers that ``settings`` select, its clients, and notes for the user.

    Raises:
        UserError: The method does not support one of the wrappers.
    """
    notes: list[str] = []
    if getattr(settings.method, "server_distillation", None) is not None:
        from knot_runner.methods.around.server_distillation import with_distillation

        method = with_distillation(method, settings.method)
    if settings.privacy is not None:
        from knot_runner.methods.around.privacy import privately  # with an accountant, which other runs do not need

        method, federation, notes = privately(method, settings.privacy, settings, federation)
    if getattr(settings.method, "top_k", None) is not None:
        from knot_runner.methods.around.compression import compressed

        method = compressed(method, settings.method)
    if settings.fleet is not None:
        from knot_runner.methods.around.fleet import on_fleet

        method, federation = on_fleet(method, settings.fleet, federation)
        notes.append(f"fleet {settings.fleet.name}: the clock is simulated and counts virtual seconds")
    return method, federation, notes
