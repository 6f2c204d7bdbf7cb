"""A run folder that is absent, damaged or another's is not there; it is never a wrong number."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from knot_runner.errors import UserError
from knot_runner.report.records_view import done, load, predictions, probes, vectors


def test_reads_a_finished_run(factory: Any) -> None:
    (run,) = load([factory.made(base=0.4)])
    assert run.status == "done" and run.problem == ""
    assert run.metric("f1", "MELD") == 0.4
    assert run.metric("f1", "Moon") is None


def test_absent_and_diverged_runs_have_no_numbers(factory: Any) -> None:
    absent, diverged = load([factory.job(seed=1), factory.made(seed=2, status="diverged")])
    assert (absent.status, absent.problem) == ("missing", "not run yet")
    assert diverged.status == "diverged" and diverged.metric("f1", "MELD") is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seed": 5}, "another run"),
        ({"method": "entropy_a"}, "another run"),
        ({"task": "sa"}, "another run"),
        ({"status": "running"}, "status"),
        ({"metrics": {}}, "metrics"),
        ({"metrics": {"f1": {"MELD": 1.2}}}, "metrics"),
        ({"metrics": {"sd": {"MELD": -0.1}}}, "metrics"),
        ({"metrics": {"f1": {"MELD": "0.4"}}}, "metrics"),
        ({"metrics": {"f1": {"MELD": True}}}, "metrics"),
        ({"before": {"f1": {"MELD": 7}}}, "before"),
        ({"teachers": {"MELD": {"f1": None}}}, "teachers"),
        ({"datasets": {"MELD": 5}}, "datasets"),
        ({"datasets": {"MELD": {"train": "many"}}}, "datasets"),
        ({"labels": {"names": ["a", "b"], "coordinates": [[0], [1, 2]]}}, "labels"),
        ({"bias": {"MELD": [0.5, 0.5]}}, "bias"),
    ],
)
def test_an_unsound_result_is_refused(factory: Any, changes: dict[str, Any], reason: str) -> None:
    (run,) = load([factory.write(factory.job(), **changes)])
    assert run.status == "corrupt" and reason in run.problem and "result.json" in run.problem


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"status": NaN}', "[" * 100_000, '{"a":1,"a":2}', "\x00"])
def test_a_damaged_result_is_refused(factory: Any, text: str) -> None:
    job = factory.made()
    (job.folder / "result.json").write_text(text)
    assert load([job])[0].status == "corrupt"


def test_every_truncation_is_refused(factory: Any) -> None:
    job = factory.made()
    path = job.folder / "result.json"
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        assert load([job])[0].status == "corrupt"


def test_done_names_the_command_when_nothing_is_there(factory: Any) -> None:
    jobs = [factory.job(seed=0), factory.made(seed=1, status="diverged")]
    with pytest.raises(UserError, match=r"none of the 2 runs is there \(diverged\); make it with: knot-runner x"):
        done(jobs, "knot-runner x")


def test_predictions_come_with_their_labels(factory: Any) -> None:
    (run,) = load([factory.predictions(factory.made(), rows=30)])
    found = predictions(run)
    assert set(found) == {*run.result["bias"], *(f"before/{name}" for name in run.result["bias"])}
    shares, labels = found["before/MELD"]
    assert shares.shape == (30, 5) and (labels == found["MELD"][1]).all()


@pytest.mark.parametrize("spoil", ["cut", "nan", "label", "width", "empty"])
def test_damaged_predictions_name_the_file_and_the_command(factory: Any, spoil: str) -> None:
    job = factory.predictions(factory.made(), rows=30)
    path = job.folder / "predictions.safetensors"
    shares, labels = np.full((4, 5), 0.2, np.float32), np.zeros(4, np.int64)
    if spoil == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif spoil == "empty":
        save_file({"other": labels}, path)
    else:
        shares = {"nan": shares * np.nan, "width": shares[:, :4] * 1.25}.get(spoil, shares)
        labels = labels + 9 if spoil == "label" else labels
        save_file({"MELD.probabilities": shares, "MELD.labels": labels}, path)
    with pytest.raises(UserError, match=r"predictions.safetensors: is damaged; .* repeat: knot-runner y"):
        predictions(load([job])[0], "knot-runner y")


def test_arrays_that_are_not_there_name_the_command(factory: Any) -> None:
    (run,) = load([factory.made()])
    for read in (predictions, vectors, probes):
        with pytest.raises(UserError, match="is not there; make it with: knot-runner z"):
            read(run, "knot-runner z")


def test_vectors_and_probes(factory: Any) -> None:
    (run,) = load([factory.probes(factory.vectors(factory.made(), rows=50))])
    points, labels = vectors(run)
    assert points.shape == (50, 16) and labels.max() == 4
    assert {entry["model"] for entry in probes(run)} == {"student", "before", "MELD"}
    (run.job.folder / "probe.json").write_text(json.dumps([{"probe": "gender"}]))
    with pytest.raises(UserError, match="probe.json: is damaged"):
        probes(run)
