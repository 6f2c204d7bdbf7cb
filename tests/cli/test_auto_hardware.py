"""``hardware=auto``: what it stands for on a machine with and without a CUDA device, and what is said of it."""

import ctypes
import logging
import subprocess
import sys

import pytest

from knot_runner.composing import fitting
from knot_runner.composing.commands import compose_jobs

pytestmark = pytest.mark.machine

FEDERATED = ["task=femnist", "method=fedavg"]


@pytest.fixture(params=["Some GPU"])
def device(request, monkeypatch):
    monkeypatch.setattr(fitting, "cuda_device", lambda: request.param)
    return request.param


def composed(caplog, *overrides):
    caplog.set_level(logging.INFO, "knot_runner")
    caplog.clear()
    (job,) = compose_jobs(list(overrides), None)
    return job, [text for text in caplog.messages if text.startswith("hardware")]


@pytest.mark.parametrize("device", [None, "Some GPU"], indirect=True)
@pytest.mark.parametrize("overrides", [FEDERATED, ["task=sa", "method=entropy_a"]])
def test_auto_hardware_selects_cuda_only_if_available(caplog, device, overrides):
    job, said = composed(caplog, *overrides, "hardware=auto")
    wanted, nothing = composed(caplog, *overrides, f"hardware={'cuda' if device else 'cpu'}")
    assert job.config["hardware"] == wanted.config["hardware"] and job.run_id == wanted.run_id
    assert said == ["hardware: CUDA, Some GPU" if device else "hardware: CPU (no CUDA device)"] and nothing == []


def test_knot_hardware_variable_overrides_auto_default(caplog, device, monkeypatch, tmp_path):
    (tmp_path / "task").mkdir()  # with a folder of one's own, tests compose anew
    for name, wanted in ((None, "cuda"), ("cpu", "cpu"), ("auto", "cuda")):
        monkeypatch.delenv("KNOT_HARDWARE", raising=False)
        if name:
            monkeypatch.setenv("KNOT_HARDWARE", name)
        assert compose_jobs(FEDERATED, str(tmp_path))[0].settings.hardware.name == wanted


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_named_hardware_skips_cuda_device_lookup(caplog, monkeypatch, name):
    monkeypatch.setattr(fitting, "cuda_device", lambda: pytest.fail("the device was asked for"))
    job, said = composed(caplog, *FEDERATED, f"hardware={name}")
    assert job.settings.hardware.name == name and said == []


@pytest.mark.parametrize("value", ["hardware.device=cpu", "hardware.engine=lean"])
def test_auto_hardware_uses_cpu_for_cpu_only_settings(caplog, device, value):
    job, said = composed(caplog, *FEDERATED, "hardware=auto", value)
    assert job.config["hardware"] == composed(caplog, *FEDERATED, "hardware=cpu", value)[0].config["hardware"]
    assert said == [f"hardware: CPU ({value})"]


@pytest.mark.parametrize(
    ("overrides", "family"),
    [(["task=gaussians"], "distance"), (["task=image_sets"], "matrix"), (["task=mnist", "method=coreset"], "coreset"),
     (["task=mnist", "method=coreset_knn"], "knn")],
)  # fmt: skip
def test_auto_hardware_uses_cpu_for_cpu_only_families(caplog, device, overrides, family):
    job, said = composed(caplog, *overrides, "hardware=auto")
    assert job.settings.hardware.name == "cpu" and said == [f"hardware: CPU ({family} computes nothing on Some GPU)"]


def test_auto_hardware_chooses_loop_engine_for_texts(caplog, device):
    """The stacked engine does not train one, and lean is of the CPU."""
    job, _ = composed(caplog, "task=sa", "method=fedavg", "training=texts", "partition=natural", "hardware=auto")
    assert (job.settings.hardware.name, job.settings.hardware.engine) == ("cuda", "loop")
    job, _ = composed(caplog, *FEDERATED, "hardware=auto", "hardware.precision=bf16", "hardware.device=cuda:1")
    found = job.settings.hardware
    assert (found.engine, found.device, found.precision) == ("stacked", "cuda:1", "bf16")


class Driver:
    """libcuda with one device, or failing at ``fails``."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    def __getattr__(self, name: str):
        def call(*arguments):
            if name == "cuDeviceGetName":
                arguments[0].value = b"Some GPU"
            return 100 if name == self.fails else 0

        return call


@pytest.mark.parametrize("fails", ["", "cuInit", "cuDeviceGet", "cuDeviceGetName"])
@pytest.mark.parametrize("torch_sees_it", [True, False])
def test_cuda_device_needs_both_driver_and_torch(monkeypatch, fails, torch_sees_it):
    monkeypatch.setattr("torch.cuda.is_available", lambda: torch_sees_it)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(fails))
    found = fitting.cuda_device.__wrapped__()
    assert found == ("Some GPU" if torch_sees_it and not fails else None)


def test_cuda_device_imports_no_torch_without_driver():
    code = (
        "import ctypes, sys\nfrom knot_runner.composing import fitting\n"
        "def none(name): raise OSError(name)\n"
        "ctypes.CDLL = none\nassert fitting.cuda_device() is None\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
