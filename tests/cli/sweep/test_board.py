"""What a person sees of a sweep: plain lines when piped, a live view on a terminal."""

import io
import json
import time
from dataclasses import asdict

from rich.console import Console

from knot_runner.sweeps import board
from knot_runner.sweeps.board import sweep_summary
from knot_runner.sweeps.state import JobProgress, write_failure
from knot_runner.sweeps.task import Outcome
from tests.cli.sweep.grids import pretended
from tests.contents import write_content


def jobs(folder, count=3):
    return pretended(folder, count, "femnist fedavg seed {}")


def at_work(job, done, text):
    job.folder.mkdir(exist_ok=True)
    progress = JobProgress("rounds", done, 10, text, time.time())
    (job.folder / "progress.json").write_text(json.dumps(asdict(progress)))


def finish(job, status="done"):
    job.folder.mkdir(exist_ok=True)
    write_content(job.folder, {"status": status, "seconds": {"total": 75}})


def wait_for_lines(out, count):
    """Wait until the board's own thread has printed ``count`` lines."""
    latest = time.monotonic() + 30
    while out.getvalue().count("\n") < count and time.monotonic() < latest:
        time.sleep(0.01)


def test_lines_when_piped(tmp_path, monkeypatch):
    monkeypatch.setattr(board, "REFRESH_SECONDS", 0.02)
    all_jobs, out = jobs(tmp_path), io.StringIO()
    with board.Board(all_jobs, 2, Console(file=out, width=60)):
        at_work(all_jobs[0], 3, "accuracy 0.1")
        wait_for_lines(out, 1)
        time.sleep(0.1)  # several looks: a job begins once
        finish(all_jobs[0])
        finish(all_jobs[1], "diverged")
        wait_for_lines(out, 3)
        all_jobs[2].folder.mkdir()
        write_failure(all_jobs[2].folder, "killed", "ended by [bold]SIGKILL")
    lines = out.getvalue().splitlines()
    assert sum("starts" in line for line in lines) == 1
    assert lines[0] == f"[2/5] femnist fedavg seed 0: starts  ->  {all_jobs[0].folder}"
    assert "[3/5] femnist fedavg seed 0: done, accuracy 0.500, 1 min 15 s" in lines
    assert "[4/5] femnist fedavg seed 1: diverged" in lines
    assert "femnist fedavg seed 2: failed: ended by [bold]SIGKILL" in lines[-1]


def test_board_counts_failures_and_prints_causes_once(tmp_path):
    all_jobs, out = jobs(tmp_path), io.StringIO()
    shown = board.Board(all_jobs, 0, Console(file=out, width=90))
    console = Console(width=90)
    with console.capture() as capture:
        console.print(shown.bars)
    for job, cause in zip(all_jobs, ("the disk is full", "out of memory", "the disk is full"), strict=False):
        job.folder.mkdir()
        write_failure(job.folder, "disk", cause)
        shown.look()
    told = [line.rpartition(": ")[2] for line in out.getvalue().splitlines()]
    assert told == ["the disk is full", "out of memory", "failed with the same error"]
    with console.capture() as after:
        console.print(shown.bars)
    assert "0/3" in capture.get() and "3/3" in after.get() and "3 failed" in after.get()


def test_sweep_summary_groups_causes_and_returns_exit_code(tmp_path):
    all_jobs = jobs(tmp_path, 4)
    finish(all_jobs[0])
    for job in all_jobs[1:3]:
        job.folder.mkdir()
        write_failure(job.folder, "user", "training.batch_size: 99 is more than the 12 images")
    outcomes = [Outcome(str(i), "done", i == 0) for i in range(3)]
    lines, code = sweep_summary(all_jobs[:3], 5, outcomes)
    cause = "  femnist fedavg seed 1 and 1 more: training.batch_size: 99 is more than the 12 images"
    assert lines == ["6 done, 2 failed (5 were finished before, 1 resumed from a commit)", cause] and code == 2
    assert "could not be created" in sweep_summary(all_jobs, 0, outcomes)[0][-1]
    write_failure(all_jobs[3].folder, "error", "why")
    assert sweep_summary(all_jobs, 0, outcomes)[1] == 1
    (all_jobs[3].folder / "failed.json").unlink()
    lines, code = sweep_summary(all_jobs, 0, outcomes)
    assert "ended without a result or an error" in lines[-1] and code == 1
    assert sweep_summary(all_jobs[:1], 0, [])[1] == 0
