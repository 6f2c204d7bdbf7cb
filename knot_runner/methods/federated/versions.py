"""What clients were sent when they began: of a server that steps while they train, perhaps some steps ago.

State: ``fleet/sent/<v>/<name>`` is ``<name>`` of the state after v server steps, of each version v that a client still
trains from. ``FederatedSettings.sends`` says which names these are; all else in a state is the server's or a client's
own, and a client's own does not change while it trains.
"""

from __future__ import annotations

from knot_runner.config.settings import FederatedSettings
from knot_runner.methods.federation import FederatedState


def as_begun(hp: FederatedSettings, state: FederatedState, version: int, round: int) -> FederatedState:
    """``state`` before server step ``round`` with what clients are sent as it was for those who began with
    ``version``."""
    if version == round:
        return state
    prefix = _prefix(version)
    then = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    return {name: tensor for name, tensor in state.items() if not _is_sent(hp, name)} | then


def version_entries(hp: FederatedSettings, state: FederatedState, version: int, round: int) -> FederatedState:
    """The entries that keep ``version`` for those who go on training from it; ``state``: before server step
    ``round``."""
    prefix = _prefix(version)
    if version == round:  # copies, since commits hold no tensor under two names
        return {f"{prefix}{name}": tensor.clone() for name, tensor in state.items() if _is_sent(hp, name)}
    return {name: tensor for name, tensor in state.items() if name.startswith(prefix)}


def _prefix(version: int) -> str:
    return f"fleet/sent/{version}/"


def _is_sent(hp: FederatedSettings, name: str) -> bool:
    return any(name.startswith(sent) if sent.endswith("/") else name == sent for sent in hp.sends)
