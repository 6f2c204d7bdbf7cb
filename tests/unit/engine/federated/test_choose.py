"""Which engine ``auto`` is on a GPU; without one: the device has no memory, and engines are named, not made."""

from __future__ import annotations

import pytest
import torch

from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.federated import choose
from tests.golden.messages import refuses
from tests.unit.engine.federated.cases import GREY, LINEAR, MODELS, images
from tests.unit.models.tapped import NETWORKS

pytestmark = pytest.mark.machine

OWN = NETWORKS["own"]


@pytest.mark.parametrize(("networks", "wanted"), [
    ([LINEAR], "stacked"), ([LINEAR, MODELS["mlp"]], "stacked"), ([OWN], "loop"), ([LINEAR, OWN], "loop"),
    ([OWN, LINEAR], "loop"),
])  # fmt: skip
def test_auto_is_stacked_on_a_gpu_where_all_networks_are_of_the_package(networks, wanted, monkeypatch) -> None:
    made = []
    monkeypatch.setattr(choose, "prepare_device", lambda hardware: torch.device("meta"))
    monkeypatch.setattr(choose, "load", lambda name: lambda inputs: made.append((name, inputs.networks)))
    first, *others = networks
    hardware = HardwareSettings("gpu", "cuda", threads=1, workers=1, engine="auto")
    choose.make_engine(hardware, first, images(GREY), images(GREY, 40, 1), others=others)
    assert made == [(f"knot_runner.engine.federated.choose:make_{wanted}", networks)]


@pytest.mark.parametrize(("engine", "precision", "said"), [
    ("lean", "float32", "hardware.engine: lean is for the CPU; stacked is for a GPU, loop runs on both"),
    ("ray", "float32", "hardware.engine: ray trains on the CPUs of a cluster; hydra/launcher=ray gives each job a"),
    ("loop", "tf32", "hardware.precision: tf32 is for engine=stacked on CUDA; float32 runs anywhere"),
    ("stacked", "bf16", "hardware.precision: bf16 is for engine=stacked on CUDA; float32 runs anywhere"),
])  # fmt: skip
def test_an_engine_that_does_not_fit_the_device_is_one_line(engine, precision, said, monkeypatch) -> None:
    """On an accelerator that is not CUDA."""
    monkeypatch.setattr(choose, "prepare_device", lambda hardware: torch.device("meta"))
    hardware = HardwareSettings("gpu", "cuda", threads=1, workers=1, engine=engine, precision=precision)
    with refuses():
        choose.make_engine(hardware, LINEAR, images(GREY), images(GREY, 40, 1))
