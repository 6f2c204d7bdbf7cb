"""Soup: a mix of two models of client k, theta_0 from the last round and theta_k after fine-tuning.

The mix theta(alpha) = (1 - alpha) theta_0 + alpha theta_k is the interpolation of WiSE-FT (Wortsman et al. 2022). See
docs/papers/soup.md.
"""

from __future__ import annotations

from torch import Tensor

from knot_runner.config.settings.methods.personalization import SoupSettings
from knot_runner.engine.federated.cohort import ClientModel
from knot_runner.methods.federation import FederatedState
from knot_runner.methods.personalization.contract import MeasuredModels, PersonalFederation, Point
from knot_runner.methods.personalization.finetune import current, under_way


def interpolated(origin: ClientModel, trained: ClientModel, alpha: float) -> ClientModel:
    """Return the mix ``(1 - alpha) * origin + alpha * trained`` of two models, computed in float64."""

    def mixed(a: Tensor, b: Tensor) -> Tensor:
        return ((1 - alpha) * a.double() + alpha * b.double()).to(b.dtype)

    return ClientModel(mixed(origin.weights, trained.weights), mixed(origin.buffers, trained.buffers))


def soup_points(config: SoupSettings) -> list[Point]:
    """Return one point for each alpha and checkpoint. ``config.at`` selects the last checkpoint or all checkpoints."""
    return [Point(step, step * config.part, alpha) for step in _steps(config) for alpha in config.alphas]


def soup_models(
    config: SoupSettings, federation: PersonalFederation, state: FederatedState, round: int
) -> MeasuredModels:
    """Return the models to evaluate after ``round``; see ``measured`` of :class:`Personalization`."""
    step = round % config.checkpoints + 1
    if step not in _steps(config):
        return
    before = _steps(config).index(step) * len(config.alphas)
    clients = under_way(config, federation, round)
    for number, alpha in enumerate(config.alphas, before):
        yield number, {c: interpolated(federation.start(c), current(state, c), alpha) for c in clients}


def _steps(config: SoupSettings) -> list[int]:
    if config.at == "all":
        return list(range(1, config.checkpoints + 1))
    return [config.checkpoints]
