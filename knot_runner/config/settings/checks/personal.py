"""Whether what is asked of clients' own models fits the federated method that they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.config.settings.methods.personalisation import (
    CossimSettings,
    TransferMatrixSettings,
    build_personalisation,
)
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings


def shares_models(spec: Any) -> bool:
    """Whether a kind of personalisation combines several clients' own models."""
    return isinstance(spec, CossimSettings | TransferMatrixSettings)


def check_personal(settings: Settings, method: FederatedSettings) -> None:
    """Build the settings of personalisation, and whether the rounds before it are what they must be. Raises
    :class:`UserError`."""
    if method.clustering is not None and settings.evaluate.matrix not in (None, "end"):
        raise UserError(
            f"evaluate.matrix: {settings.evaluate.matrix} rounds are of clients that learn together; with "
            "method.clustering end is right"
        )
    unseen = settings.held_out is not None and settings.held_out.unseen is not None
    if unseen and method.clustering is not None:
        raise UserError("partition.unseen: clusters are of all clients, none of which is unseen; null is right")
    if method.personalisation is None:
        return
    method.personalisation = build_personalisation(method.personalisation)
    if isinstance(settings.evaluate.matrix, int):
        raise UserError("evaluate.matrix: personalisation measures what follows the last round; end or null is right")
    if settings.training.stop_at_target:
        raise UserError(
            "training.stop_at_target: personalisation begins with the model of the last round, which all its variants "
            "share; false is right"
        )
    if shares_models(method.personalisation) and method.models:
        raise UserError(
            f"method.personalisation.kind: {method.personalisation.kind} adds up clients' models, and method.models "
            "are of different architectures; finetune or soup would fit"
        )
