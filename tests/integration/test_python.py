"""The Python interface: runs, frames, public names and scripts."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import knot_runner as kr
from tests.golden.messages import refuses
from tests.tiny import TINY_IMAGES

ROOT = Path(__file__).resolve().parents[2]


def test_run_returns_result_rounds_and_folder(sweep_runs):
    folder = sweep_runs[0].folder
    (job,) = kr.compose([*TINY_IMAGES, "training.lr=0.1", f"paths.output_dir={folder.parents[2]}"])
    found = kr.run(job)
    assert found.folder == job.folder == folder and found.result.run_id == job.run_id
    assert [row["round"] for row in found.rounds] == [1, 2, 3]
    assert found.rounds[-1]["accuracy"] == found.result.metrics["accuracy"]["ALL"]


def test_notes_go_to_the_logger(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="knot_runner"):
        kr.run([*TINY_IMAGES, "training.rounds=1", f"paths.output_dir={tmp_path}"])
    assert any("engine lean" in record.message for record in caplog.records)


def test_runs_and_their_comparison_are_frames(sweep_runs):
    out = sweep_runs[0].folder.parents[2]
    frame = kr.runs("method=fedavg seed=0", out=out).frame()
    (row,) = frame[frame["metric"] == "metrics.accuracy.ALL"].to_dict("records")
    assert row["value"] == sweep_runs[0].result["metrics"]["accuracy"]["ALL"]
    assert row["state"] == "done" and row["method"] == "fedavg"
    assert set(kr.runs(out=out).frame()["method"]) == {"fedavg", "fedprox"}
    with pytest.raises(TypeError, match="positional argument"):  # a second filter is no folder
        kr.runs("method=fedavg", "seed=0")
    with pytest.raises(TypeError, match="positional argument"):
        kr.compare("method=fedavg", "seed=0")
    compared = kr.compare("task=femnist", out=out, by="method.name", measure="accuracy")
    assert len(compared) == 2 and {"fedavg", "fedprox"} <= set(compared.iloc[:, 0])


def test_frame_per_round_and_client_has_the_logged_numbers(sweep_runs):
    folder = sweep_runs[0].folder
    runs = kr.runs("method=fedavg seed=0", out=folder.parents[2])
    by_round = runs.frame("round").set_index(["round", "metric"])["value"]
    by_client = runs.frame("client").set_index(["round", "client", "metric"])["value"]
    for row in map(json.loads, (folder / "rounds.jsonl").read_text().splitlines()):
        assert by_round[row["round"], "accuracy"] == row["accuracy"]
        assert by_client[row["round"], :, "after"].to_dict() == dict(
            zip(row["participants"], row["after"], strict=True)
        )
    assert by_client[row["round"], :, "accuracy"].tolist() == row["clients"]
    with refuses():
        runs.frame("epoch")


def test_run_rejects_several_runs_and_unknown_keys(tmp_path):
    for words in ("seed=0,1", "+training.rond=1"):
        with refuses():
            kr.run([*TINY_IMAGES, words, f"paths.output_dir={tmp_path}"])
    for wrong in (None, "task=femnist", [1]):
        with refuses():
            kr.run(wrong)
    assert not list(tmp_path.iterdir())


def test_threads_compose_one_after_another():
    with ThreadPoolExecutor(4) as pool:
        jobs = list(pool.map(kr.compose, [[*TINY_IMAGES, f"seed={seed}"] for seed in range(8)]))
    assert [job.settings.seed for (job,) in jobs] == list(range(8))


def test_public_names_are_there_and_on_their_page():
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    lists = re.findall(r"^- .*?: (.*)$", page.partition("\n## Names\n")[2], flags=re.M)
    named = [name for names in lists for name in re.findall("`(.*?)`", names)]
    assert sorted(named) == sorted(kr.__all__) and len(page.split()) <= 250
    for name in kr.__all__:
        assert getattr(kr, name) is not None and name in dir(kr)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kr.nothing


SMALL = f"import knot_runner as kr\nsmall = {[*TINY_IMAGES, 'hardware.num_workers=2', 'paths.output_dir=OUT']!r}\n"
SCRIPTS = {
    "file": SMALL + "print(*[run.result.status for run in kr.sweep([*small, 'seed=0,1'])])\n",
    "standard input": SMALL + "print(kr.run(small).result.status)\n",
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", SCRIPTS)
def test_script_needs_no_main_guard(tmp_path, way):
    text = SCRIPTS[way].replace("OUT", str(tmp_path / "out"))
    (tmp_path / "script.py").write_text(text)
    command = [sys.executable, "-" if way == "standard input" else str(tmp_path / "script.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.split() in (["done", "done"], ["done"]), done.stderr
