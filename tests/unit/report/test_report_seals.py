"""Logs, predictions and the like are used as the run's result sealed them, or named and left out."""

from __future__ import annotations

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
