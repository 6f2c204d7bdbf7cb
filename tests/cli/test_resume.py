"""A run that is interrupted or killed ends without a traceback, and leaves no process."""

import signal
import time

import pytest

from tests.forked import Forked, there
from tests.tiny import TINY, replaced

ENDLESS = replaced(TINY, "training.local.epochs=500", "training.pretrain.epochs=500", "hardware.num_workers=2")


def wait_for(out, pattern, process):
    for _ in range(1200):
        if there(out, pattern):
            return
        assert not process.ended, process.said
        time.sleep(0.05)
    raise AssertionError(f"{pattern} never came")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_run_exits_without_traceback_on_signal(tmp_path, number, code):
    process = Forked(*ENDLESS, f"paths.output_dir={tmp_path}")
    wait_for(tmp_path, "artifacts/local/*/commit.json", process)
    process.send(number)
    assert process.wait(30) == code
    assert "Traceback" not in process.said


def test_worker_processes_die_with_a_killed_parent(tmp_path):
    process = Forked(*ENDLESS, f"paths.output_dir={tmp_path}")
    wait_for(tmp_path, "artifacts/local/*/commit.json", process)
    assert len(process.processes) == 3  # and its workers
    process.send(signal.SIGKILL)  # the parent alone, not its group
    process.wait(30)
    for _ in range(200):
        if not process.processes:
            return
        time.sleep(0.05)
    raise AssertionError("a worker outlived its parent")
