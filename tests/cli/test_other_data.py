"""One run id, two data folders: the numbers of one are never shown for the other, whatever asks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from knot_runner.cli import launch
from knot_runner.cli.main import main
from knot_runner.cli.show import references
from knot_runner.composing.commands import compose_all
from knot_runner.report.compare.answer import compare_runs
from knot_runner.report.frame import read_runs
from knot_runner.report.run_folders import load_runs
from tests import image_files
from tests.contents import read_content, write_content
from tests.tiny import TINY_IMAGES

RUN = [
    "task=mnist", "task.source=local", "task.shape=[1,28,28]", "partition=iid", "partition.num_clients=2",
    "task.local.train=[train-images-idx3-ubyte,train-labels-idx1-ubyte]",
    "task.local.test=[t10k-images-idx3-ubyte,t10k-labels-idx1-ubyte]",
    "model.hidden=[4]", "training.rounds=1", "training.local_epochs=1", "training.clients_per_round=2",
    "hardware.num_workers=1",
]  # fmt: skip
#: Of all files; older than the guard against two changes in one tick of the clock.
LONG_AGO = 1_600_000_000 * 10**9


def write_data(root: Path, seed: int) -> Path:
    """Four idx files of random images, alike in names, sizes and times whatever the seed."""
    rng = np.random.default_rng(seed)
    for part, count in (("train", 40), ("t10k", 20)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        image_files.idx(root / f"{part}-images-idx3-ubyte", images)
        image_files.idx(root / f"{part}-labels-idx1-ubyte", rng.permutation(np.arange(count) % 10).astype(np.uint8))
    for path in root.iterdir():
        os.utime(path, ns=(LONG_AGO, LONG_AGO))
    return root


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path]:
    for name in "ab":
        (tmp_path / name).mkdir()
    return write_data(tmp_path / "a", 0), write_data(tmp_path / "b", 1)


def command(out: Path, data: Path, *more: str) -> list[str]:
    return [*RUN, f"paths.output_dir={out}", f"paths.data_dir={data}", *more]


def made(out: Path, data: Path) -> dict:
    assert main(command(out, data)) == 0
    (path,) = out.glob("mnist/*/*/result.json")
    return read_content(path.parent)


def test_run_rejects_other_data_without_stale_flag(data, tmp_path: Path, capsys) -> None:
    a, b = data
    out = tmp_path / "out"
    first = made(out, a)
    (folder,) = (path.parent for path in out.glob("mnist/*/*/result.json"))
    for grid in ([], ["-m"]):
        capsys.readouterr()
        assert main([*grid, *command(out, b)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "paths.data_dir" in line and str(folder) in line and "images-idx3-ubyte changed" in line
        assert "--stale=rerun" in line and "--stale=keep" in line
        assert read_content(folder) == first
    assert main(["--stale=keep", *command(out, b)]) == 0
    assert "idx3-ubyte changed" in capsys.readouterr().err and read_content(folder) == first
    assert main(["--stale=rerun", *command(out, b)]) == 0
    assert "moved 1 finished run to .stale, to be rerun" in capsys.readouterr().err
    alone = made(tmp_path / "alone", b)
    assert read_content(folder)["metrics"] == alone["metrics"] and alone["metrics"] != first["metrics"]
    assert main(command(out, b)) == 0  # and that is B's from now on
    capsys.readouterr()
    assert main(command(out, a)) == 2


def test_second_rerun_keeps_new_results(data, tmp_path: Path, monkeypatch) -> None:
    a, b = data
    out = tmp_path / "out"
    made(out, a)
    (path,) = out.glob("mnist/*/*/result.json")
    first = path.read_bytes()
    rerun, lock, codes = ["--stale=rerun", *command(out, b)], launch.locked, []

    def after_another(path: Path):
        if not codes:
            codes.append(None)
            codes.append(main(rerun))
        return lock(path)

    monkeypatch.setattr(launch, "locked", after_another)
    assert main(rerun) == 0 and codes == [None, 0]
    (kept,) = (out / ".stale").glob("mnist/*/*")
    assert (kept / "result.json").read_bytes() == first and main(command(out, b)) == 0


def test_check_and_reports_exclude_other_data_runs(data, tmp_path: Path, capsys) -> None:
    a, b = data
    out = tmp_path / "out"
    made(out, a)
    capsys.readouterr()
    assert main(["check", "--quick", *command(out, b)]) == 2
    assert "1 on different data" in " ".join(capsys.readouterr().out.split())
    assert main(["check", "--quick", *command(out, a)]) == 0
    for root, status in ((a, "done"), (b, "different data"), ("null", "done")):
        (run,) = load_runs(references(compose_all(command(out, root))[0]))
        assert run.status == status
        assert bool(run.problem) == (status == "different data") and bool(run.result) == (status == "done")
    assert load_runs(references(compose_all(command(out, b))[0], keep=True))[0].status == "done"
    (here,), (there,) = (compare_runs(read_runs(out, str(root))).rows for root in (a, b))
    assert here != there
    assert "used data that differ from paths.data_dir" in " ".join(compare_runs(read_runs(out, str(b))).lines)


def test_run_rejects_other_recorded_settings_without_stale_flag(tmp_path: Path, capsys) -> None:
    run = [*TINY_IMAGES, "method=fedavg", f"paths.output_dir={tmp_path}"]
    assert main(run) == 0
    (path,) = tmp_path.glob("femnist/*/*/config.yaml")
    path.write_text(path.read_text().replace("local_epochs: 2", "local_epochs: 3").replace("threads: 1", "threads: 2"))
    write_content(path.parent, read_content(path.parent))
    capsys.readouterr()
    assert main(run) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "different settings: training.local_epochs: recorded 3, now 2. Use --stale=rerun" in line
    assert "threads" not in line
    assert main(["--stale=keep", *run]) == 0
    assert "recorded 3, now 2" in capsys.readouterr().err
    assert main(["--stale=rerun", *run]) == 0
    assert "local_epochs: 2" in path.read_text() and main(run) == 0
