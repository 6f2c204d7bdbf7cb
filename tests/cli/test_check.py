"""``check``: the list, where each job stands, the flags, and what is said of data and when the sweep would stop."""

from __future__ import annotations

import json
import os
import time
from dataclasses import make_dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from knot_runner.cli import preview
from knot_runner.cli.main import main
from knot_runner.cli.parsers import run_verb
from knot_runner.composing.commands import compose_all
from knot_runner.provenance import CurrentData
from knot_runner.records import write_sealed
from knot_runner.sweeps.state import is_locked, state_of
from knot_runner.util.files import locked
from tests.contents import write_content
from tests.of_papers import of_papers
from tests.tiny import TINY, TINY_IMAGES, TINY_PARTIES, replaced


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def compose(out, *overrides):
    jobs, _ = compose_all([*TINY_IMAGES, f"paths.output_dir={out}", *overrides])
    return jobs


def write(job, name, content):
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / name).write_text(json.dumps(content))


def commit(job, step):
    job.folder.mkdir(parents=True, exist_ok=True)
    write_sealed(job.folder / "commit.json", {"step": step})


def test_state_of_tells_where_each_job_stands(tmp_path):
    fresh, done, diverged, failed, stopped, running, begun = compose(tmp_path, "seed=0,1,2,3,4,5,6")
    write_content(done.folder, {"status": "done"})
    write_content(diverged.folder, {"status": "diverged"})
    write(failed, "failed.json", {"kind": "killed", "cause": "ended by SIGKILL", "attempts": 1, "at": 0.0})
    commit(stopped, 1)
    progress = {"stage": "rounds", "done": 2, "total": 3, "text": "", "at": time.time()}
    write(running, "progress.json", progress)
    write(begun, "config.yaml", {})
    states = [state_of(job, CurrentData(None)) for job in (fresh, done, diverged, failed, stopped, running, begun)]
    assert [state.standing for state in states] == [
        "to do", "done", "diverged", "failed", "stopped", "running", "stopped",
    ]  # fmt: skip
    texts = [state.text for state in states]
    assert texts[3:6] == ["failed: ended by SIGKILL", "stopped in round 2 of 3", "running: rounds 2 of 3"]
    write(running, "progress.json", progress | {"at": time.time() - 3600})  # it was killed an hour ago
    assert state_of(running, CurrentData(None)).standing == "to do"


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="locks are read from /proc")  # noqa: PTH110
def test_is_locked_detects_lock_without_creating_it(tmp_path):
    (job,) = compose(tmp_path)
    lock = tmp_path / ".locks" / job.run_id
    assert not is_locked(lock) and not lock.exists()
    with locked(lock):
        assert state_of(job, CurrentData(None)).standing == "running"
    assert not is_locked(lock) and state_of(job, CurrentData(None)).standing == "to do"


def test_check_tells_what_is_left(tmp_path, capsys):
    first, second, _ = compose(tmp_path, "seed=0,1,2")
    write_content(first.folder, {"status": "done"})
    write(second, "failed.json", {"kind": "error", "cause": "[red]\x1b[31mboom", "attempts": 1, "at": 0.0})
    assert run_verb("check", [*TINY_IMAGES, f"paths.output_dir={tmp_path}", "seed=0,1,2", "--quick"]) == 0
    out = capsys.readouterr().out
    assert "3 jobs, 1 done, 2 to do (1 failed)" in out and "[red]?[31mboom" in out
    assert out.endswith("no time estimate: no similar job has finished\n")


def test_check_lists_few_of_many_jobs_without_all_flag(tmp_path, capsys):
    grid = [*TINY_IMAGES, f"paths.output_dir={tmp_path}", "seed=range(40)", "method=fedavg,fedprox", "--quick"]
    (stopped, *_) = compose(tmp_path, "seed=7", "method=fedprox")
    commit(stopped, 0)
    assert run_verb("check", grid) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) < 40 and "80 jobs, 0 done, 80 to do (1 stopped)" in out
    assert out.splitlines()[1].startswith(stopped.run_id) and "stopped in round 1 of 3" in out.splitlines()[1]
    assert "50 more; use --all to list every job" in out
    assert run_verb("check", [*grid, "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 40


def test_times_are_medians_of_finished_jobs_alike(tmp_path, capsys):
    for words, seconds in (("seed=0", 20), ("seed=1", 30), ("seed=2", 100), ("method=fedprox", 4)):
        (job,) = compose(tmp_path, *words.split())
        write_content(job.folder, {"status": "done", "seconds": {"total": seconds}})
    command = [*TINY_IMAGES, f"paths.output_dir={tmp_path}", "--quick"]
    assert run_verb("check", [*command, "seed=0,1,2,3,4", "method=fedavg,fedprox,scaffold"]) == 0
    left = capsys.readouterr().out.splitlines()[-1]  # 2 x 30 s of FedAvg and 4 x 4 s of FedProx
    assert left.startswith("6 jobs left: about 1 min 16 s, estimated from medians of finished jobs.")
    assert left.endswith("No time estimate for the other 5 jobs")


def test_check_reports_stop_cause_and_writes_nothing(tmp_path, capsys):
    words = ["task.source=local", "paths.data_dir=null", "seed=0,1", f"paths.output_dir={tmp_path / 'out'}"]
    assert run_verb("check", [*TINY_IMAGES, *words]) == 2
    out = capsys.readouterr().out
    assert "2 jobs, 0 done, 2 to do" in out and "the command would stop: paths.data_dir: required by" in out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [
    "method=clustered_fedavg method.clustering.clusters=50", "method=sinkhorn_e partition.num_clients=400",
])  # fmt: skip
def test_check_refuses_what_the_run_refuses(words, tmp_path, capsys):
    """What only the preparation of a run refuses; further ones are in the tables of refusals."""
    small = TINY_IMAGES if "clustered" in words else TINY_PARTIES
    run = [*replaced(small, *words.split()), f"paths.output_dir={tmp_path}"]
    assert main(run) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("knot-runner: ")]
    assert main(["check", *run]) == 2
    assert " ".join(line.removeprefix("knot-runner: ").split()) in " ".join("".join(capsys.readouterr()).split())
    if "method=clustered_fedavg" in words:  # known once the clients are
        assert main(["check", *run, "--quick"]) == 0


DISTANCE = ["method=dataset_distance", "method.otdd.samples=20", "method.otdd.solver=exact", "hardware.num_workers=1"]
UNDEALT = [setting for setting in TINY_IMAGES if not setting.startswith("partition")]
RUNS = {
    "federated": [*TINY_IMAGES, "training.batch_size=80", "training.small_clients=allow"],
    "a class a client": [*UNDEALT, "partition=shards", "partition.num_clients=10", "partition.shards_per_client=1"],
    "matrix": ["task=image_sets", "task.shape=[1,8,8]", *DISTANCE],
    "gaussians": ["task=gaussians", "task.samples=20", "method.fedwad.iterations=2"],
    "texts": [*TINY, "task=sa", "training.local.batch_size=64"],
}


def look(arguments, out):
    return preview.prepare(compose_all([*arguments, f"paths.output_dir={out}"])[0], out / "look")


@pytest.mark.parametrize("name", of_papers(list(RUNS)))
def test_check_has_every_note_of_the_run(name, tmp_path, capsys):
    assert main([*RUNS[name], f"paths.output_dir={tmp_path}"]) == 0, capsys.readouterr().err
    (path,) = tmp_path.glob("*/*/*/result.json")
    result = json.loads(path.read_text())
    checked = look(RUNS[name], tmp_path)
    before_training = [note for note in result["notes"] if "every test example is predicted" not in note]
    assert checked.lines(1) == before_training
    assert bool(checked.counts) == (name != "gaussians")  # which have no classes
    assert any("of one class only" in note for note in result["notes"]) == (name == "a class a client")
    parties = result.get("label_counts", {"parties": {}})["parties"]
    one_class = [party for party, parts in parties.items() if np.count_nonzero(parts["train"]) == 1]
    assert bool(one_class) == (name == "a class a client")


def test_jobs_alike_are_prepared_once_and_counted(tmp_path, monkeypatch):
    grid = [*TINY_IMAGES, "seed=0,1", "method=fedavg,fedavg_chill", "method.temperature=1", "training.lr=0.1,0.01"]
    jobs, _ = compose_all([*grid, f"paths.output_dir={tmp_path}"])
    counts = [SimpleNamespace(lines=lambda: ["a"]), SimpleNamespace(lines=lambda: ["b"])]
    notes = [["of all", "of one"], ["of all"]]
    looks = (SimpleNamespace(notes=one, counts=of_one) for one, of_one in zip(notes, counts, strict=True))
    monkeypatch.setattr(preview, "inspected", lambda *_: next(looks))
    checked = preview.prepare(jobs, tmp_path)
    assert len(jobs) == 8 and next(looks, None) is None and checked.problem == ""
    assert checked.lines(8) == ["of all", "of one (4 of 8 jobs)"]
    assert checked.counts == {"femnist, natural, seed 0": ["a"]}


def test_cached_tasks_are_read_again_after_four_others():
    read, settings = [], make_dataclass("Settings", ["number"])
    load = preview.cached(lambda asked, folder: read.append(asked.number) or object())
    tasks = [load(settings(number), None) for number in (1, 2, 1, 3, 4, 5, 1, 2)]
    assert read == [1, 2, 3, 4, 5, 2] and tasks[0] is tasks[2] is tasks[6]
    assert load(settings(1), "folder") is not tasks[0]
