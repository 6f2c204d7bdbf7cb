"""Killed anywhere, the same command ends with the numbers of a run left alone: real processes, real signals."""

import functools
import json
import signal
import time

import pytest

from knot_runner.cli.main import main
from tests.forked import Forked, there
from tests.tiny import TINY

#: Enough epochs that a kill lands between two of them: of the student, which comes last, the most.
EPOCHS = {"local": 4, "pretrain": 3, "distill": 12}
LONGER = [*(o for o in TINY if "epochs" not in o), *(f"training.{name}.epochs={n}" for name, n in EPOCHS.items())]

ENDLESS = ["training.local.epochs=500", "training.pretrain.epochs=500"]


def arguments(out, *overrides):
    return [*LONGER, f"paths.output_dir={out}", *overrides]


def start(out, *overrides, until=None):
    """In a process of its own, to be killed; what is to end by itself runs here."""
    return Forked(*arguments(out, *overrides), until=until)


def wait_for(out, pattern, process):
    for _ in range(1200):
        if there(out, pattern):
            return
        assert not process.ended, process.said
        time.sleep(0.05)
    raise AssertionError(f"{pattern} never came")


def records(out):
    (folder,) = (path.parent for path in out.glob("*/*/*/result.json"))
    result = json.loads((folder / "result.json").read_text())
    del result["seconds"], result["digest"]  # the digest is over the seconds too
    names = ("rounds.jsonl", "predictions.safetensors", "vectors.safetensors", "probe.json", "model.safetensors")
    return result, [(folder / name).read_bytes() for name in names]


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["entropy_a", "sinkhorn_e"])
def test_run_killed_twice_matches_uninterrupted_run(tmp_path, method):
    assert main(arguments(tmp_path / "alone", f"method={method}")) == 0
    for stage in ("local", "distill"):
        until = functools.partial(there, tmp_path / "killed", f"artifacts/{stage}/*/commit.json")
        killed = start(tmp_path / "killed", f"method={method}", until=until)
        assert killed.wait() == -signal.SIGKILL, killed.said
        assert not list((tmp_path / "killed").glob("*/*/*/result.json"))
    assert main(arguments(tmp_path / "killed", f"method={method}")) == 0
    assert records(tmp_path / "killed") == records(tmp_path / "alone")
    assert not list((tmp_path / "killed").rglob("*.tmp"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_run_exits_without_traceback_on_signal(tmp_path, number, code):
    process = start(tmp_path, "hardware.num_workers=2", *ENDLESS)
    wait_for(tmp_path, "artifacts/local/*/commit.json", process)
    process.send(number)
    assert process.wait(30) == code
    assert "Traceback" not in process.said


def test_worker_processes_die_with_a_killed_parent(tmp_path):
    process = start(tmp_path, "hardware.num_workers=2", *ENDLESS)
    wait_for(tmp_path, "artifacts/local/*/commit.json", process)
    assert len(process.processes) == 3  # and its workers
    process.send(signal.SIGKILL)  # the parent alone, not its group
    process.wait(30)
    for _ in range(200):
        if not process.processes:
            return
        time.sleep(0.05)
    raise AssertionError("a worker outlived its parent")
