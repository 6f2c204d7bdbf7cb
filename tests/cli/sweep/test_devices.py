"""Jobs of a sweep take the devices of ``hardware.devices`` in turn."""

import contextlib

from knot_runner.composing.commands import compose_all
from knot_runner.sweeps.job import leased


def settings(out, devices):
    jobs, _ = compose_all(["task=femnist", f"hardware.devices=[{devices}]", f"paths.output_dir={out}"])
    return jobs[0].settings


def test_leased_returns_device_with_fewest_jobs(tmp_path):
    two = settings(tmp_path, "cuda:0,cuda:1")
    with contextlib.ExitStack() as first:
        with contextlib.ExitStack() as others:
            taken = [(first if turn == 0 else others).enter_context(leased(two)) for turn in range(3)]
            assert taken == ["cuda:0", "cuda:1", "cuda:0"]
        with leased(two) as device, leased(two) as next_one:
            assert (device, next_one) == ("cuda:1", "cuda:0")


def test_leased_returns_run_device_without_device_list(tmp_path):
    with leased(settings(tmp_path, "")) as first, leased(settings(tmp_path, "")) as second:
        assert first == second == "cpu"
    assert not (tmp_path / ".locks").exists()
