"""What ``check`` says of data before a run is what the run says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from knot_runner.cli import preview
from knot_runner.cli.main import main
from knot_runner.cli.parsers import run_verb
from knot_runner.composing.commands import compose_all
from tests.tiny import TINY, TINY_IMAGES

DISTANCE = ["method=dataset_distance", "method.otdd.samples=20", "method.otdd.solver=exact", "hardware.num_workers=1"]
UNDEALT = [setting for setting in TINY_IMAGES if not setting.startswith("partition")]
RUNS = {
    "federated": [*TINY_IMAGES, "training.batch_size=80", "training.small_clients=allow"],
    "a class a client": [*UNDEALT, "partition=shards", "partition.num_clients=10", "partition.shards_per_client=1"],
    "matrix": ["task=image_sets", "task.shape=[1,8,8]", *DISTANCE],
    "gaussians": ["task=gaussians", "task.samples=20", "method.fedwad.iterations=2"],
    "texts": [*TINY, "task=sa", "training.local.batch_size=64"],
}


def look(arguments: list[str], out: Path) -> preview.Preview:
    return preview.prepare(compose_all([*arguments, f"paths.output_dir={out}"])[0], out / "look")


@pytest.mark.parametrize("name", RUNS)
def test_check_has_every_note_of_the_run(name: str, tmp_path: Path, capsys) -> None:
    assert main([*RUNS[name], f"paths.output_dir={tmp_path}"]) == 0, capsys.readouterr().err
    (path,) = tmp_path.glob("*/*/*/result.json")
    result = json.loads(path.read_text())
    found = look(RUNS[name], tmp_path)
    before_training = [note for note in result["notes"] if "every test example is predicted" not in note]
    assert found.lines(1) == before_training
    assert bool(found.counts) == (name != "gaussians")  # which have no classes
    assert any("of one class only" in note for note in result["notes"]) == (name == "a class a client")
    parties = result.get("label_counts", {"parties": {}})["parties"]
    one_class = [party for party, parts in parties.items() if np.count_nonzero(parts["train"]) == 1]
    assert bool(one_class) == (name == "a class a client")


def test_jobs_alike_are_prepared_once_and_counted(tmp_path: Path, monkeypatch) -> None:
    grid = [*TINY_IMAGES, "seed=0,1", "method=fedavg,fedavg_chill", "method.temperature=1", "training.lr=0.1,0.01"]
    jobs, _ = compose_all([*grid, f"paths.output_dir={tmp_path}"])
    looks = iter([(["of all", "of one"], ["a"]), (["of all"], ["b"])])
    monkeypatch.setattr(preview, "_look", lambda *_: next(looks))
    found = preview.prepare(jobs, tmp_path)
    assert len(jobs) == 8 and next(looks, None) is None and found.problem == ""
    assert found.lines(8) == ["of all", "of one (4 of 8 jobs)"]
    assert found.counts == {"femnist, natural, seed 0": ["a"]}


def test_check_reports_exit_code_of_dead_child(tmp_path: Path, monkeypatch, capsys) -> None:
    plugin = tmp_path / "ends.py"
    plugin.write_text("import multiprocessing, os\nif multiprocessing.parent_process():\n    os._exit(3)\n")
    assert run_verb("check", [*TINY_IMAGES, f"paths.output_dir={tmp_path}", f"plugins=['{plugin}']"]) == 2
    assert "the command would stop: its process ended with exit code 3" in capsys.readouterr().out
