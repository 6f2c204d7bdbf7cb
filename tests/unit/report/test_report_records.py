"""A run folder that is absent, damaged or another's is not there; it is never a wrong number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from knot_runner.records import read_result
from knot_runner.report.run_folders import cls_vectors, load_runs, predictions, probes, readable, rounds
from knot_runner.results import kind_problem
from tests.golden.messages import refuses
from tests.unit.report.sealing import put


def test_reads_a_finished_run(factory: Any) -> None:
    (run,) = load_runs([factory.made(base=0.4)])
    assert run.status == "done" and run.problem == ""
    assert run.metric("f1", "MELD") == 0.4
    assert run.metric("f1", "Moon") is None


def test_absent_and_diverged_runs_have_no_numbers(factory: Any) -> None:
    absent, diverged = load_runs([factory.job(seed=1), factory.made(seed=2, status="diverged")])
    assert (absent.status, absent.problem) == ("missing", "not run yet")
    assert diverged.status == "diverged" and diverged.metric("f1", "MELD") is None


@pytest.mark.parametrize(("changes", "reason"), [
    ({"status": "running"}, "status"), ({"metrics": {}}, "metrics"), ({"metrics": {"f1": {"MELD": 1.2}}}, "metrics"),
    ({"metrics": {"sd": {"MELD": -0.1}}}, "metrics"), ({"metrics": {"f1": {"MELD": "0.4"}}}, "metrics"),
    ({"metrics": {"f1": {"MELD": True}}}, "metrics"), ({"before": {"f1": {"MELD": 7}}}, "before"),
    ({"teachers": {"MELD": {"f1": None}}}, "teachers"), ({"datasets": {"MELD": 5}}, "datasets"),
    ({"datasets": {"MELD": {"train": "many"}}}, "datasets"),
    ({"labels": {"names": ["a", "b"], "coordinates": [[0], [1, 2]]}}, "labels"),
    ({"bias": {"MELD": [0.5, 0.5]}}, "bias"),
])  # fmt: skip
def test_an_unsound_result_is_refused(factory: Any, changes: dict[str, Any], reason: str) -> None:
    assert reason in kind_problem(read_result(factory.write(factory.job(), **changes).folder))


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


# ------------------------------------------------------------------------------------------------- federated and probe


def test_reads_a_federated_run_and_its_rounds(federated: Any) -> None:
    (run,) = load_runs([federated.made(0.5, [0.1, 0.2, 0.4])])
    assert run.status == "done" and run.metric("tempered_loss", "ALL") == 2.6
    rows = rounds(run)
    assert [row["round"] for row in rows] == [1, 2, 3] and rows[1]["accuracy"] == 0.2
    (sparse,) = load_runs([federated.write(federated.job(seed=1), [0.1, 0.2, 0.3], every=2)])
    assert ["accuracy" in row for row in rounds(sparse)] == [False, True, True]


@pytest.mark.parametrize(("changes", "reason"), [
    ({"metrics": {"accuracy": {"ALL": 0.5}}}, "metrics"), ({"metrics": {"accuracy": {"ALL": 1.5}}}, "metrics"),
    ({"best": {"accuracy": 2, "round": 0}}, "best"), ({"rounds": 0}, "rounds"), ({"clients": "many"}, "clients"),
    ({"datasets": {"train": 5}}, "datasets"), ({"labels": {"names": [1, 2]}}, "labels"),
    ({"rounds_to_target": 3}, "rounds_to_target"), ({"rounds_to_target": 0}, "rounds_to_target"),
    ({"target": -1}, "target"),
])  # fmt: skip
def test_an_unsound_federated_result_is_refused(federated: Any, changes: dict[str, Any], reason: str) -> None:
    assert reason in kind_problem(read_result(federated.write(federated.job(), [0.1, 0.2], **changes).folder))


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
