"""Which engine ``auto`` is on a GPU; without one: the device has no memory, and engines are named, not made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.federated import choose
from tests.engine.federated.cases import GREY, LINEAR, MODELS, images
from tests.models.tapped import NETWORKS

OWN = NETWORKS["own"]


@pytest.mark.parametrize(
    ("networks", "wanted"),
    [
        ([LINEAR], "stacked"),
        ([LINEAR, MODELS["mlp"]], "stacked"),
        ([OWN], "loop"),
        ([LINEAR, OWN], "loop"),
        ([OWN, LINEAR], "loop"),
    ],
)
def test_auto_is_stacked_on_a_gpu_where_all_networks_are_of_the_package(networks, wanted, monkeypatch) -> None:
    made = []

    def make(name, hardware, network, data, test, device, say):
        made.append((name, network))
        return SimpleNamespace(name=name, device=device)

    monkeypatch.setattr(choose, "prepare_device", lambda hardware: torch.device("meta"))
    monkeypatch.setattr(choose, "_in_process", make)
    first, *others = networks
    hardware = HardwareSettings("gpu", "cuda", threads=1, workers=1, engine="auto")
    engine = choose.make_engine(hardware, first, images(GREY), images(GREY, 40, 1), others=others)
    assert engine.name == wanted and made == [(wanted, network) for network in networks]
