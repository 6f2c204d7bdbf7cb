"""Records of a run folder are read as its result sealed them, or named and left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from knot_runner.records import read_result, write_result
from knot_runner.report.claims.items import _test_sizes
from knot_runner.report.compare.answer import Question, compare_runs
from knot_runner.report.figures.coreset import _strip
from knot_runner.report.figures.federated_distance import _scatter
from knot_runner.report.figures.style import Drawing, figure_of, panels
from knot_runner.report.records import probe as probe_view
from knot_runner.report.run_folders import Job, Run, cls_vectors, load_runs, predictions, probes, readable, rounds
from knot_runner.report.run_rows import run_rows
from knot_runner.report.tables.chilling import with_learning_curves
from knot_runner.report.tables.footnotes import absences
from tests.golden.messages import refuses
from tests.unit.report.compared import made
from tests.unit.report.conftest import put


def test_reads_a_finished_run(factory: Any) -> None:
    (run,) = load_runs([factory.made(base=0.4)])
    assert run.status == "done" and run.problem == ""
    assert run.metric("f1", "MELD") == 0.4
    assert run.metric("f1", "Moon") is None


def test_absent_and_diverged_runs_have_no_numbers(factory: Any) -> None:
    absent, diverged = load_runs([factory.job(seed=1), factory.made(seed=2, status="diverged")])
    assert (absent.status, absent.problem) == ("missing", "not run yet")
    assert diverged.status == "diverged" and diverged.metric("f1", "MELD") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"status": NaN}', "[" * 100_000, '{"a":1,"a":2}', "\x00"])
def test_a_damaged_result_is_refused(factory: Any, text: str) -> None:
    job = factory.made()
    (job.folder / "result.json").write_text(text)
    assert load_runs([job])[0].status in ("corrupt", "other version")


def test_every_truncation_is_refused(factory: Any) -> None:
    job = factory.made()
    path = job.folder / "result.json"
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        assert load_runs([job])[0].status == "corrupt"


def test_done_names_the_command_when_nothing_is_there(factory: Any) -> None:
    jobs = [factory.job(seed=0), factory.made(seed=1, status="diverged")]
    with refuses():
        readable(jobs, command="knot-runner x")


def test_predictions_come_with_their_labels(factory: Any) -> None:
    (run,) = load_runs([factory.predictions(factory.made(), rows=30)])
    found = predictions(run)
    assert set(found) == {*run.result["bias"], *(f"before/{name}" for name in run.result["bias"])}
    shares, labels = found["before/MELD"]
    assert shares.shape == (30, 5) and (labels == found["MELD"][1]).all()


def test_damaged_predictions_name_the_file_and_the_command(factory: Any) -> None:
    job = factory.predictions(factory.made(), rows=30)
    path = job.folder / "predictions.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with refuses():
        predictions(load_runs([job])[0], "knot-runner y")


def test_arrays_that_are_not_there_name_the_command(factory: Any) -> None:
    (run,) = load_runs([factory.made()])
    for read in (predictions, cls_vectors, probes):
        with refuses():
            read(run, "knot-runner z")


def test_vectors_and_probes(factory: Any) -> None:
    (run,) = load_runs([factory.probes(factory.vectors(factory.made(), rows=50))])
    points, labels = cls_vectors(run)
    assert points.shape == (50, 16) and labels.max() == 4
    assert {entry["model"] for entry in probes(run)} == {"student", "before", "MELD"}
    (run.job.folder / "probe.json").write_text(json.dumps([{"probe": "gender"}]))
    with refuses():
        probes(run)


def test_reads_a_federated_run_and_its_rounds(federated: Any) -> None:
    (run,) = load_runs([federated.made(0.5, [0.1, 0.2, 0.4])])
    assert run.status == "done" and run.metric("tempered_loss", "ALL") == 2.6
    rows = rounds(run)
    assert [row["round"] for row in rows] == [1, 2, 3] and rows[1]["accuracy"] == 0.2
    (sparse,) = load_runs([federated.write(federated.job(seed=1), [0.1, 0.2, 0.3], every=2)])
    assert ["accuracy" in row for row in rounds(sparse)] == [False, True, True]


def test_a_loss_may_be_large_and_clients_may_be_without_images(federated: Any) -> None:
    job = federated.job()
    rows = federated.rows(job, [0.1, 0.2])
    rows[1] |= {"tempered_loss": 46.2, "clients": [None, 0.2, 0.2, 0.2], "after": [None, 0.3]}
    write_rows(federated.write(job, [0.1, 0.2]), rows)
    assert rounds(load_runs([job])[0])[1]["tempered_loss"] == 46.2


def write_rows(job: Any, rows: list[dict[str, Any]]) -> Any:
    put(job.folder / "rounds.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return job


def test_every_truncation_of_the_rounds_is_refused(federated: Any) -> None:
    (run,) = load_runs([federated.made(1.0, [0.1, 0.2, 0.3])])
    path = run.job.folder / "rounds.jsonl"
    whole = path.read_bytes()
    for length in range(0, len(whole), 61):
        path.write_bytes(whole[:length])
        with refuses():
            rounds(run)
    path.unlink()
    with refuses():
        rounds(run, "knot-runner z")


def sealed(job: Job) -> Job:
    """``job`` with what its folder holds by now sealed."""
    write_result(job.folder, read_result(job.folder))
    return job


READERS = {
    "predictions.safetensors": predictions,
    "vectors.safetensors": cls_vectors,
    "probe.json": probes,
    "rounds.jsonl": rounds,
    "partition.json": lambda run: _test_sizes(run, 4, ""),
    "probe.safetensors": probe_view.read_probe,
    "measures.safetensors": lambda run: _scatter(None, run, ""),
    "coreset.safetensors": lambda run: _strip(run, ""),
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_names_a_file_that_is_not_as_it_was_sealed(factory: Any, name: str) -> None:
    job = factory.probes(factory.vectors(factory.predictions(factory.made(), rows=30), rows=50))
    path = job.folder / name
    if not path.exists():
        path.write_text("{}")
    whole = path.read_bytes()
    sealed(job)
    for changed in (whole[:-1], whole + b"\n", whole[:1] + b"#" + whole[2:]):
        path.write_bytes(changed)
        with refuses():
            READERS[name](load_runs([job])[0])


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def test_swapped_logs_are_left_out_of_tables_and_figures_and_said(trio: list[Job], tmp_path: Path) -> None:
    jobs = [sealed(job) for job in trio]
    swap(jobs[2].folder / "rounds.jsonl", jobs[4].folder / "rounds.jsonl")
    runs, courses = with_learning_curves(load_runs(jobs), "knot-runner x")
    wrong = {jobs[2].run_id, jobs[4].run_id}
    assert {run.job.run_id for run in runs if run.status == "corrupt"} == wrong
    assert set(courses) == {job.run_id for job in jobs} - wrong
    rows = run_rows(runs)
    said = " ".join(absences(rows, rows["task"]))
    assert said.count("rounds.jsonl: does not match its digest in result.json") == 2

    @figure_of(reads=("rounds.jsonl",))
    def figure(runs: list[Run], command: str) -> Drawing:
        return Drawing(panels(1, 8, 4)[0], "Runs", [], [run.job.run_id for run in runs])

    lines = figure(jobs, tmp_path / "x.png")
    assert wrong.isdisjoint(lines) and sum("does not match its digest" in line for line in lines) == 2
    assert len([run for run in readable(jobs) if run.status == "done"]) == len(jobs)  # a figure that reads no logs


def test_a_changed_config_is_left_out_of_compare_and_said(tmp_path: Path) -> None:
    folders = [made(tmp_path, accuracy, seed=seed) for seed, accuracy in enumerate((0.5, 0.7))]
    path = folders[1] / "config.yaml"
    path.write_text(path.read_text() + "\n")
    lines = " ".join(compare_runs(Question(out=tmp_path)).lines)
    assert "Left out: 1 damaged results" in lines and "config.yaml: does not match its checksum" in lines


def test_swapped_results_are_of_another_run(tmp_path: Path) -> None:
    """Two runs of one task, method and seed, told apart by a setting only."""
    folders = [made(tmp_path, 0.5 + heat / 10, method__temperature=heat) for heat in (1, 2)]
    swap(*(folder / "result.json" for folder in folders))
    lines = " ".join(compare_runs(Question(out=tmp_path)).lines)
    assert "Left out: 2 damaged results" in lines and "is of another run" in lines
