"""The fork server of a run's workers begins before the run imports torch, and only for runs that have workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from knot_runner.cli import launch
from knot_runner.cli.main import main
from knot_runner.util.errors import UserError
from tests.of_papers import of_papers
from tests.tiny import TINY_IMAGES, replaced

CODE = """
import multiprocessing.forkserver as forkserver
from knot_runner.util.processes import begin_server, prepared, start_process

def child(pipe):
    import sys
    pipe.send("mailbox" in sys.modules)

if __name__ == "__main__":
    begin_server(["mailbox"])
    early = forkserver._forkserver._forkserver_pid
    process, pipe = start_process(prepared(["mailbox"]), child)
    print(early is not None, pipe.recv(), early == forkserver._forkserver._forkserver_pid)
    process.join()
"""


def test_start_process_forks_from_begun_server(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(CODE)
    done = subprocess.run([sys.executable, str(tmp_path / "early.py")], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 3, done.stderr


@pytest.mark.parametrize(("overrides", "begins"), of_papers([
    (["hardware.num_workers=2"], True), (["hardware.num_workers=1"], False), (["hardware=cuda"], False),
    (["task=gaussians", "hardware.num_workers=2"], False),
]))  # fmt: skip
def test_main_calls_begin_server_only_with_workers(overrides, begins, tmp_path, monkeypatch):
    begun: list[list[str]] = []
    monkeypatch.setattr(launch, "begin_server", begun.append)

    def stop(_: object) -> None:
        raise UserError("the run would begin")

    monkeypatch.setattr("knot_runner.pipelines.run.complete_run", stop)
    small = overrides if "task=gaussians" in overrides else replaced(TINY_IMAGES, *overrides)
    assert main([*small, f"paths.output_dir={tmp_path}"]) == 2
    assert bool(begun) == begins and all("knot_runner.engine.federated.loop" in preloaded for preloaded in begun)


def test_main_does_not_call_begin_server_for_a_finished_run(fedavg_run, monkeypatch):
    monkeypatch.setattr(launch, "begin_server", lambda _: pytest.fail("it was called"))
    words = [*TINY_IMAGES, "method=fedavg", "training.lr=0.1", "hardware.num_workers=2"]
    assert main([*words, f"paths.output_dir={fedavg_run.folder.parents[2]}"]) == 0
