"""Devices that this machine does not have: refused before data are read; and a fake one."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from knot_runner.composing.commands import compose_all
from knot_runner.config.devices import DEVICES
from knot_runner.engine.hardware import choose_device
from tests.fake_device import FAKE, FakeDevice
from tests.golden.messages import refused, refuses
from tests.runs import run
from tests.tiny import TINY_IMAGES, TINY_TAUGHT

CONF = Path(__file__).resolve().parents[3] / "conf" / "hardware"
ON_FAKE = ["hardware=cpu", "hardware.device=fake", "hardware.engine=auto"]


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setitem(DEVICES.data, "fake", FAKE)
    with FakeDevice():
        yield


@pytest.mark.parametrize("name", DEVICES)
def test_hardware_file_has_the_first_precision_of_its_device(name):
    (job,), _ = compose_all(["task=femnist", "method=fedavg", f"hardware={name}"])
    actual = vars(job.settings.hardware)
    assert (actual["name"], actual["device"], actual["precision"]) == (name, name, DEVICES[name].precisions[0])


def test_run_refuses_absent_device_before_data_are_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(DEVICES.data, "cuda", replace(DEVICES["cuda"], count=lambda: 0))
    monkeypatch.setattr("knot_runner.pipelines.federated.make_setup", lambda _: pytest.fail("data were read"))
    refused(capsys, *TINY_IMAGES, "hardware=cuda", f"paths.output_dir={tmp_path}")


@pytest.mark.parametrize("count", [0, 2])
def test_choose_device_returns_or_rejects_numbered_device(count, monkeypatch):
    monkeypatch.setitem(DEVICES.data, "cuda", replace(DEVICES["cuda"], count=lambda: count, is_likely=lambda: True))
    assert choose_device("auto").type == ("cuda" if count else "cpu") and choose_device("cpu").type == "cpu"
    for number, name in enumerate(["cuda:0", "cuda:1", "cuda:2"]):
        with contextlib.nullcontext() if number < count else refuses():
            assert str(choose_device(name)) == name


@pytest.mark.parametrize("name", ["cuda:N", "cpu:0", "cuda:", "cuda:x"])
def test_hardware_refuses_other_names_of_devices(name):
    with refuses():
        compose_all(["task=femnist", f"hardware.device='{name}'"])


@pytest.mark.parametrize(("words", "method"), [(TINY_IMAGES, "apfl"), (TINY_TAUGHT, "rkd")], ids=["apfl", "rkd"])
def test_run_on_another_device(words, method, fake, tmp_path, capsys):
    words = [*words, f"method={method}"]
    refused(capsys, *words, *ON_FAKE, "hardware.precision=float64", f"paths.output_dir={tmp_path / 'no'}")
    actual = run(tmp_path / "fake", *words, *ON_FAKE).result
    expected = run(tmp_path / "cpu", *words, "hardware.engine=loop").result
    assert (actual["device"], actual["machine"].split(", ")[-1]) == ("fake", "a fake")
    for name, values in expected["metrics"].items():
        assert actual["metrics"][name] == pytest.approx(values, rel=1e-6)
