"""The model that training begins with, the same for the same seed."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from knot_runner.config.settings.networks import CustomSettings
from knot_runner.engine.federated import flat
from knot_runner.engine.seeds import seeded
from knot_runner.models.network import Network, build_network


def first_model(network: Network, seed: int, data_root: Path | None) -> tuple[Tensor, Tensor]:
    """(weights [P], buffers [Q]) of :func:`initial_network`, which all clients start from."""
    return flat.flat_vectors(initial_network(network, seed, data_root))


def initial_network(network: Network, seed: int, data_root: Path | None) -> nn.Module:
    """A fresh model, initialized by the run's seed, a text model's encoder perhaps pre-trained. Raises
    :class:`UserError` for a model of one's own that does not fit the images."""
    check_network(network, seed)
    with seeded(seed, "init"):
        model = build_network(network)
    if network.reads_texts and network.spec.weights != "scratch":
        from knot_runner.models.pretrained import load_pretrained

        load_pretrained(model, network.spec, data_root)
    return model


def check_network(network: Network, seed: int) -> None:
    """Raises :class:`UserError` for a model of one's own that does not fit the images."""
    if isinstance(network.spec, CustomSettings):
        from knot_runner.models.network import check_custom_model

        with seeded(seed, "check"):
            check_custom_model(network.spec, build_network(network), network.inputs, network.classes)
