"""``hardware=auto``: what it stands for on a machine with and without a CUDA device, and what is said of it."""

import ctypes
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from knot_runner import compose
from knot_runner.composing import named_values as fitting
from knot_runner.config.devices import DEVICES, first_device
from tests.of_papers import of_papers

pytestmark = pytest.mark.machine

FEDERATED = ["task=femnist", "method=fedavg"]


@pytest.fixture(params=["cuda"])
def device(request, monkeypatch):
    monkeypatch.setattr(fitting, "first_device", lambda: request.param)
    return request.param


def composed(caplog, *overrides):
    caplog.set_level(logging.INFO, "knot_runner")
    caplog.clear()
    (job,) = compose(list(overrides))
    return job, [text for text in caplog.messages if text.startswith("hardware")]


@pytest.mark.parametrize("device", ["cpu", "cuda"], indirect=True)
@pytest.mark.parametrize("overrides", [FEDERATED, ["task=sa", "method=entropy_a"]])
def test_auto_hardware_selects_cuda_only_if_available(caplog, device, overrides):
    job, said = composed(caplog, *overrides, "hardware=auto")
    wanted, nothing = composed(caplog, *overrides, f"hardware={device}")
    assert job.config["hardware"] == wanted.config["hardware"] and job.run_id == wanted.run_id
    assert said == [{"cuda": "hardware: CUDA", "cpu": "hardware: CPU (no GPU found)"}[device]] and nothing == []


def test_knot_hardware_variable_overrides_auto_default(caplog, device, monkeypatch, tmp_path):
    (tmp_path / "task").mkdir()  # with a folder of one's own, tests compose anew
    for name, wanted in ((None, "cuda"), ("cpu", "cpu"), ("auto", "cuda")):
        monkeypatch.delenv("KNOT_HARDWARE", raising=False)
        if name:
            monkeypatch.setenv("KNOT_HARDWARE", name)
        assert compose([*FEDERATED, f"--config-dir={tmp_path}"])[0].settings.hardware.name == wanted


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_named_hardware_skips_cuda_device_lookup(caplog, monkeypatch, name):
    monkeypatch.setattr(fitting, "first_device", lambda: pytest.fail("the device was asked for"))
    job, said = composed(caplog, *FEDERATED, f"hardware={name}")
    assert job.settings.hardware.name == name and said == []


@pytest.mark.parametrize(
    ("overrides", "reason"),
    of_papers([([*FEDERATED, "hardware.device=cpu"], "hardware.device=cpu"),
     ([*FEDERATED, "hardware.engine=lean"], "hardware.engine=lean"),
     (["task=gaussians"], "methods of kind 'distance' do not use CUDA"),
     (["task=image_sets"], "methods of kind 'matrix' do not use CUDA"),
     (["task=mnist", "method=coreset"], "methods of kind 'coreset' do not use CUDA")]),
)  # fmt: skip
def test_auto_hardware_uses_cpu(caplog, device, overrides, reason):
    job, said = composed(caplog, *overrides, "hardware=auto")
    assert job.config["hardware"] == composed(caplog, *overrides, "hardware=cpu")[0].config["hardware"]
    assert said == [f"hardware: CPU ({reason})"]


def test_auto_hardware_keeps_typed_settings(caplog, device):
    job, _ = composed(caplog, *FEDERATED, "hardware=auto", "hardware.precision=bf16", "hardware.device=cuda:1")
    assert (job.settings.hardware.device, job.settings.hardware.precision) == ("cuda:1", "bf16")


@pytest.mark.parametrize(("driver", "count"), [(0, 1), (0, 0), (100, 1), (None, 1)])
def test_first_device_needs_both_driver_and_torch(monkeypatch, driver, count):
    """``driver``: what its cuInit returns; None without one."""
    library = SimpleNamespace() if driver is None else SimpleNamespace(cuInit=lambda _: driver)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    is_likely = DEVICES["cuda"].is_likely.__wrapped__
    monkeypatch.setitem(DEVICES.data, "cuda", replace(DEVICES["cuda"], count=lambda: count, is_likely=is_likely))
    assert first_device() == ("cuda" if driver == 0 and count else "cpu")
