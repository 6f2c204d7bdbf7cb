"""Whether the models of a federated method fit it: those that clients have of their own, and the one that all have."""

from __future__ import annotations

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.config.settings.networks import ImageModel
from knot_runner.util.errors import UserError


def check_architectures(method: FederatedSettings, model: ModelSettings | ImageModel) -> None:
    """Each of ``method.models`` is named once and none begins pre-trained; a generator of features needs logits of
    them. Raises :class:`UserError`."""
    names = [spec.name for spec in method.models]
    for number, spec in enumerate(method.models):
        where = f"method.models[{number}]"
        if spec.name in names[:number]:
            raise UserError(f"{where}: {spec.name} is there twice; every model once is right")
        if isinstance(spec, ModelSettings) and spec.weights != "scratch":
            raise UserError(f"{where}: {spec.name} has weights={spec.weights}; scratch is right")
        if isinstance(spec, ModelSettings) and spec.per_party:
            raise UserError(f"{where}.per_party: clients have one of method.models each; {{}} is right")
    if method.generator is not None and getattr(model, "output", "logits") == "softmax":
        raise UserError("model.output: softmax leaves no logits to a head that reads features; logits is right")
