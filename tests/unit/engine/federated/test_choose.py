"""Which engine ``auto`` is on a GPU; without one: the device has no memory, and engines are named, not made."""

import pytest
import torch

from knot_runner.config.settings.groups import HardwareSettings
from knot_runner.engine.federated import choose
from tests.golden.messages import refuses
from tests.unit.engine.federated.cases import GRAY, LINEAR, MODELS, images
from tests.unit.models.tapped import NETWORKS

pytestmark = pytest.mark.machine

OWN = NETWORKS["own"]


@pytest.mark.parametrize(("networks", "wanted"), [
    ([LINEAR], "stacked"), ([LINEAR, MODELS["mlp"]], "stacked"), ([OWN], "loop"), ([LINEAR, OWN], "loop"),
    ([OWN, LINEAR], "loop"),
])  # fmt: skip
def test_make_engine_auto_picks_stacked_for_package_networks(networks, wanted, monkeypatch):
    made = []
    monkeypatch.setattr(choose, "prepare_device", lambda hardware: torch.device("cuda"))
    for name in ("stacked", "loop"):
        monkeypatch.setitem(choose.ENGINES, name, lambda inputs, name=name: made.append((name, inputs.networks)))
    hardware = HardwareSettings("gpu", "cuda", threads=1, num_workers=1, engine="auto", precision="float32", stack=0)
    choose.make_engine(hardware, networks, images(GRAY), images(GRAY, 40, 1))
    assert made == [(wanted, networks)]


@pytest.mark.parametrize("engine", ["lean", "loop"])
def test_make_engine_refuses_engines_unfit_for_device(engine, monkeypatch):
    monkeypatch.setattr(choose, "prepare_device", lambda hardware: torch.device("cuda"))
    hardware = HardwareSettings("gpu", "cuda", threads=1, num_workers=1, engine=engine, precision="tf32", stack=0)
    with refuses():
        choose.make_engine(hardware, [LINEAR], images(GRAY), images(GRAY, 40, 1))
