"""``hardware.engine=native``: the lean engine whose clients have compiled passes."""

from __future__ import annotations

from typing import Any

import torch

from knot_runner.config.settings import CnnSettings, MlpSettings, ResnetSettings, VggSettings, WrnSettings
from knot_runner.engine.examples import ClientData
from knot_runner.engine.federated.lean.client import TrainingClient, make_client
from knot_runner.engine.federated.lean.engine import Lean
from knot_runner.engine.federated.native.client import NativeBackward, WinogradClient
from knot_runner.engine.federated.native.library import native_library
from knot_runner.models.network import Network


class Native(Lean):
    """:class:`Lean`, at other rounding. Raises :class:`UserError` where nothing can be compiled."""

    name = "native"

    def __init__(
        self, network: Network, data: ClientData, test: ClientData, dtype: torch.dtype, *options: Any, **others: Any
    ) -> None:  # fmt: skip
        native_library(dtype)  # compiled before workers look for it
        super().__init__(network, data, test, dtype, *options, **others, make_client=make_native_client)


def make_native_client(network: Network, data: ClientData, test: ClientData, dtype: torch.dtype) -> TrainingClient:
    """Compiled passes for MLP and CNN, compiled 3x3 convolutions for the families below; others as in lean."""
    if isinstance(network.spec, MlpSettings | CnnSettings):
        return NativeBackward(network, data, test, dtype)
    return (WinogradClient if has_passes(network) else make_client)(network, data, test, dtype)


def has_passes(network: Network) -> bool:
    """Whether there are compiled passes for a model of this kind."""
    return isinstance(network.spec, MlpSettings | CnnSettings | ResnetSettings | WrnSettings | VggSettings)
